"""Where a step's root disk comes from: a file of the submitter's, or an earlier step."""

import contextlib
import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import Reproducer, ReproduceSpec, RootImage, StepRef, UsedRoot, Verdict, VmShape
from kgym.api.worker_calls import Input
from kgym.bugs import bundle
from kgym.worker.context import StepContext
from kgym_vmmanager.guest.guest_image import guest_image
from kgym_vmmanager.reproduce.preparation import Preparation, keep_bundle, prepare
from kgym_vmmanager.vm.accelerator import Accelerator, Probed
from kgym_vmmanager.vm.disk_room import DiskRoom
from kgym_vmmanager.vm.qemu_provider import LIMITS, QemuHost
from tests.conftest import NewRun
from tests.refused import refused
from tests.results import built, ran
from tests.tables import json_rows

pytestmark = pytest.mark.anyio

NewHost = Callable[[str], Path]
HOST = QemuHost(Probed(accelerator=Accelerator.TCG), LIMITS, DiskRoom())
EARLIER = RootImage(step=StepRef(job=7, step=1))
CONFIG = "".join(
    f"CONFIG_{name}=y\n"
    for name in ("BLK_DEV_INITRD", "DEVTMPFS", "EXT4_FS", "VIRTIO_BLK", "VIRTIO_PCI")
)


async def take(run: StepContext, url: str, digest: str, target: Path, most: int) -> None:
    del run, digest, most
    shutil.copyfile(url, target)


async def take_nothing(run: StepContext, url: str, digest: str, target: Path, most: int) -> None:
    raise AssertionError(url)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def image(tmp_path: Path, form: str = "raw") -> RootImage:
    """A small ext4 file system of this format."""
    path = tmp_path / "disk.img"
    subprocess.run(["mkfs.ext4", "-q", "-F", path, "8M"], check=True, timeout=60)
    if form == "qcow2":
        packed = tmp_path / "disk.qcow2"
        argv = ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", path, packed]
        subprocess.run(argv, check=True, timeout=60)
        path = packed
    fields = {"url": str(path), "sha256": digest(path), "format": form}
    return RootImage.model_validate(fields)


async def step(new_run: NewRun, tmp_path: Path, root: RootImage, **more: Any) -> StepContext:
    program = Reproducer(text="int main(void) { return 0; }")
    vm = VmShape(root=root)
    run = new_run(ReproduceSpec(build=StepRef(step=0), reproducer=program, vm=vm, **more))
    kept = []
    for name, text in (("bzImage", "a kernel"), ("config", CONFIG)):
        (tmp_path / name).write_text(text)
        kept.append(await run.storage.put(f"steps/0/{name}", tmp_path / name))
    run.assignment.inputs["build"] = Input(result=built(), artifacts=kept)
    return run


def follow(run: StepContext, before: StepContext, used: UsedRoot) -> None:
    """Hand the step what an earlier one has left, whose guests started from this root."""
    result = ran(Verdict.NO_CRASH, root=used)
    run.assignment.inputs["root"] = Input(result=result, artifacts=before.artifacts)


@pytest.fixture
async def hosts(cache: Path, tmp_path: Path) -> NewHost:
    """Make the cache of a host that has the guest image, and no disk."""
    image = await guest_image(cache)

    def make(name: str) -> Path:
        shutil.copytree(image.folder.parent, tmp_path / name / "guest")
        return tmp_path / name

    return make


async def prepared(run: StepContext, cache: Path, fetch: Any = take_nothing) -> Preparation:
    return await prepare(run, cache, HOST, None, fetch)


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["raw", "qcow2"])
@pytest.mark.parametrize("bundle", ["on_demand", "whole", "small"])
async def test_a_step_starts_from_the_very_disk_of_an_earlier_one(
    new_run: NewRun, hosts: NewHost, tmp_path: Path, form: str, bundle: str
) -> None:
    root = image(tmp_path, form)
    first = await step(new_run, tmp_path, root, bundle=bundle)
    before = await prepared(first, hosts("one"), take)
    await keep_bundle(first, before)
    assert before.plan.disk is not None
    used = before.plan.disk.used
    assert (used.kind, used.format, used.sha256) == ("image", form, root.sha256)
    for number in range(2):  # of the step, and of one that has it from there
        run = await step(new_run, tmp_path, EARLIER)
        follow(run, first, used)
        again = await prepared(run, hosts(f"other-{number}"))  # a host that has nothing yet
        await keep_bundle(run, again)
        assert again.plan.disk is not None
        assert again.plan.disk.used == used
        assert again.plan.disk.size == 8 << 20
        assert digest(again.plan.disk.path) == root.sha256
        first = run


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("bundle", "change", "words"),
    [
        ("none", {}, "left none: its `bundle` is `none`"),
        ("on_demand", {"sha256": "0" * 64}, "damaged"),
        ("on_demand", {"format": None}, "no disk: an initramfs"),
    ],
)
async def test_an_earlier_step_without_the_disk_is_refused(
    new_run: NewRun, hosts: NewHost, tmp_path: Path, bundle: str, change: dict[str, Any], words: str
) -> None:
    first = await step(new_run, tmp_path, image(tmp_path), bundle=bundle)
    before = await prepared(first, hosts("one"), take)
    await keep_bundle(first, before)
    assert before.plan.disk is not None
    run = await step(new_run, tmp_path, EARLIER)
    follow(run, first, before.plan.disk.used.model_copy(update=change))
    with refused("bad_root_image", words):
        await prepared(run, hosts("other"))


@pytest.mark.thorough
@pytest.mark.attack
async def test_a_damaged_image_is_refused(new_run: NewRun, hosts: NewHost, tmp_path: Path) -> None:
    root = image(tmp_path, "qcow2")
    path = Path(str(root.url))
    path.write_bytes(path.read_bytes()[:70_000])
    root = root.model_copy(update={"sha256": digest(path)})
    here = hosts("cache")
    for _ in range(2):
        run = await step(new_run, tmp_path, root)
        with refused("bad_root_image", "qemu-img check says"):
            await prepared(run, here, take)
    assert not list((here / "roots").rglob("disk"))


@pytest.mark.thorough
async def test_kernels_without_disks(new_run: NewRun, hosts: NewHost, tmp_path: Path) -> None:
    """A kernel that cannot start from a disk is refused."""
    run = await step(new_run, tmp_path, image(tmp_path))
    (tmp_path / "config").write_text(CONFIG.replace("CONFIG_EXT4_FS=y", "CONFIG_EXT4_FS=m"))
    kept = await run.storage.put("steps/0/config", tmp_path / "config")
    run.assignment.inputs["build"] = Input(result=built(), artifacts=[kept])
    with refused("config_lacks", r"EXT4_FS=y \(it is m\)"):
        await prepared(run, hosts("cache"), take)


@pytest.mark.parametrize(("ref", "why"), json_rows(__file__, "bad_roots.jsonl"))
def test_a_job_names_an_earlier_step_that_reproduces(ref: dict[str, Any], why: str | None) -> None:
    bug = bundle.load("watch-queue-filter")
    assert bug.fix is not None
    steps = [step.model_dump(mode="json") for step in bug.on_root("disk").job(bug.fix).steps]
    steps[3]["vm"]["root"] = {"step": ref}
    with pytest.raises(ValueError, match=why) if why else contextlib.nullcontext():
        job = JobRequest.model_validate({"steps": steps})
        assert "root" in {reference.name for reference in job.steps[3].inputs()}
