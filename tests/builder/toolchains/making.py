"""Makes a toolchain image as whoever runs it: FOLDER ARCHIVES."""

import asyncio
import sys
import uuid
from pathlib import Path

from kgym.api.steps import GitSource, SourceSpec
from kgym.api.worker_calls import Assignment
from kgym.transport.artifact_storage import LocalStorage
from kgym.worker.context import StepContext
from kgym_builder.toolchains.archives import Archives
from kgym_builder.toolchains.toolchains import Toolchains


async def make(folder: Path, archives: str) -> None:
    """Make the image that has gcc-10; say which that is."""
    source = GitSource(url="https://git.example/linux.git", commit="v6.1")
    assignment = Assignment(
        step_id=1,
        job_id=1,
        number=0,
        attempt=1,
        lease=uuid.uuid4(),
        spec=SourceSpec(source=source),
        inputs={},
    )
    work = folder / "work"
    work.mkdir()
    run = StepContext(assignment, work, LocalStorage(folder / "storage"))
    with run.held:
        toolchain = await Toolchains(folder, Archives.read(archives)).get("gcc-10", run)
        print(toolchain.name, toolchain.number)


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1]), sys.argv[2]))
