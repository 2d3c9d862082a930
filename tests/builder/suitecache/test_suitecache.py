"""SuiteCache: entries are made once for all, whole or absent, and the same however they come."""

import asyncio
import hashlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.states import State
from kgym.api.steps import BuildResult, BuildSpec, Edit, KernelConfig, Patch, StepKind
from kgym.host.squashfs import Way
from kgym.worker.context import StepContext
from kgym.worker.loop import Worker
from kgym_builder.build.build_step import Builder
from kgym_builder.kbuild.kbuild import Output
from kgym_builder.suitecache.compiled_trees import IMAGE, Entry
from kgym_scheduler.database.connection import upgrade
from tests.builder.conftest import suite_cache
from tests.conftest import NewRun
from tests.scheduler.parts import Clock, Platform

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


@dataclass(frozen=True, slots=True)
class Host:
    """Gives builders of hosts that share the storage and nothing else; `spec` is a build."""

    folder: Path
    new_run: NewRun
    spec: BuildSpec

    def __call__(self, name: str = "one", **settings: Any) -> Builder:
        return Builder(suite_cache(self.folder / name, **settings))


@pytest.fixture
def host(tmp_path: Path, new_run: NewRun, fake_build: BuildSpec) -> Host:
    return Host(tmp_path, new_run, fake_build)


def patched(spec: BuildSpec, number: int = 100) -> BuildSpec:
    edit = Edit(
        file="kernel/watch_queue.c",
        original="type >= WATCH_TYPE__NR",
        replacement=f"type >= {number}",
    )
    return spec.model_copy(update={"patches": [Patch(edits=[edit])]})


def fresh(spec: BuildSpec) -> BuildSpec:
    return spec.model_copy(update={"cache": "fresh"})


def hashes(run: StepContext) -> dict[str, str]:
    return {
        artifact.name: artifact.sha256 for artifact in run.artifacts if artifact.name != "build.log"
    }


def image(folder: Path) -> Path:
    (file,) = folder.rglob(IMAGE)
    return file


def log(run: StepContext) -> str:
    return (run.folder / "step.log").read_text()


async def test_requests_that_come_to_the_same_config_share_an_entry(host: Host) -> None:
    other = KernelConfig(full="CONFIG_BASE=y\n")
    first = await host()(host.new_run(host.spec))
    second = await host()(host.new_run(host.spec.model_copy(update={"config": other})))
    assert (first.tree, second.tree_cached) == (second.tree, True)


async def test_another_host_needs_no_source(host: Host, tmp_path: Path) -> None:
    await host()(host.new_run(host.spec))
    run = host.new_run(patched(host.spec))
    result = await host("two")(run)
    assert result.tree_cached
    assert result.objects_compiled == 1
    assert "fetched the entry from storage" in log(run)
    assert not (tmp_path / "two" / "sources").exists()


async def test_workers_of_a_host_that_want_the_same_image_fetch_it_once(host: Host) -> None:
    await host()(host.new_run(host.spec))
    runs = [host.new_run(patched(host.spec, number)) for number in range(3)]
    await asyncio.gather(*(host("two")(run) for run in runs))
    assert sum("fetched the entry from storage" in log(run) for run in runs) == 1


@pytest.mark.parametrize("damage", ["truncate", "overwrite"])
async def test_a_damaged_image_is_fetched_again(host: Host, tmp_path: Path, damage: str) -> None:
    worker = host()
    await worker(host.new_run(host.spec))
    before = image(tmp_path / "one").read_bytes()
    with image(tmp_path / "one").open("r+b") as file:
        file.truncate(1000) if damage == "truncate" else file.write(b"\0" * 96)
    run = host.new_run(patched(host.spec))
    assert (await worker(run)).tree_cached
    assert "fetched the entry from storage" in log(run)
    assert image(tmp_path / "one").read_bytes() == before


async def test_a_damaged_image_is_built_again(host: Host, tmp_path: Path) -> None:
    await host()(host.new_run(host.spec))
    with image(tmp_path / "storage").open("r+b") as file:
        file.write(b"\0" * 96)
    run = host.new_run(patched(host.spec))
    assert not (await host("two")(run)).tree_cached
    assert "the stored entry is damaged" in log(run)
    assert (await host("three")(host.new_run(fresh(host.spec)))).tree_cached


async def test_a_doubtful_image_is_checked(host: Host, tmp_path: Path) -> None:
    suite = suite_cache(tmp_path / "one")

    async def taken(run: StepContext) -> Entry:
        identity = await suite.identify(host.spec, run)
        return await suite.take(host.spec, identity, run, Output(run.folder / "build.log"))

    run = host.new_run(host.spec)
    with run.held:
        entry = await taken(run)
        entry.doubt()
    (tmp_path / "one" / "suitecache" / f".{entry.identified.identity}.seal").write_text("[]")
    with image(tmp_path / "one").open("r+b") as file:
        file.write(b"\0" * 96)
    run = host.new_run(host.spec)
    await taken(run)
    assert "fetched the entry from storage" in log(run)


