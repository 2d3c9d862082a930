"""Datasets and results on the hub: pushed, pulled, and pushed again; and a hub that deceives."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kgym.bench import attempt_files, dataset
from kgym.bench.attempt_record import AttemptRecord, Outcome, Setup
from kgym.bench.dataset import Dataset
from kgym_cli.bench import manifest
from tests.benchmark import hub_server
from tests.benchmark.hub_server import FakeHub
from tests.benchmark.test_dataset import bug, made
from tests.cli.conftest import Kgym
from tests.conftest import ROOT

PLACE = "owner/some"
PUSHED = ["dataset.json", "bugs.jsonl", "README.md", "attempts.jsonl", "manifest.json"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with hub_server.serving() as hub:
        monkeypatch.setenv("KGYM_HUB", hub.url)
        monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
        yield hub


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of two agents on two bugs."""
    folder = tmp_path / "results"
    made(bug(), bug(id="e" * 40)).save(folder)
    attempt_files.write(folder / attempt_files.NAME, list(attempts(1)))
    return folder


def attempts(runs: int) -> Iterator[AttemptRecord]:
    for setup in (Setup(agent="one|<b>"), Setup(agent="two", model="m")):
        for bug_id in ("a" * 40, "e" * 40):
            for run in range(1, runs + 1):
                outcome = Outcome.PASS if setup.model else Outcome.TRIGGER
                yield AttemptRecord(bug=bug_id, run=run, outcome=outcome, setup=setup, diff="+x\n")


def changed(kgym: Kgym, *words: object) -> Any:
    done = kgym("bench", *words, "--json")
    assert done.status == 0, done.err
    return done.json["changed"]


def refused(kgym: Kgym, reason: str, *words: object) -> str:
    """Return what a refused command tells people."""
    done = kgym("bench", *words, "--json")
    assert (done.status, done.json["reason"]) == (2, reason), done.err
    assert "Traceback" not in done.err
    return done.err


@pytest.mark.timeout(300)
def test_results_are_pushed_pulled_and_pushed_again(
    hub: FakeHub, kgym: Kgym, results: Path, tmp_path: Path
) -> None:
    hub.regular = 1700
    assert changed(kgym, "push", results, PLACE, "--private") == PUSHED
    there = hub.repositories[PLACE]
    first = there.head
    assert (there.private, "bugs.jsonl" in there.large, "dataset.json" in there.large) == (
        True,
        True,
        False,
    )
    assert sorted(hub.verified) == sorted(hub.storage)
    assert changed(kgym, "push", results, PLACE) == []
    assert there.head == first
    card = there.commits[first]["README.md"].decode()
    assert "2 bugs of the Linux kernel" in card
    assert "| two, m | 100% (" in card
    assert "one&#124;&#60;b&#62;" in card
    # Who pulls has the same, and changes nothing with it.
    copy = tmp_path / "deep" / "copy"
    assert changed(kgym, "pull", PLACE, copy) == PUSHED
    for name in PUSHED:
        assert (copy / name).read_bytes() == (results / name).read_bytes()
    assert manifest.differences(copy) == []
    assert changed(kgym, "push", copy, PLACE) == []
    # More attempts are another commit; the first one stays.
    attempt_files.write(copy / attempt_files.NAME, list(attempts(2)))
    assert changed(kgym, "push", copy, PLACE) == ["README.md", "attempts.jsonl", "manifest.json"]
    refused(kgym, "folder_in_use", "pull", PLACE, copy)
    changed(kgym, "pull", PLACE, tmp_path / "old", "--revision", first)
    old = tmp_path / "old" / attempt_files.NAME
    assert old.read_bytes() == (results / attempt_files.NAME).read_bytes()
    assert hub.leaked == []


def test_a_dataset_keeps_its_own_card_and_its_name(
    hub: FakeHub, kgym: Kgym, tmp_path: Path
) -> None:
    source, folder = ROOT / "configs" / "datasets" / "kgymsuite-1", tmp_path / "d"
    shutil.copytree(source, folder)
    assert changed(kgym, "push", folder, PLACE) == PUSHED[:3]
    card = hub.repositories[PLACE].commits[hub.repositories[PLACE].head]["README.md"]
    assert card == (source / "README.md").read_bytes()
    refused(kgym, "repository_in_use", "push", folder, PLACE, "--private")
    # A file of results that is not there any more goes, but a dataset does not replace results.
    (folder / "campaign.json").write_text("{}")
    tried = Setup(agent="a")
    record = AttemptRecord(
        bug=dataset.load(folder).bugs[0].id, run=1, outcome=Outcome.PASS, setup=tried
    )
    attempt_files.write(folder / attempt_files.NAME, [record])
    assert "campaign.json" in changed(kgym, "push", folder, PLACE)
    (folder / "campaign.json").unlink()
    assert "campaign.json" in changed(kgym, "push", folder, PLACE)
    assert "campaign.json" not in hub.repositories[PLACE].commits[hub.repositories[PLACE].head]
    (folder / attempt_files.NAME).unlink()
    (folder / manifest.NAME).unlink()
    refused(kgym, "repository_in_use", "push", folder, PLACE)
    Dataset.of("other", [made(bug()).bugs[0]]).save(tmp_path / "other")
    refused(kgym, "dataset_exists", "push", tmp_path / "other", PLACE)


def outside(files: list[dict[str, Any]]) -> None:
    files += [files[0] | {"path": path} for path in ("../evil", "/tmp/evil", "evil")]


def forged(hub: FakeHub, name: str, old: bytes, new: bytes) -> None:
    """Make another commit in which a file is not what was pushed."""
    there = hub.repositories[PLACE]
    files = there.commits[there.head]
    assert old in files[name]
    there.commit(files | {name: files[name].replace(old, new)})


