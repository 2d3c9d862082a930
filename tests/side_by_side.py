"""Deals tests out to processes: all that use the checkout's data folder to one, others by file.

The data folder holds one platform at a time, so two processes would wait for each other.
"""

import pytest
from xdist.scheduler import LoadScopeScheduling

# The folders of the tests that use the checkout's data folder.
KERNELS = ("tests/honesty/", "tests/kernel/", "tests/tracer/", "tests/vmmanager/")


class _KernelsTogether(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return "kernels" if nodeid.startswith(KERNELS) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling | None:
    """Return the scheduler of `--dist loadscope`; leave the other ways to the library."""
    if config.getoption("dist") != "loadscope":
        return None
    return _KernelsTogether(config, log)
