"""The crawler: what it reads of syzbot, cgit and lore, how politely; and what faults do to it."""

import contextlib
import fcntl
import gzip
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgym.bench import dataset, dataset_files, syzbot_data
from kgym.bench.bug_record import BugRecord, Commit, DeveloperPatch, Function
from kgym.errors import InfrastructureError, KgymError
from kgym_benchmark.crawler import html_tables, syzbot_pages, watch
from kgym_benchmark.crawler.fetcher import Fetcher
from kgym_benchmark.crawler.fix_commits import GitSites
from kgym_benchmark.crawler.fix_commits import fixed as fixed_by
from kgym_benchmark.crawler.watch import Sites, Visit, WatchOptions, visit
from tests.benchmark.syzbot_server import DIFF, PARENT, Fault, Syzbot, serving
from tests.benchmark.test_dataset import KBENCHSYZ, bug, needs_kbenchsyz
from tests.cli.conftest import Kgym
from tests.refused import refused
from tests.tables import json_rows

pytestmark = pytest.mark.thorough

LIST = "/upstream/fixed?json=1"


def fixed(letter: str, **changed: object) -> BugRecord:
    """Return a fixed bug as syzbot tells of it: links, and the fix's id."""
    fields = bug(
        id=letter * 40,
        status="fixed",
        discussions=["https://lore.kernel.org/all/00000000@google.com/T/"],
        **{"fix-commits": [{"title": "net: fix f", "hash": "b" * 40, "repo": "git://k/l.git"}]},
        **changed,
    )
    for name in ("patch", "patch_modified_files", "patch_commit_date", "parent_of_fix_commit"):
        fields.pop(name)
    return syzbot_data.read(fields, "here", extid=letter * 20)


class Watching:
    """Visits to a server, without pauses."""

    def __init__(self, syzbot: Syzbot, folder: Path) -> None:
        self.syzbot = syzbot
        self.folder = folder
        self.waits: list[float] = []

    def visit(self, lately: float = 0, pause: float = 0, **options: object) -> Visit:
        """Look once."""
        url = self.syzbot.url
        sites = Sites(url, "upstream", url, GitSites(url))
        fetcher = Fetcher(
            self.folder / "pages", sites.all, pause=pause, lately=lately, sleep=self.waits.append
        )
        try:
            return visit(self.folder, sites, fetcher, WatchOptions(**options))  # type: ignore[arg-type]
        finally:
            fetcher.close()

    @property
    def bugs(self) -> dict[str, BugRecord]:
        """The records that are kept, by the first letters of their ids."""
        files = (self.folder / "bugs").glob("*.json")
        read = [BugRecord.model_validate_json(file.read_bytes()) for file in files]
        return {bug.id[0]: bug for bug in read}


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Watching]:
    syzbot = Syzbot([fixed("a"), fixed("e")])
    with serving(syzbot):
        yield Watching(syzbot, tmp_path / "watch")


def test_a_bug_is_read_with_its_fix_its_texts_and_its_discussion(watching: Watching) -> None:
    visit = watching.visit()
    assert (visit.listed, visit.new, visit.failed) == (2, 2, {})
    bug = watching.bugs["a"]
    assert bug.extid == "a" * 20
    assert bug.reported == datetime(2022, 9, 2, 10, 11, 12, tzinfo=UTC)
    assert bug.fixed == datetime(2022, 9, 20, 12, 20, 17, tzinfo=UTC)
    assert bug.crashes[0].config.text == "the KernelConfig\n"
    assert bug.patch is not None
    assert (bug.patch.parent, bug.patch.diff, bug.patch.files) == (PARENT, DIFF, ["net/f.c"])
    assert bug.patch.message == "net: fix f\n\nIt was wrong."
    assert watching.bugs["e"].extid == "e" * 20  # of its page
    assert visit.folder is not None
    assert len(dataset.load(visit.folder)) == 2
    assert b"one@example.org" in (watching.folder / "threads" / bug.id / "0.mbox").read_bytes()


def test_to_look_again_costs_the_site_nothing_and_changes_nothing(watching: Watching) -> None:
    first = watching.visit()
    again = watching.visit()
    assert (again.unchanged, again.new, again.changed) == (2, 0, 0)
    assert watching.syzbot.not_modified == sum(watching.syzbot.asked.values()) / 2
    assert again.folder == first.folder
    assert watching.visit(lately=3600).requests == 0


def test_a_bug_that_changes_is_read_anew_and_the_old_dataset_stays(watching: Watching) -> None:
    first = watching.visit()
    watching.syzbot.bugs[0] = fixed("a", title="another title")
    again = watching.visit()
    assert (again.changed, again.unchanged) == (1, 1)
    assert watching.bugs["a"].title == "another title"
    assert first.folder is not None
    assert first.folder != again.folder
    assert dataset.load(first.folder).get("aaaa").title != "another title"


