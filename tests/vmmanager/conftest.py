"""What the tests of the VM manager share."""

import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import Reproducer, ReproduceResult, ReproduceSpec, StepRef, VmShape
from kgym.api.worker_calls import Input
from kgym.bugs import bundle
from kgym.worker.context import StepContext
from kgym_vmmanager.guest import guest_image
from kgym_vmmanager.reproduce.reproduce_step import Reproduce
from tests.conftest import NewRun, fetched, kgym
from tests.results import built

BUILT = built()


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for the guest image and the answer about the accelerator."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guest's runner, as a program of the host."""
    program = tmp_path_factory.mktemp("runner") / "run"
    source = Path(guest_image.__file__).parent / "inside" / "run.c"
    subprocess.run(["gcc", "-O1", "-o", program, source], check=True, timeout=60)
    return program


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bzImage of the kernel that the shipped bugs share, without any bug; vmlinux beside it."""
    unpatched = bundle.load("watch-queue-filter").build.model_copy(update={"patches": []})
    status, job = kgym("job", "submit", "-", "--wait", stdin=JobRequest(steps=[unpatched]))
    assert status == 0, job
    folder = tmp_path_factory.mktemp("kernel")
    fetched(job, 0, "vmlinux", folder)
    return fetched(job, 0, "bzImage", folder)


@pytest.fixture(scope="session")
def syzkaller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stand-ins that obey the command line of syzkaller's programs."""
    folder = tmp_path_factory.mktemp("syzkaller")
    for source in (Path(__file__).parent / "syzkaller").glob("*.c"):
        argv = ["gcc", "-static", "-O1", "-Wall", "-Werror", "-o", folder / source.stem, source]
        subprocess.run(argv, check=True, timeout=60)
    return folder


NewStep = Callable[..., Awaitable[StepContext]]
Perform = Callable[..., Awaitable[ReproduceResult]]


@pytest.fixture
def new_step(new_run: NewRun, kernel: Path) -> NewStep:
    """Make an attempt at a step that runs `source` on the test kernel."""

    async def make(
        source: str | Reproducer,
        *,
        time: float = 5,
        instances: int = 1,
        cpus: int = 1,
        append: str = "",
        root: Any = "initramfs",
        **more: Any,
    ) -> StepContext:
        vm = VmShape(cpus=cpus, memory=512, append=append, root=root)
        spec = ReproduceSpec(
            build=StepRef(step=0),
            reproducer=source if isinstance(source, Reproducer) else Reproducer(text=source),
            vm=vm,
            time=time,
            instances=instances,
            **more,
        )
        run = new_run(spec)
        image = await run.storage.put("steps/0/bzImage", kernel)
        run.assignment.inputs["build"] = Input(result=BUILT, artifacts=[image])
        return run

    return make


@pytest.fixture
def perform(new_step: NewStep, cache: Path) -> Perform:
    """Perform a step that runs `source` on the test kernel."""

    async def perform(source: str | Reproducer, **what: object) -> ReproduceResult:
        return await Reproduce(cache)(await new_step(source, **what))

    return perform
