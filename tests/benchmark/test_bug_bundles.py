"""Bugs of datasets as they are tried: by bundles, on the parent of their fix, or ported."""

from pathlib import Path

import pytest

from kgym.api.steps import GitSource
from kgym.bench import dataset_files
from kgym.bench.bug_bundles import read_bundles, write_bundles
from kgym.bench.bug_choice import BugChoice
from kgym.bench.bug_record import BugRecord, Cause, Commit, Crash, FoundText, Function, Validation
from kgym.bench.dataset import Dataset
from kgym.bench.tried_bug import tried_bug
from kgym.bugs import bundle
from kgym.errors import KgymError
from kgym_benchmark.campaign.subjects import bundled
from kgym_benchmark.judge.question import question
from tests.benchmark.test_dataset import KBENCHSYZ, bug, made, needs_kbenchsyz
from tests.conftest import ROOT
from tests.refused import refused
from tests.tables import json_rows

SYZ = 'r0 = open(&(0x7f0000000000)="2f00", 0x0, 0x0)\n'


def whole(**changed: object) -> BugRecord:
    """Return a bug of which everything is known."""
    (record,) = made(bug()).bugs
    crash = record.crashes[0].model_copy(
        update={
            "config": FoundText(text="CONFIG_NET=y\n"),
            "syz_reproducer": FoundText(text=SYZ),
            "syzkaller_commit": "f" * 40,
        }
    )
    return record.model_copy(update={"crashes": [crash], **changed})


def test_the_shipped_bundles_are_a_dataset_whose_bugs_are_tried_as_they_are() -> None:
    shipped = read_bundles(ROOT / "configs" / "bugs")
    assert len(shipped) == 8
    assert all(bug.fixed and bug.subsystems for bug in shipped.bugs)
    assert all(tried_bug(bug) == bundle.load(bug.id) for bug in shipped.bugs)
    # Their fixes are edits; a judge of patches and readers of a page get them as diffs.
    campaign_bugs = [bundled(bug.id, bundle.load(bug.id)).record for bug in shipped.bugs]
    for record in (*shipped.bugs, *campaign_bugs):
        assert record.patch is not None
        assert record.patch.commits[0].id is not None, record.id
        assert question(record, "+x", vote=0, blind=False) is not None, record.id
    reference = shipped.get("watch-queue-filter").patch
    assert reference is not None
    assert reference.commits[0].title == "watch_queue: Fix filter limit check"
    assert "\n+\t\tif (tf[i].type >= WATCH_TYPE__NR)\n" in (reference.diff or "")
    known = shipped.get("watch-queue-filter")
    assert known.crashes[0].syzkaller_commit == "1d849ab4d892af13a249f75628790b47e42b7c74"
    assert tried_bug(known, kernel="linux-5.10").name == "watch-queue-filter@linux-5.10"


def test_a_bundle_of_ones_own_is_known_by_its_path(tmp_path: Path) -> None:
    record = whole()
    write_bundles(Dataset.of("some", [record]), tmp_path / "own")
    (own,) = read_bundles(tmp_path / "own").bugs
    assert own.bundle == str(tmp_path / "own" / record.id)
    assert own.status == "fixed"
    assert own.crashes[0].commit == "d" * 40
    assert own.fixed is not None
    assert (own.fixed, own.subsystems) == (record.fixed, record.subsystems)


def test_a_bug_is_tried_on_the_parent_of_its_fix_and_written_as_a_bundle(tmp_path: Path) -> None:
    record = whole()
    tried = tried_bug(record)
    assert tried.build.source == GitSource(url="https://k/linux.git", commit="d" * 40)
    assert [reproducer.kind for reproducer in tried.reproducers] == ["c", "syz"]
    assert tried.job(tried.fix).steps
    crashed = tried_bug(record, "crash").build.source
    assert crashed == GitSource(url="https://k/linux.git", commit="c" * 40)
    write_bundles(Dataset.of("some", [record]), tmp_path / "b")
    read = bundle.load(str(tmp_path / "b" / record.id))
    assert (read.build, read.reproducers) == (tried.build, tried.reproducers)
    assert (read.fix and read.fix.diff) == (tried.fix and tried.fix.diff)