def test_without_a_discussion_the_list_says_when_it_was_reported_once(watching: Watching) -> None:
    watching.syzbot.bugs = [fixed("a").model_copy(update={"discussions": []})]
    watching.visit()
    reported = watching.bugs["a"].reported
    assert reported is not None
    assert abs(datetime.now(UTC) - reported - timedelta(days=10)) < timedelta(minutes=5)
    time.sleep(0.01)
    assert watching.visit().unchanged == 1
    assert watching.bugs["a"].reported == reported


def test_requests_to_a_site_are_a_pause_apart(watching: Watching) -> None:
    visit = watching.visit(pause=5)
    assert len(watching.waits) == visit.requests - 1
    assert min(watching.waits) > 4


@pytest.mark.parametrize(
    ("fault", "waited"),
    [
        (Fault(429, headers={"Retry_After": "7"}), 7.0),
        (Fault(503, headers={"Retry_After": "9"}), 9.0),
        (Fault(503), 0.0),
        (Fault(cut=True), 0.0),
    ],
)
def test_a_site_that_is_busy_is_asked_again_when_it_says(
    watching: Watching, fault: Fault, waited: float
) -> None:
    watching.syzbot.faults[LIST] = [fault]
    assert watching.visit().new == 2
    assert max(watching.waits) == waited
    assert watching.syzbot.asked[LIST] == 2


def test_a_date_is_understood_as_the_time_to_come_again(watching: Watching) -> None:
    then = datetime.now(UTC) + timedelta(seconds=100)
    date = f"{then:%a, %d %b %Y %H:%M:%S} GMT"
    watching.syzbot.faults[LIST] = [Fault(503, headers={"Retry_After": date})]
    watching.visit()
    assert 90 < max(watching.waits) < 101


@pytest.mark.parametrize(
    "faults", [[Fault(503)] * 5, [Fault(503, headers={"Retry_After": "90000"})], [Fault(403)]]
)
def test_a_site_that_does_not_answer_ends_the_visit_which_goes_on_later(
    watching: Watching, faults: list[Fault]
) -> None:
    watching.syzbot.faults["/bug?id=" + "e" * 40 + "&json=1"] = list(faults)
    with refused("site_unreachable"):
        watching.visit()
    assert set(watching.bugs) == {"a"}
    before = watching.syzbot.asked.copy()
    visit = watching.visit(lately=3600)
    assert (visit.new, visit.unchanged) == (1, 1)
    assert watching.syzbot.asked[LIST] == before[LIST]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (LIST, b"<html>moved</html>"),
        (LIST, b'{"version": 2, "items": []}'),
        (LIST, b'{"Bugs": [{"title": "x", "link": "/elsewhere/1"}]}'),
        (LIST, b'{"Bugs": [{"title": "x", "link": "/bug?id=../../etc"}]}'),
        ("/upstream/fixed", b"<table><tr><th>Name</th></tr><tr><td>x</td></tr></table>"),
        ("/upstream/fixed", b"\xff" * 1000),
    ],
)
def test_a_changed_layout_is_said_and_nothing_is_lost(
    watching: Watching, path: str, body: bytes
) -> None:
    watching.visit()
    kept = {file.name: file.read_bytes() for file in (watching.folder / "bugs").iterdir()}
    watching.syzbot.faults[path] = [Fault(body=body)]
    with refused("syzbot_layout"):
        watching.visit()
    assert {file.name: file.read_bytes() for file in (watching.folder / "bugs").iterdir()} == kept
    assert watching.visit().unchanged == 2


def test_a_broken_bug_is_left_out_and_many_are_a_changed_layout(watching: Watching) -> None:
    path = f"/bug?extid={'a' * 20}&json=1"
    watching.syzbot.faults[path] = [Fault(body=b'{"id": 5}')]
    visit = watching.visit()
    assert set(watching.bugs) == {"e"}
    assert list(visit.failed) == ["a" * 20]
    assert visit.failed["a" * 20].startswith("syzbot_layout")
    watching.syzbot.bugs = [fixed(letter) for letter in "abcd05"]
    for letter in "abcd05":
        watching.syzbot.faults[f"/bug?extid={letter * 20}&json=1"] = [Fault(body=b"[]")]
    with refused("syzbot_layout"):
        watching.visit()
    assert set(watching.bugs) == {"e"}


@pytest.mark.attack
def test_a_page_that_leads_elsewhere_is_not_followed(watching: Watching) -> None:
    path = f"/bug?extid={'a' * 20}&json=1"
    inside = {"Location": "http://169.254.169.254/latest/meta-data"}
    watching.syzbot.faults[path] = [Fault(302, headers=inside)]
    assert watching.visit().failed["a" * 20].startswith("foreign_page")


@pytest.mark.attack
def test_a_page_without_an_end_is_cut_off(tmp_path: Path, watching: Watching) -> None:
    fetcher = Fetcher(tmp_path / "pages", (watching.syzbot.url,), pause=0)
    watching.syzbot.faults["/text?tag=x"] = [Fault(body=b"x" * 200_000)]
    with pytest.raises(InfrastructureError) as caught:
        fetcher.get(f"{watching.syzbot.url}/text?tag=x", 100_000)
    fetcher.close()
    assert caught.value.reason == "page_too_large"


