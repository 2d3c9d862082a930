"""`kgym group`: what the jobs of a group came to, for people, spreadsheets and programs."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import StepKind, Verdict
from kgym.bugs import bundle
from kgym.client import Client
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.conftest import Answer, Kgym
from tests.cli.worked import working
from tests.results import built, ran

pytestmark = pytest.mark.thorough

TITLE = "=KASAN: use-after-free Read in [demo]"


Run = Callable[..., Answer]


@pytest.fixture
def group(kgym: Kgym) -> Run:
    """Run `kgym group`."""
    return lambda *words: kgym("group", *words)


def of_schema(group: Run, *words: str) -> Any:
    """Run a command with --json; return its lines, each as its schema says."""
    schema = json.loads(group(words[0], "--json-schema").out)
    lines = [json.loads(line) for line in group(*words, "--json").out.splitlines()]
    for line in lines:
        jsonschema_rs.validate(schema, line)
    return lines


@pytest.fixture
def night(idle: Platform, data: Path) -> tuple[int, int]:
    """A group of two jobs: one has seen a crash, one waits."""
    shown = bundle.load("watch-queue-filter").job(None).model_copy(update={"group": "night"})
    answers = {
        StepKind.BUILD: lambda _: built(),
        StepKind.REPRODUCE: lambda _: ran(Verdict.SAME_CRASH, TITLE),
    }
    with Client(idle.url) as client:
        with working(idle, data, answers):
            done = client.wait(client.submit(shown).id)
        waits = client.submit(JobRequest(steps=shown.steps[:1], tags=["-x"], group="night"))
    assert (done.group, done.verdict, done.outcome) == ("night", Verdict.SAME_CRASH, "reproduced")
    return done.id, waits.id


def test_a_group_is_listed_shown_and_aborted(group: Run, night: tuple[int, int]) -> None:
    [[listed]] = of_schema(group, "list", "--mine")
    [seen] = of_schema(group, "show", "night")
    assert seen == listed
    assert (seen["jobs"], seen["outcomes"]) == (2, {"waiting": 1, "reproduced": 1})
    assert "1 waiting, 1 reproduced" in group("list").out
    head, counts, heads, first, last = group("show", "night").out.splitlines()
    assert (head, counts) == ("group night of local: 2 jobs", "  1 waiting, 1 reproduced")
    assert heads.split() == ["job", "outcome", "bug", "patch", "s", "reason"]
    assert first.split()[:3] == [str(night[0]), "reproduced", "watch-queue-filter"]
    assert first.endswith("  it was same_crash")
    assert last.split()[:3] == [str(night[1]), "waiting", "-"]
    [done] = of_schema(group, "abort", "night")
    assert done["aborted"] == [night[1]]
    assert group("abort", "night").out == "aborted: none\n"


def test_results_are_rows_for_people_spreadsheets_and_programs(
    group: Run, night: tuple[int, int], kgym: Kgym, idle: Platform
) -> None:
    first, last = of_schema(group, "patches", "night")
    assert (first["job"], first["verdict"], first["title"]) == (night[0], "same_crash", TITLE)
    assert (last["job"], last["outcome"], last["verdict"]) == (night[1], "waiting", None)
    assert "it was same_crash" in group("patches", "night").out
    rows = list(csv.DictReader(io.StringIO(group("patches", "night", "--csv").out)))
    assert [row["job"] for row in rows] == [str(job) for job in night]
    assert (rows[0]["title"], rows[1]["tags"]) == (f"'{TITLE}", "'-x")
    listed = kgym("--server", idle.url, "job", "list", "--group", "night")
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == [
        str(night[1]),
        str(night[0]),
    ]


def test_a_group_that_is_not_there_is_an_error_of_ones_own(
    group: Run, kgym: Kgym, idle: Platform
) -> None:
    done = kgym("--server", idle.url, "group", "patches", "none", "--json")
    assert (done.status, done.json["reason"]) == (2, "group_missing")
    done = kgym("--server", idle.url, "group", "patches", "none", "--csv")
    assert (done.status, done.out, "no group 'none'" in done.err) == (2, "", True)
    for words in (["show", ".."], ["show", "a/b"], ["patches", "x", "--submitter", "a b"]):
        assert group(*words).status == 2