def test_the_commit_that_brought_a_bug_is_in_its_bundle(tmp_path: Path) -> None:
    functions = [Function(file="kernel/f.c", name="f"), Function(file="a.c", name="g" * 300)]
    known = Cause(commit=Commit(id="c" * 40, title="f: be bad"), functions=functions)
    record = whole(cause=known)
    write_bundles(Dataset.of("some", [record]), tmp_path / "b")
    tried, read = tried_bug(record), bundle.load(str(tmp_path / "b" / record.id))
    assert tried.cause is not None
    assert read.cause == tried.cause
    (function,) = tried.cause.functions  # the other is no name in C
    assert function.name == "f"
    (own,) = read_bundles(tmp_path / "b").bugs
    assert own.cause == known.model_copy(update={"functions": functions[:1]})
    assert tried_bug(whole(cause=None)).cause is None


def test_a_parent_that_nobody_has_written_down_is_the_one_of_the_fix() -> None:
    record = whole()
    assert record.patch is not None
    unknown = record.model_copy(update={"patch": record.patch.model_copy(update={"parent": None})})
    source = tried_bug(unknown).build.source
    assert isinstance(source, GitSource)
    assert source.commit == "b" * 40 + "^"


@pytest.mark.parametrize(
    ("changed", "lacking"),
    [
        ({"crashes": []}, "program"),
        ({"crashes": [Crash(c_reproducer=FoundText(text="int x;"))]}, "config"),
        ({"patch": None}, "commit"),
    ],
)
def test_what_is_missing_is_named(changed: dict[str, object], lacking: str) -> None:
    with refused("not_triable") as caught:
        tried_bug(whole(**changed))
    assert lacking in caught.value.message


def test_a_compiler_that_nobody_knows_is_refused() -> None:
    record = whole()
    crash = record.crashes[0].model_copy(update={"compiler": "cc 1.0"})
    with pytest.raises(KgymError) as caught:
        tried_bug(record.model_copy(update={"crashes": [crash]}))
    assert (caught.value.reason, "compiler" in caught.value.message) == ("not_triable", True)


def test_racy_bugs_are_chosen() -> None:
    seen = {"kernel": "k", "runs": 5, "instances": 4, "seconds": 60}
    racy = whole(id="r", validation=Validation(crashed=3, **seen))
    steady = whole(id="s", validation=Validation(crashed=5, **seen))
    bugs = Dataset.of("some", [racy, steady, whole(id="t")])
    assert [bug.id for bug in BugChoice(racy=True).of(bugs, "x").bugs] == ["r"]
    assert [bug.id for bug in BugChoice(racy=False).of(bugs, "x").bugs] == ["s"]


@needs_kbenchsyz
def test_bugs_of_kbenchsyz_come_back_with_their_programs() -> None:
    programs = KBENCHSYZ.parent / "kbenchsyz_repros"
    read = dataset_files.read_kbenchsyz(KBENCHSYZ, programs=programs)
    having = [bug for bug in read.bugs if bug.crashes[0].c_reproducer.text]
    assert len(having) == 44
    assert tried_bug(having[0], kernel="campaign-6.1").build.patches[0].name == "regress"


@pytest.mark.parametrize(("name", "text"), json_rows(__file__, "lists.jsonl"))
def test_a_list_of_ids_chooses_bugs(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    first, second, third = (made(bug(id=letter * 40)).bugs[0] for letter in "aef")
    known = Dataset.of("all", [first.model_copy(update={"extid": "1" * 20}), second, third])
    assert [bug.id[0] for bug in dataset_files.read_list(tmp_path / name, known).bugs] == ["a", "e"]


@pytest.mark.parametrize(
    ("text", "reason"), [("no bugs\n", "bad_bug_data"), ("b" * 40, "no_such_bug")]
)
def test_a_list_that_names_no_known_bug_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with refused(reason):
        dataset_files.read_list(tmp_path / "list.txt", made(bug()))
