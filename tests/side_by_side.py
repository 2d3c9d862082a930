"""Deals tests out to processes: by file; those that use the checkout's data folder, to two."""

import pytest
from xdist.scheduler import LoadScopeScheduling

# The data folder holds one platform at a time: the tests that start one with options of their own,
# or build kernels with it, would wait for each other. Others only boot guests with its kernels.
TOGETHER = (
    ("tests/honesty/", "tests/kernel/", "tests/vmmanager/dump/", "tests/vmmanager/gce/"),
    ("tests/tracer/", "tests/vmmanager/"),
)


class _KernelsTogether(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        own = (folders[0] for folders in TOGETHER if nodeid.startswith(folders))
        return next(own, super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling | None:
    """Return the scheduler of `--dist loadscope`; leave the other ways to the library."""
    if config.getoption("dist") != "loadscope":
        return None
    return _KernelsTogether(config, log)