@pytest.mark.parametrize(
    ("ways", "line"),
    [
        (("mount", "squashfuse"), "mounted by"),
        (("squashfuse",), "mounted by squashfuse"),
        ((), "unpacked"),
    ],
)
async def test_the_way_does_not_matter(host: Host, ways: tuple[Way, ...], line: str) -> None:
    """The kernel is the same however the tree comes, and the log tells the way."""
    if "squashfuse" in ways[:1] and shutil.which("squashfuse") is None:
        pytest.skip("squashfuse is not installed")
    first, second = host.new_run(host.spec), host.new_run(fresh(patched(host.spec)))
    await host()(host.new_run(patched(host.spec)))
    await host("two", ways=ways)(first)
    result = await host("two", ways=ways)(second)
    assert result.objects_compiled == 1
    assert line in log(second)
    third = host.new_run(fresh(patched(host.spec)))
    await host()(third)
    assert hashes(second) == hashes(third)


async def test_a_host_keeps_to_its_budget(host: Host, tmp_path: Path) -> None:
    builder = host(most=1)
    run = host.new_run(host.spec)
    with run.held:
        first = await builder(run)
    config = KernelConfig(full="CONFIG_BASE=y\nCONFIG_EXTRA=y\n")
    second = await builder(host.new_run(host.spec.model_copy(update={"config": config})))
    assert not (tmp_path / "one" / "suitecache" / first.tree).exists()
    assert (tmp_path / "one" / "suitecache" / second.tree).exists()


async def test_hosts_build_it_once(host: Host, fake_build: BuildSpec, tmp_path: Path) -> None:
    """Hosts that need the same entry at once build it once."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'kgym.db'}"
    await upgrade(url)
    platform = Platform(url, tmp_path, Clock())
    async with platform.scheduler() as scheduler:
        workers = [
            Worker(
                scheduler, platform.bus, platform.storage, {StepKind.BUILD: host(name)}, place
            ).serve()
            for name in ("one", "two", "three")
            if (place := tmp_path / "work" / name)
        ]
        tasks = [asyncio.create_task(work) for work in workers]
        jobs = [
            (await scheduler.submit(JobRequest(steps=[patched(fake_build, number)])))[0].id
            for number in range(3)
        ]
        end = time.monotonic() + 60
        while any([await scheduler.store.state(job) is not State.SUCCEEDED for job in jobs]):
            assert time.monotonic() < end
            await asyncio.sleep(0.1)
        results = [(await scheduler.job(job)).steps[0].result for job in jobs]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    built = [isinstance(result, BuildResult) and not result.tree_cached for result in results]
    assert sorted(built) == [False, False, True]


async def test_the_same_build_is_answered_from_the_first_also_elsewhere(host: Host) -> None:
    first, second = host.new_run(patched(host.spec)), host.new_run(patched(host.spec))
    done = await host()(first)
    known = await host("two")(second)
    assert (done.memoised, known.memoised) == (False, True)
    assert hashes(first) == hashes(second)
    assert {artifact.key for artifact in first.artifacts}.isdisjoint(
        artifact.key for artifact in second.artifacts
    )


async def test_an_answer_outlives_the_artifacts_of_the_first_job(host: Host) -> None:
    runs = [host.new_run(patched(host.spec)) for _ in range(3)]
    await host()(runs[0])
    await host()(runs[1])
    await runs[0].storage.remove(runs[0].key("x").removesuffix("/x"))
    assert (await host()(runs[2])).memoised
    for artifact in runs[2].artifacts:
        parts = runs[2].storage.read(artifact.key, 0, artifact.size)
        assert b"".join([part async for part in parts])


async def test_a_build_whose_artifacts_are_gone_is_done_again(host: Host) -> None:
    first = host.new_run(patched(host.spec))
    await host()(first)
    await first.storage.remove("steps")
    again = host.new_run(patched(host.spec))
    assert not (await host()(again)).memoised
    assert {artifact.name for artifact in again.artifacts} == {
        artifact.name for artifact in first.artifacts
    }


@pytest.mark.parametrize("cache", ["fresh", "refresh"])
async def test_a_build_that_is_wanted_fresh_is_done(host: Host, cache: str) -> None:
    await host()(host.new_run(patched(host.spec)))
    spec = patched(host.spec).model_copy(update={"cache": cache})
    result = await host()(host.new_run(spec))
    assert not result.memoised
    assert result.tree_cached == (cache == "fresh")
    assert (await host()(host.new_run(patched(host.spec)))).memoised


async def test_patched_kernels_are_kept_as_differences(host: Host) -> None:
    specs = (host.spec, patched(host.spec), patched(host.spec))
    runs = [host.new_run(spec) for spec in specs]
    for run in runs:
        await host()(run)
    named = [{each.name: each.key.partition("~")[2] for each in run.artifacts} for run in runs]
    assert named[0]["vmlinux"]
    assert await runs[0].storage.has_base(named[0]["vmlinux"])
    assert named[1]["vmlinux"] == named[2]["vmlinux"] == named[0]["vmlinux"]
    for run in runs:
        for artifact in run.artifacts:
            parts = run.storage.read(artifact.key, 0, artifact.size)
            data = b"".join([part async for part in parts])
            assert hashlib.sha256(data).hexdigest() == artifact.sha256
