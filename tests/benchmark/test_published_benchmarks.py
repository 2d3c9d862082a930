"""Published benchmarks: whole or absent, replaced at once, and believed in nothing."""

import hashlib
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kgym.api.jobs import Artifact
from kgym.bench import publication
from kgym.bench.attempt_record import AttemptRecord, Outcome, Overlap, Setup, Votes
from kgym.bench.bug_record import BugFacts, PublishedBug
from kgym.bench.dataset import About
from kgym.bench.publication import BenchmarkStore, Publication
from kgym.bench.published_benchmark import load
from kgym.errors import InfrastructureError, NotFound, UserError
from kgym.transport.artifact_storage import LocalStorage
from tests.refused import refused
from tests.transport.places import Place

pytestmark = pytest.mark.anyio

PLAIN, FEEDBACK = Setup(agent="a", model="m"), Setup(agent="a", model="m", feedback=True)


def bug(name: str) -> PublishedBug:
    facts = BugFacts(id=name, title="T", status="fixed", type="BUG", crash_class="BUG")
    return PublishedBug(facts=facts, diff="+fix\n")


def attempt(bug: str = "a", run: int = 1, setup: Setup = PLAIN, **known: Any) -> AttemptRecord:
    known = {"outcome": Outcome.PASS, "diff": f"+{bug}{run}\n", **known}
    return AttemptRecord.model_validate({"bug": bug, "run": run, "setup": setup, **known})


BUGS = [bug("a"), bug("b:1")]
ABOUT = About(name="b", description="d", bugs=2, sha256="ab" * 32)


async def published(
    store: BenchmarkStore, attempts: Sequence[AttemptRecord], name: str = "b"
) -> Publication:
    return await publication.publish(store, name, ABOUT, BUGS, attempts)


async def test_everything_published_is_read_back(place: Place) -> None:
    full = attempt(
        votes=Votes(yes=5, no=4),
        files=Overlap(common=1, all=2),
        clean=True,
        dollars=1.5,
        seconds=60,
        tokens=1 << 40,
    )
    attempts = [
        attempt("b:1", setup=FEEDBACK),
        attempt(run=2, outcome=Outcome.BAD, diff=None),
        full,
    ]
    index = await published(place.storage, attempts)
    assert (index.bugs, index.attempts, len(index.setups)) == (2, 3, 2)
    store = place.elsewhere()
    assert await publication.names(store) == ["b"]
    seen: list[int] = []
    benchmark = await load(store, "b", seen.append)
    assert (seen, benchmark.description, len(benchmark.table)) == ([1, 2, 3], "d", 3)
    assert await benchmark.bugs() == {"a": bug("a"), "b:1": bug("b:1")}
    assert await benchmark.bug("b:1") == bug("b:1")
    numbers = {setup: number for number, setup in benchmark.setups}
    for record in attempts:
        number = numbers[record.setup]
        assert await benchmark.attempt(record.bug, number, record.run) == record
    with pytest.raises(NotFound, match="no bug 'c'"):
        await benchmark.bug("c")
    for key in (("a", numbers[PLAIN], 3), ("c", 0, 1), ("a", 99, 1)):
        with refused("attempt_missing"):
            await benchmark.attempt(*key)


async def test_publishing_again_replaces_the_attempts(place: Place) -> None:
    first = await published(place.storage, [attempt(setup=FEEDBACK), attempt(run=2)])
    added = Setup(agent="a")
    second = await published(place.storage, [attempt(run=3), attempt(setup=added)])
    benchmark = await load(place.storage, "b")
    assert benchmark.version == second.version != first.version
    assert sorted(benchmark.table.run.tolist()) == [1, 3]
    # A setup keeps its number: addresses of comparisons hold it.
    assert second.setups == [*first.setups, added]
    assert not [key for key in place.sizes() if first.version in key]


async def test_readers_see_the_old_benchmark_until_the_new_one_is_whole(tmp_path: Path) -> None:
    class Killed(LocalStorage):
        """A publisher that is killed before its last file."""

        async def put(self, key: str, path: Path, **options: Any) -> Artifact:
            if key.endswith(publication.INDEX):
                raise InfrastructureError("killed", "here")
            return await super().put(key, path, **options)

    store = LocalStorage(tmp_path)
    with pytest.raises(InfrastructureError, match="here"):
        await published(Killed(tmp_path), [attempt()])
    with refused("benchmark_missing"):
        await load(store, "b")
    await published(store, [attempt()])
    with pytest.raises(InfrastructureError, match="here"):
        await published(Killed(tmp_path), [attempt(run=2)])
    assert (await load(store, "b")).table.run.tolist() == [1]


async def test_files_of_killed_publishes_go_after_a_day(place: Place) -> None:
    await published(place.storage, [attempt()])
    for name, age in (("e" * 32, 90_000), ("f" * 32, 3600)):
        key = f"b/{name}/{publication.BUG_FILE}"
        await place.storage.put(key, Path(__file__))
        place.age(key, age)
    await published(place.storage, [attempt()])
    left = {key.split("/")[1] for key in place.sizes()}
    assert "e" * 32 not in left
    assert "f" * 32 in left  # its publisher may be at work