@pytest.mark.thorough
@pytest.mark.attack
@pytest.mark.parametrize(
    "part",
    ["<table><tr><td>", "<a ", "<a b='", "<!", "<!--", "<![", "&#", "<b", "<td a=\"'", "<script>"],
)
def test_hostile_pages_take_linear_time(part: str) -> None:
    page = part * (400_000 // len(part))
    begun = time.process_time()
    html_tables.tables(page)
    assert time.process_time() - begun < 10


@pytest.mark.attack
def test_a_thread_that_unpacks_without_an_end_is_cut() -> None:
    packed = gzip.compress(b"From mboxrd@z x\nFrom: a@b\n\n" + b"\0" * (32 << 20), 1)
    thread = watch.read_thread(packed)
    assert thread is not None
    assert len(thread.mails) <= watch.BOX


@given(st.binary(max_size=2000))
@settings(max_examples=100, deadline=None)
def test_whatever_a_page_holds_it_is_read_or_refused(body: bytes) -> None:
    readers: list[Callable[[], object]] = [
        lambda: syzbot_pages.listed(body, "here"),
        lambda: syzbot_pages.reported(body, datetime.now(UTC), "here"),
        lambda: syzbot_pages.bug(body, "here"),
    ]
    for read in readers:
        with contextlib.suppress(InfrastructureError):
            read()
    watch.read_thread(body)


@pytest.mark.parametrize(("link", "box"), json_rows(__file__, "mailboxes.jsonl"))
def test_a_discussion_has_one_mailbox(link: str, box: str | None) -> None:
    assert watch.mailbox_address(link, "http://l/") == box


def test_two_visits_of_one_folder_do_not_meet(watching: Watching) -> None:
    watching.folder.mkdir()
    with (watching.folder / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(KgymError) as caught:
            watching.visit()
    assert caught.value.reason == "watch_running"


def test_the_command_looks_once_and_says_what_it_found(
    kgym: Kgym, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SYZBOT", "LORE", "GIT_SITE"):
        monkeypatch.setenv(f"KGYM_{name}", watching.syzbot.url)
    monkeypatch.setenv("KGYM_CRAWL_PAUSE", "0")
    words = ("bench", "watch", watching.folder, "--status", "fixed", "--json")
    done = kgym(*words)
    assert (done.status, done.json["new"]) == (0, 2), done.err
    watching.syzbot.faults[LIST] = [Fault(body=b"{}")]
    done = kgym(*words, "--max-age", "0")
    assert (done.status, done.json["reason"]) == (3, "syzbot_layout")


@needs_kbenchsyz
def test_bugs_of_kbenchsyz_come_back_as_they_are(tmp_path: Path) -> None:
    bugs = dataset_files.read_kbenchsyz(KBENCHSYZ).bugs[:8]
    syzbot = Syzbot(bugs)
    with serving(syzbot):
        watching = Watching(syzbot, tmp_path / "watch")
        visit = watching.visit(threads=0)
    assert (visit.new, visit.failed) == (8, {})
    read = {bug.id: bug for bug in dataset.load(visit.folder or tmp_path).bugs}
    for own in bugs:
        assert read[own.id].patch == own.patch
        assert read[own.id].crashes[0].commit == own.crashes[0].commit


def git(folder: Path, *words: str) -> str:
    """Run Git as nobody has configured it; return what it prints."""
    whos, whats = ("AUTHOR", "COMMITTER"), ("NAME", "EMAIL")
    names = {f"GIT_{who}_{what}": "x" for who in whos for what in whats}
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", **names}
    done = subprocess.run(
        ["git", "-C", folder, *words], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_mirror_tells_the_functions_of_a_fix_and_costs_no_request(
    tmp_path: Path, watching: Watching
) -> None:
    mirrors = tmp_path / "mirrors"
    (mirrors / "linux").mkdir(parents=True)
    git(mirrors / "linux", "init", "-q")
    for number in (1, 2):
        (mirrors / "linux" / "f.c").write_text(f"int f(void)\n{{\n\treturn {number};\n}}\n")
        git(mirrors / "linux", "add", "f.c")
        git(mirrors / "linux", "commit", "-q", "-m", f"f: {number}\n\nBecause.")
    (mirrors / "map.json").write_text(json.dumps({"https://k/l.git": "linux"}))
    fix, parent = git(mirrors / "linux", "log", "--format=%H").split()
    known = Commit(id=fix, repository="git://k/l")
    fetcher = Fetcher(tmp_path / "pages", (watching.syzbot.url,))
    sites = GitSites(watching.syzbot.url, mirrors)
    patch = fixed_by(DeveloperPatch(commits=[known]), sites, fetcher)
    fetcher.close()
    assert (patch.parent, patch.message, patch.files) == (parent, "f: 2\n\nBecause.", ["f.c"])
    assert patch.functions == [Function(file="f.c", name="f")]
    assert "+\treturn 2;\n" in (patch.diff or "")
    assert patch.date is not None
    assert not watching.syzbot.asked
