"""What the tests of the VM manager share."""

import subprocess
from collections.abc import Awaitable, Callable
from functools import partial
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
from kgym_vmmanager.vm.provider import InstanceLimits
from tests.conftest import NewRun, fetched, kgym
from tests.results import built
from tests.vmmanager.scripted_vms import LIMITS, Guest, ScriptedVms

BUILT = built()


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for the guest image and the answer about the accelerator."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guest's runner, as a program of the host."""
    return guest_program("run", tmp_path_factory.mktemp("runner"))


def guest_program(name: str, folder: Path) -> Path:
    """Compile a program of the guest, by its name, for the host."""
    source = Path(guest_image.__file__).parent / "inside" / f"{name}.c"
    subprocess.run(["gcc", "-O1", "-o", folder / name, source], check=True, timeout=60)
    return folder / name


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


def without_kernel(argv: list[str]) -> list[str]:
    """Return QEMU's command line for a VM that boots from its disk, or from nothing."""
    gone = {argv.index(option) for option in ("-kernel", "-initrd", "-append")}
    return [word for at, word in enumerate(argv) if not {at, at - 1} & gone]


NewStep = Callable[..., Awaitable[StepContext]]
Perform = Callable[..., Awaitable[ReproduceResult]]


@pytest.fixture
def new_step(new_run: NewRun, kernel: Path) -> NewStep:
    """Make an attempt at a step that runs `source` on the test kernel."""
    return partial(_step, new_run, kernel)


@pytest.fixture
def scripted_step(new_run: NewRun, tmp_path: Path) -> NewStep:
    """Make an attempt at a step whose guests are scripted: there is no kernel."""
    kernel = tmp_path / "bzImage"
    kernel.write_bytes(b"a kernel")

    def make(source: str | Reproducer = "int main(void) { return 0; }\n", **what: Any) -> Any:
        return _step(new_run, kernel, source, **what)

    return make


async def _step(
    new_run: NewRun,
    kernel: Path,
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


@pytest.fixture
def perform(new_step: NewStep, cache: Path) -> Perform:
    """Perform a step that runs `source` on the test kernel."""

    async def perform(source: str | Reproducer, **what: object) -> ReproduceResult:
        return await Reproduce(cache)(await new_step(source, **what))

    return perform


@pytest.fixture
def perform_scripted(scripted_step: NewStep, cache: Path) -> Perform:
    """Perform a step on guests of these kinds (see `scripted_vms.py`), for a moment."""

    async def perform(
        *kinds: type[Guest], limits: InstanceLimits = LIMITS, **what: Any
    ) -> ReproduceResult:
        run = await scripted_step(**{"time": 0.3, **what})
        return await Reproduce(cache, provider=ScriptedVms(*kinds, limits=limits))(run)

    return perform
