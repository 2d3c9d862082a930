"""What it takes to have a toolchain image (see `kernels.py`)."""

import statistics
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

from kgym.bugs import bundle
from kgym.configs import data_folder
from kgym.host.squashfs import Images
from kgym.worker.context import StepContext
from kgym_builder.toolchains.toolchains import Toolchains
from tests.conftest import attempt

GOALS = {"toolchain_s": 0.1}
IMAGE = "bookworm/gcc-12"


async def measured(work: Path, rounds: int) -> dict[str, float]:
    """Take the image, once it is made."""
    spec = bundle.load("watch-queue-filter").build
    run = attempt(work, spec)
    with run.held:
        await Toolchains(data_folder() / "cache").get(IMAGE, run)
        return {"toolchain_s": statistics.median([await _taken(run) for _ in range(rounds)])}


async def _taken(run: StepContext) -> float:
    """Return the seconds until a new worker has the compiler, mounted."""
    images = Images()
    with ExitStack() as held:
        start = monotonic()
        tools = await Toolchains(data_folder() / "cache").get(IMAGE, run)
        mounted = images.mount(None, held, tools.image)
        seconds = monotonic() - start
    images.close()
    assert mounted is not None, images.refusal
    return seconds
