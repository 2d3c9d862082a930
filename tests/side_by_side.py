"""Slow tests side by side: those that build and boot kernels in one process, one after another.

They share the checkout's data folder, which holds one build at a time, and the first build of the
day; `--dist loadscope` would deal them out. All others go file by file to the other process.
"""

import pytest
from xdist.scheduler import LoadScopeScheduling

KERNELS = ("tests/honesty/", "tests/kernel/", "tests/tracer/", "tests/vmmanager/")
"""The folders of the tests that use the checkout's data folder."""


class _KernelsTogether(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return "kernels" if nodeid.startswith(KERNELS) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling | None:
    """Return the scheduler of `--dist loadscope`; leave the other ways to the library."""
    if config.getoption("dist") != "loadscope":
        return None
    return _KernelsTogether(config, log)