async def test_a_reader_goes_on_with_the_version_that_replaces_the_one_it_reads(
    tmp_path: Path,
) -> None:
    class Slow(LocalStorage):
        """A reader that finds its benchmark replaced after it has read the index."""

        replaced = False

        def read(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes]:
            return self._read(key, start, stop)

        async def _read(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes]:
            if key.endswith(publication.ATTEMPT_FILE) and not self.replaced:
                self.replaced = True
                await published(LocalStorage(tmp_path), [attempt(run=2)])
            async for piece in super().read(key, start, stop):
                yield piece

    await published(LocalStorage(tmp_path), [attempt(run=1)])
    assert (await load(Slow(tmp_path), "b")).table.run.tolist() == [2]
    benchmark = await load(LocalStorage(tmp_path), "b")
    await published(LocalStorage(tmp_path), [attempt(run=3)])
    with refused("benchmark_replaced", match="reload the page"):
        await benchmark.attempt("a", 0, 2)


async def test_a_published_dataset_never_changes(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path)
    await published(store, [attempt()])
    other = ABOUT.model_copy(update={"sha256": "cd" * 32})
    with refused("benchmark_exists", match="another dataset"):
        await publication.publish(store, "b", other, [bug("c")], [])
    assert list((await load(store, "b")).facts) == ["a", "b:1"]


@pytest.mark.parametrize(
    ("attempts", "reason"),
    [
        ([attempt(), attempt("zz")], "unknown_bug"),
        ([attempt(), attempt(run=2), attempt()], "bad_attempts"),
        ([attempt(run=run) for run in (1, 2, 3)], "too_many_attempts"),
        ([attempt(), attempt(setup=FEEDBACK)], "too_many_setups"),
    ],
)
async def test_what_cannot_be_published_is_refused_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: list[AttemptRecord], reason: str
) -> None:
    monkeypatch.setattr(publication, "ATTEMPTS", 2)
    monkeypatch.setattr(publication, "SETUPS", 1)
    with refused(reason):
        await published(LocalStorage(tmp_path), attempts)
    assert await publication.names(LocalStorage(tmp_path)) == []


@pytest.mark.parametrize("name", ["..", "a/b", "", "/etc", "a" * 101, "a\n", ".git", "é"])
async def test_a_name_is_part_of_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="--name"):
        publication.checked_name(name)
    with pytest.raises(NotFound, match="no benchmark"):
        await publication.read_index(LocalStorage(tmp_path), name or "none")


def _line(name: str, value: object) -> bytes:
    return json.dumps({name: value}).encode() + b"\n"


@pytest.mark.attack
@pytest.mark.parametrize(
    ("file", "data", "fault"),
    [
        ("index", b"{}\n", "version"),
        ("index", b"[" * 100_000 + b"\n", "JSON"),
        ("index", b" " * (publication.INDEX_BYTES + 10), "JSON"),
        ("index", None, "cut off"),
        ("bugs", _line("facts", 1), "line 1"),
        ("bugs", b"\n\n\n", "line 1"),
        ("attempts", attempt("zz").model_dump_json().encode() + b"\n", "unknown bug zz"),
        ("attempts", attempt(setup=FEEDBACK).model_dump_json().encode() + b"\n", "unknown setup"),
        ("attempts", 2 * (attempt().model_dump_json().encode() + b"\n"), "more than 1 lines"),
        ("attempts", attempt().model_dump_json().encode(), "0 lines, not 1"),
        ("attempts", b"", "0 lines, not 1"),
        ("attempts", b"x" * (17 << 20), "too long"),
    ],
)
async def test_a_damaged_benchmark_is_an_error_and_no_other_s(
    tmp_path: Path, file: str, data: bytes | None, fault: str
) -> None:
    store = LocalStorage(tmp_path)
    index = await published(store, [attempt()])
    await published(store, [attempt()], "other")
    path = tmp_path / "b" / publication.INDEX
    if file == "index":
        path.write_bytes(path.read_bytes()[:-20] if data is None else data)
    else:
        assert data is not None
        part = publication.BUG_FILE if file == "bugs" else publication.ATTEMPT_FILE
        (tmp_path / "b" / index.version / part).write_bytes(data)
        # The writer is hostile: the index fits.
        stored = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        field = "bug_file" if file == "bugs" else "attempt_file"
        path.write_text(json.dumps(json.loads(path.read_text()) | {field: stored}) + "\n")
    with refused("benchmark_damaged", match=fault):
        await load(store, "b")
    assert len((await load(store, "other")).table) == 1
    # Publishing again repairs it.
    await published(store, [attempt()])
    assert len((await load(store, "b")).table) == 1


@pytest.mark.attack
@pytest.mark.parametrize("field", ["bugs", "attempts", "bug_file", "setups"])
async def test_the_size_of_a_benchmark_is_bounded(tmp_path: Path, field: str) -> None:
    store = LocalStorage(tmp_path)
    await published(store, [attempt()])
    path = tmp_path / "b" / publication.INDEX
    index = json.loads(path.read_text())
    too_much: dict[str, object] = {
        "bugs": 100_001,
        "attempts": publication.ATTEMPTS + 1,
        "bug_file": {"size": publication.ATTEMPT_BYTES + 1, "sha256": "ab" * 32},
        "setups": [{"agent": str(number)} for number in range(1001)],
    }
    path.write_text(json.dumps(index | {field: too_much[field]}) + "\n")
    with refused("benchmark_damaged", match=field):
        await load(store, "b")
