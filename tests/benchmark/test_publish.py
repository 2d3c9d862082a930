"""`kgym bench publish`: a dataset and its attempts reach the store; files of attempts."""

import asyncio
from pathlib import Path

import pytest
from pydantic import BaseModel

from kgym.api.agent.conversation import Reply
from kgym.bench import attempt_files, publication
from kgym.bench.attempt_record import AttemptRecord, FailedAttempt, Outcome, Setup, Votes
from kgym.bench.bug_choice import BugChoice
from kgym.bench.bug_record import BugRecord, PublishedBug
from kgym.bench.campaign import Campaign
from kgym.bench.dataset import About
from kgym.bench.figures import Results
from kgym.bench.publication import Publication
from kgym.bench.published_benchmark import load
from kgym.transport.artifact_storage import LocalStorage
from kgym_benchmark.campaign.attempt import AgentEnded
from kgym_benchmark.campaign.model_proxy import Answered
from kgym_benchmark.judge.judge import Vote
from kgym_benchmark.kenv.door import KernelCall
from kgym_benchmark.validation.validate import AboutValidation
from tests.benchmark.test_dataset import bug, made
from tests.cli.conftest import Kgym
from tests.refused import refused
from tests.scheduler.api.test_bounded_input import unbounded
from tests.transport.buckets import Bucket
from tests.transport.places import Place

ONE = Setup(agent="one", model="m", dollars=5.6)


def attempts(count: int) -> list[AttemptRecord]:
    return [
        AttemptRecord(
            bug="a" * 40,
            setup=ONE,
            run=run,
            outcome=Outcome.PASS,
            votes=Votes(yes=run % 10, no=9 - run % 10),
            diff=f"+{run}\n",
        )
        for run in range(1, count + 1)
    ]


@pytest.mark.thorough
def test_a_folder_is_published_and_replaced(kgym: Kgym, data: Path, tmp_path: Path) -> None:
    made(bug(), bug(id="e" * 40)).save(tmp_path / "bugs")
    attempt_files.write(tmp_path / "bugs" / "attempts.jsonl", attempts(700))
    first = kgym("bench", "publish", tmp_path / "bugs", "--name", "mine", "--json")
    store = str(data / "benchmarks")
    assert first.json == {
        "benchmark": "mine",
        "bugs": 2,
        "setups": 1,
        "attempts": 700,
        "store": store,
    }
    benchmark = asyncio.run(load(LocalStorage(Path(store)), "mine"))
    assert asyncio.run(benchmark.bug("a" * 40)) == made(bug()).bugs[0].published
    assert asyncio.run(benchmark.attempt("a" * 40, 0, 7)) == attempts(7)[-1]
    attempt_files.write(tmp_path / "fewer", attempts(3))
    again = kgym(
        *("bench", "publish", tmp_path / "bugs", "--name", "mine"),
        *("--attempts", tmp_path / "fewer"),
    )
    assert again.out == f"mine in {store}: bugs: 2, setups: 1, attempts: 3\n"
    swept = kgym("gc", "--apply", "--artifact-age", "0", "--only", "artifacts", "--json")
    assert swept.status == 0, swept.err
    assert len(asyncio.run(load(LocalStorage(Path(store)), "mine")).table) == 3
    made(bug()).save(tmp_path / "other")
    refused = kgym("bench", "publish", tmp_path / "other", "--name", "mine")
    assert refused.status == 2
    assert "another dataset" in refused.err


@pytest.mark.thorough
def test_a_bucket_takes_a_benchmark(
    kgym: Kgym, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(place, Bucket):
        pytest.skip("the test above publishes to a folder")
    made(bug()).save(tmp_path / "bugs")
    monkeypatch.setenv("KGYM_BENCHMARKS", f"gs://{place.name}/{place.prefix}")
    assert kgym("bench", "publish", tmp_path / "bugs").status == 0
    assert asyncio.run(publication.names(place.storage)) == ["some"]


def test_attempts_are_read_as_they_were_written(tmp_path: Path) -> None:
    attempt_files.write(tmp_path / "a", attempts(3))
    assert list(attempt_files.read(tmp_path / "a")) == attempts(3)
    with (tmp_path / "a").open("a") as file:
        file.write('{"bug": "a", "ru')  # its writer was killed
    assert list(attempt_files.read(tmp_path / "a")) == attempts(3)


COSTS = '{"bug": "a", "run": 2, "outcome": "pass", "setup": {"agent": "a"}, "dollars": %s}'


@pytest.mark.parametrize(
    "line",
    [
        *("{}", "x", '{"bug": "a", "run": 0}', '{"what": 1}'),
        *(COSTS % cost for cost in ("1.7e308", "NaN", "Infinity", "1e999", "-1", "2e12")),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    attempt_files.write(tmp_path / "a", attempts(1))
    with (tmp_path / "a").open("a") as file:
        file.write(line + "\n")
    with refused("bad_attempts", match="a:2: "):
        list(attempt_files.read(tmp_path / "a"))


@pytest.mark.attack
@pytest.mark.parametrize(
    "record",
    [
        *(AttemptRecord, FailedAttempt, BugRecord, PublishedBug, About, Publication, Campaign),
        *(BugChoice, Vote, Reply, AgentEnded, Answered, KernelCall, AboutValidation),
    ],
)
def test_every_number_of_a_file_is_bounded(record: type[BaseModel]) -> None:
    schema = record.model_json_schema(ref_template="#/components/schemas/{model}")
    document = {"components": {"schemas": schema.get("$defs", {})}}
    places = [place for place in unbounded(schema, document, "x") if place.endswith("number")]
    assert places == []


def test_sums_of_the_largest_costs_are_finite() -> None:
    costs = {"dollars": 1e12, "kernel_dollars": 1e12}
    dear = [attempt.model_copy(update=costs) for attempt in attempts(9)]
    figures = Results(dear, ["a" * 40]).figures(ONE, 9)
    assert figures is not None
    assert figures.dollars == 18e12
