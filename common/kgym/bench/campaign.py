"""The description and plan of a campaign: agents, models, bugs, attempts, settings. Pure.

docs/benchmark.md describes the file `CAMPAIGN.toml`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kgym.api.steps import Strict
from kgym.bench.attempt_record import AttemptRecord, BugId, Setup, Words
from kgym.bench.bug_choice import BugChoice
from kgym.bench.bug_record import Link

Path = Annotated[str, Field(min_length=1, max_length=4096)]
Name = Annotated[str, Field(pattern=r"^[\w][\w.-]{0,99}$")]
Variables = Annotated[dict[Name, Words], Field(max_length=100)]
Dollars = Annotated[float, Field(ge=0, le=1e6)]


class Prices(Strict):
    """A model's prices in dollars per million tokens."""

    input: Dollars
    cached: Dollars | None = Field(None, description="of the input; null: as `input`")
    output: Dollars


class ModelAccess(Strict):
    """The access to a model; agents reach only its endpoint, at http://127.0.0.1:8400."""

    endpoint: Annotated[Link, Field(pattern=r"^https?://")]
    key_env: Name | None = Field(None, description="variable of this machine that holds its key")
    key_header: Literal["authorization", "x-api-key", "x-goog-api-key"] = "authorization"
    prices: Prices | None = None
    names: list[Words] = Field(
        [], max_length=20, description="further names of the model, at the same prices"
    )
    allow: list[Words] = Field(
        [],
        max_length=50,
        description="fields, types of tools and of parts that agents may use besides the ordinary "
        "ones, such as web_search or service_tier; their extra cost is not counted",
    )


class AgentEntry(Strict):
    """An agent with the models and settings to try."""

    name: Words
    kind: Literal["program", "crashfixer"] = "program"
    adapter: Name | None = Field(None, description="a shipped description of its command")
    command: list[Words] | None = Field(None, min_length=1, max_length=100)
    folder: Path | None = Field(None, description="mounted at /agent")
    programs: list[Path] = Field(
        [], max_length=20, description="folders mounted at their own paths"
    )
    environment: Variables = {}
    settings: Words = ""
    agent_config: Path | None = None
    model_config_file: Path | None = Field(None, description="mounted at /KBDr/model-config")
    models: list[Words] = Field([""], min_length=1, max_length=100)
    feedback: list[bool] | None = Field(None, min_length=1, max_length=2)
    strategy: Words | None = Field(
        None, description="of CrashFixer; null: `forest`, or the one of the model's tape"
    )

    @model_validator(mode="after")
    def _one_command(self) -> "AgentEntry":
        given = (self.adapter is not None) + (self.command is not None)
        if self.kind == "program" and given != 1:
            raise ValueError("a program has a `command`, or an `adapter`")
        if self.kind == "crashfixer" and (given or self.models == [""]):
            raise ValueError("CrashFixer has `models`, and no command")
        return self


class AttemptLimits(Strict):
    """The limits of one attempt."""

    dollars: Dollars | None = None
    hours: float = Field(2.0, gt=0, le=168)
    kernel_runs: int = Field(20, ge=0, le=10_000)


class CampaignLimits(Strict):
    """The limits of the whole campaign; each setup gets the same share of the dollars."""

    dollars: Dollars | None = None
    hours: float | None = Field(None, gt=0, le=10_000)


