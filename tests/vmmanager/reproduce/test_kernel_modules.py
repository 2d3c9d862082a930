"""From a build's archive of modules to one that guests unpack."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from kgym.api.steps import Reproducer, ReproduceSpec, StepRef
from kgym.api.worker_calls import Input
from kgym.errors import InfrastructureError
from kgym.worker.context import StepContext
from kgym_vmmanager.reproduce.preparation import modules
from tests.conftest import NewRun
from tests.refused import refused
from tests.results import built

pytestmark = pytest.mark.anyio

RELEASE = "lib/modules/6.1.0"
HONEST = {
    f"{RELEASE}/kernel/lib/extra.ko": b"a module",
    f"{RELEASE}/kernel/lib/more.ko": b"another module",
    f"{RELEASE}/modules.dep": b"kernel/lib/extra.ko:\n",
}


async def step(new_run: NewRun, files: dict[str, bytes]) -> StepContext:
    spec = ReproduceSpec(build=StepRef(step=0), reproducer=Reproducer(text="int main;"))
    run = new_run(spec)
    path = run.folder / "built.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    stored = await run.storage.put("steps/0/modules.tar", path)
    run.assignment.inputs["build"] = Input(result=built(), artifacts=[stored])
    return run


async def test_guests_get_the_files_as_they_are(new_run: NewRun, tmp_path: Path) -> None:
    run = await step(new_run, HONEST)
    made = await modules(run, tmp_path)
    assert made is not None
    unpacked = tmp_path / "unpacked"
    (unpacked / "lib").mkdir(parents=True)
    argv = ["busybox", "cpio", "-i"]
    subprocess.run(argv, input=made.read_bytes(), cwd=unpacked, check=True, timeout=60)
    files = {
        str(path.relative_to(unpacked)): path.read_bytes()
        for path in unpacked.rglob("*")
        if path.is_file()
    }
    assert files == HONEST


@pytest.mark.attack
async def test_an_archive_with_a_bad_end_is_refused(new_run: NewRun, tmp_path: Path) -> None:
    run = await step(new_run, {**HONEST, "init": b"#!/bin/sh"})
    with refused("bad_modules", "init"):
        await modules(run, tmp_path)
    assert [path.name for path in tmp_path.glob("modules*")] == ["modules.tar"]


async def test_modules_without_a_loader_are_refused(new_run: NewRun, tmp_path: Path) -> None:
    run = await step(new_run, dict(list(HONEST.items())[:2]))
    with refused("no_modules_dep", kind=InfrastructureError):
        await modules(run, tmp_path)


async def test_a_kernel_without_modules_has_no_archive(new_run: NewRun, tmp_path: Path) -> None:
    run = new_run(ReproduceSpec(build=StepRef(step=0), reproducer=Reproducer(text="int main;")))
    run.assignment.inputs["build"] = Input(result=built(), artifacts=[])
    assert await modules(run, tmp_path) is None