def altering(name: str, change: Callable[[Any], object]) -> Callable[[FakeHub], None]:
    """Return what makes a hub change the answers of this name."""
    return lambda hub: setattr(hub, "alters", lambda what, it: what == name and change(it))


def uploading(**action: Any) -> Callable[[FakeHub], None]:
    """Return what makes a hub ask for other uploads."""
    return altering("batch", lambda it: it["objects"][0]["actions"]["upload"].update(action))


DECEITS: dict[str, tuple[Any, str]] = {
    "other bytes": (lambda hub: setattr(hub, "sends", lambda it: it[::-1]), "hub_damaged"),
    "more bytes": (lambda hub: setattr(hub, "sends", lambda it: it + b" " * 99), "hub_damaged"),
    "a huge file": (
        lambda hub: setattr(hub, "lists", lambda files: files[0].update(size=1 << 40)),
        "too_many_bytes",
    ),
    "no list": (
        lambda hub: setattr(hub, "lists", lambda files: files.append({"path": 7})),
        "hub_damaged",
    ),
    "another verdict": (
        lambda hub: forged(hub, "attempts.jsonl", b'"trigger"', b'"pass"'),
        "bad_results",
    ),
    "no commit": (altering("revision", lambda it: it.pop("sha")), "hub_damaged"),
    "another bug": (lambda hub: forged(hub, "bugs.jsonl", b"in f", b"in g"), "dataset_changed"),
}


@pytest.mark.attack
@pytest.mark.parametrize("deceit", list(DECEITS))
def test_what_a_hub_forges_is_not_taken(
    hub: FakeHub, kgym: Kgym, results: Path, tmp_path: Path, deceit: str
) -> None:
    changed(kgym, "push", results, PLACE)
    deceive, reason = DECEITS[deceit]
    deceive(hub)
    refused(kgym, reason, "pull", PLACE, tmp_path / "in" / "copy")
    assert list(tmp_path.glob("in/*")) == []


@pytest.mark.attack
@pytest.mark.parametrize(
    "deceive",
    [
        altering("commit", lambda it: it.pop("commitOid")),
        uploading(header={"X-É": "1"}),
        uploading(header={"Content-Length": "1"}),
        uploading(header={"X": "a\r\nb"}),
        *(uploading(href=url) for url in ("x", "http://[", "http://a..b/", "http://a:99999/")),
        *(
            uploading(href=url)
            for url in ("http://\u2100\ud7ff/", "file:///etc/passwd", "http://\0/")
        ),
    ],
)
def test_a_hub_that_asks_for_nonsense_gets_no_traceback(
    hub: FakeHub, kgym: Kgym, results: Path, deceive: Callable[[FakeHub], None]
) -> None:
    hub.regular = 0
    deceive(hub)
    done = kgym("bench", "push", results, PLACE, "--json")
    # Some names are only wrong for whoever resolves them.
    assert done.json["reason"] in {"hub_damaged", "hub_unreachable"}, done.err
    assert "Traceback" not in done.err


@pytest.mark.attack
def test_another_commit_than_the_named_one_is_not_taken(
    hub: FakeHub, kgym: Kgym, results: Path, tmp_path: Path
) -> None:
    changed(kgym, "push", results, PLACE)
    head = hub.repositories[PLACE].head
    first, *_ = hub.repositories[PLACE].commits
    altering("revision", lambda it: it.update(sha=head))(hub)
    refused(kgym, "hub_damaged", "pull", PLACE, tmp_path / "copy", "--revision", first)


@pytest.mark.attack
@pytest.mark.parametrize("name", ["README.md", "campaign.json", "manifest.json", ".README.md.part"])
def test_links_are_neither_pushed_nor_written_through(
    hub: FakeHub, kgym: Kgym, results: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "secret").write_text("secret")
    (results / name).symlink_to(tmp_path / "secret")
    if name in manifest.FILES or name == manifest.NAME:
        refused(kgym, "unsafe_file", "push", results, PLACE)
        assert hub.repositories == {}
    else:
        assert changed(kgym, "push", results, PLACE) == PUSHED
    assert (tmp_path / "secret").read_text() == "secret"


@pytest.mark.attack
@pytest.mark.parametrize("token", ["two words", "hf_\nx", "hf_é"])
def test_a_token_is_never_printed(
    hub: FakeHub, kgym: Kgym, results: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    assert token not in refused(kgym, "hub_refused", "push", results, PLACE)
    monkeypatch.setenv("HF_TOKEN", f" {hub_server.TOKEN}\n")
    assert changed(kgym, "push", results, PLACE) == PUSHED


@pytest.mark.attack
def test_a_path_that_leads_out_is_not_written(
    hub: FakeHub, kgym: Kgym, results: Path, tmp_path: Path
) -> None:
    changed(kgym, "push", results, PLACE)
    hub.lists = outside
    assert changed(kgym, "pull", PLACE, tmp_path / "in" / "copy") == PUSHED
    assert not list(tmp_path.rglob("evil"))


def test_who_may_not_or_cannot_is_told(
    hub: FakeHub, kgym: Kgym, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(kgym, "no_repository", "pull", PLACE, tmp_path / "copy")
    monkeypatch.setenv("HF_TOKEN", "another")
    assert "HF_TOKEN" in refused(kgym, "hub_refused", "push", results, PLACE)
    monkeypatch.setenv("KGYM_HUB", "http://127.0.0.1:1")
    unreachable = kgym("bench", "push", results, PLACE, "--json")
    assert (unreachable.status, unreachable.json["reason"]) == (3, "hub_unreachable")