class Campaign(Strict):
    """`CAMPAIGN.toml`."""

    name: Name
    bugs: list[Path] = Field([], max_length=10_000, description="shipped bugs, or folders")
    bundles: list[Path] = Field([], max_length=100, description="folders of bundles")
    dataset: Path | None = Field(None, description="dataset whose bugs are selected")
    choice: BugChoice = BugChoice()
    attempts: int = Field(1, ge=1, le=1000, description="of each setup on each bug")
    feedback: list[bool] = Field([True], min_length=1, max_length=2)
    oracle: list[bool] = Field(
        [False],
        min_length=1,
        max_length=2,
        description="whether agents are told which files the developers' fix changes",
    )
    parallel: int = Field(2, ge=1, le=64, description="concurrent attempts")
    commit_from: Literal["parent", "crash"] = "parent"
    instances: int | None = Field(
        25, ge=1, le=1000, description="VMs that prove a patch; null: as calibrated"
    )
    feedback_instances: int = Field(5, ge=1, le=1000, description="VMs of a `run_kernel`")
    time: float | None = Field(None, gt=0, le=86400, description="seconds of each VM")
    compare_fix: bool = Field(
        False, description="compare what variants do with a patch and with the developers' fix"
    )
    limits: CampaignLimits = CampaignLimits()
    attempt: AttemptLimits = AttemptLimits()
    models: dict[Words, ModelAccess] = Field({}, max_length=100)
    agents: list[AgentEntry] = Field(min_length=1, max_length=100)

    @model_validator(mode="after")
    def _priced(self) -> "Campaign":
        # Without prices, tokens cannot be charged against the limit.
        limited = self.attempt.dollars is not None or self.limits.dollars is not None
        for name, model in self.models.items():
            if limited and model.prices is None:
                raise ValueError(f"a limit in dollars needs the `prices` of {name}")
        named = [(entry.name, entry.settings) for entry in self.agents]
        if len(set(named)) < len(named):
            raise ValueError("two agents have the same name and settings")
        return self

    @property
    def how(self) -> str:
        """The options that attempts must share to be comparable, as JSON."""
        # Agents, models and limits may change later: a record names its agent, model and limit.
        parts = {"name", "commit_from", "instances", "feedback_instances", "time"}
        # Left out unless set, so that folders from before this option can be continued.
        parts |= {"compare_fix"} if self.compare_fix else set()
        return self.model_dump_json(include=parts)

    def setups(self) -> Iterator[tuple[Setup, AgentEntry]]:
        """Yield each setup with its agent."""
        for entry in self.agents:
            feedbacks = entry.feedback or self.feedback
            each = dict.fromkeys(product(entry.models, feedbacks, self.oracle))
            for model, feedback, oracle in each:
                setup = Setup(
                    agent=entry.name,
                    settings=entry.settings,
                    model=model,
                    feedback=feedback,
                    oracle=oracle,
                    dollars=self.attempt.dollars,
                )
                yield setup, entry


@dataclass(frozen=True, slots=True)
class Planned:
    """An attempt to be made."""

    bug: BugId
    setup: Setup
    run: int
    entry: AgentEntry


def plan(campaign: Campaign, bugs: Sequence[BugId]) -> list[Planned]:
    """Return all attempts, run by run, so that an interrupted campaign has treated all alike."""
    return [
        Planned(bug, setup, run, entry)
        for run in range(1, campaign.attempts + 1)
        for bug in bugs
        for setup, entry in campaign.setups()
    ]


def missing(planned: Iterable[Planned], done: Iterable[AttemptRecord]) -> list[Planned]:
    """Return the attempts without a record."""
    there = {(record.bug, record.setup, record.run) for record in done}
    return [
        attempt for attempt in planned if (attempt.bug, attempt.setup, attempt.run) not in there
    ]


class SetupEstimate(Strict):
    """Cost of a setup's open attempts, estimated from its earlier ones; null: unknown."""

    setup: Setup
    attempts: int = Field(description="open attempts")
    seconds: float | None = Field(description="of all of them, from start to patch")
    dollars: float | None
    rests_on: int = Field(description="number of earlier attempts of this setup")


class Estimate(Strict):
    """The estimated cost of a campaign; an unknown value of a setup makes the sum null."""

    attempts: int
    done: int
    setups: list[SetupEstimate]
    hours: float | None = Field(description="with `parallel` attempts at a time, without proofs")
    dollars: float | None


def estimate(
    campaign: Campaign, planned: Sequence[Planned], history: Iterable[AttemptRecord], done: int
) -> Estimate:
    """Estimate the cost of the open attempts from earlier attempts of the same setups."""
    earlier: Mapping[Setup, list[AttemptRecord]] = defaultdict(list)
    for record in history:
        earlier[record.setup].append(record)
    setups = []
    for setup in dict.fromkeys(attempt.setup for attempt in planned):
        count = sum(attempt.setup == setup for attempt in planned)
        records = earlier.get(setup, [])
        seconds = _mean([record.seconds for record in records])
        dollars = _mean([record.dollars for record in records])
        setups.append(
            SetupEstimate(
                setup=setup,
                attempts=count,
                seconds=None if seconds is None else round(seconds * count, 1),
                dollars=None if dollars is None else round(dollars * count, 4),
                rests_on=len(records),
            )
        )
    seconds_in_all = _sum([estimated.seconds for estimated in setups])
    return Estimate(
        attempts=len(planned),
        done=done,
        setups=setups,
        hours=None if seconds_in_all is None else seconds_in_all / campaign.parallel / 3600,
        dollars=_sum([estimated.dollars for estimated in setups]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
