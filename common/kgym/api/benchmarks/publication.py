"""Published benchmarks: the bodies of the REST interface, /v1/benchmarks."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from kgym.api.benchmarks.attempts import AttemptRecord, AttemptRow, Setup, Some, Words
from kgym.api.benchmarks.bugs import BugFacts, PublishedBug
from kgym.api.jobs import DIGITS, Submitter
from kgym.api.steps import Count, Sha256, Strict

BUGS_AT_ONCE = 200
ATTEMPTS_AT_ONCE = 500
BUGS = 100_000
"""Of a benchmark, at most."""
SETUPS = 1000
ATTEMPTS = 2_000_000

BenchmarkName = Annotated[
    str, Field(min_length=1, max_length=100, pattern=r"^\w[\w.-]*$", description="of the benchmark")
]
"""Part of a URL's path, so without a slash, and never `.` or `..`."""


class BenchmarkAbout(Strict):
    """What a benchmark's dataset is; once published it never changes."""

    description: Words = ""
    source: Words | None = Field(None, description="what it was made from")
    bugs: int = Field(ge=0, le=BUGS)
    sha256: Sha256 = Field(description="of the dataset's records")


class SetupView(Strict):
    """Who has tried, by the number that lists of attempts use."""

    number: Some
    setup: Setup
    attempts: Count


class BenchmarkView(BenchmarkAbout):
    """A benchmark as it stands."""

    name: BenchmarkName
    submitter: Submitter
    created_at: datetime
    updated_at: datetime
    version: Count = Field(description="another one whenever its bugs or attempts have changed")
    published: Count = Field(description="how many of its bugs are there")
    attempts: Count
    setups: list[SetupView] = Field(max_length=SETUPS)


class BenchmarkLine(Strict):
    """A benchmark in a list."""

    name: BenchmarkName
    description: Words
    submitter: Submitter
    updated_at: datetime
    bugs: Count
    setups: Count
    attempts: Count


class BenchmarkPage(Strict):
    """One page of a list; `next` is the cursor of the page after it."""

    benchmarks: list[BenchmarkLine]
    next: str | None


class BenchmarkFilter(Strict):
    """Which page of the list of benchmarks: by name."""

    cursor: BenchmarkName | None = Field(None, description="`next` of the page before")
    limit: Annotated[int, Field(ge=1, le=200), DIGITS] = 100


class BugBatch(Strict):
    """Bugs to be published; what is there already under an id is replaced."""

    bugs: list[PublishedBug] = Field(min_length=1, max_length=BUGS_AT_ONCE)


class AttemptBatch(Strict):
    """Attempts to be published; one that is there of a bug, setup and run is replaced."""

    attempts: list[AttemptRecord] = Field(min_length=1, max_length=ATTEMPTS_AT_ONCE)


class Published(Strict):
    """What a batch has changed."""

    changed: Count = Field(description="entries that are new, or other than before")
    version: Count


class FactsFilter(Strict):
    """Which page of a benchmark's bugs: by id."""

    cursor: str | None = Field(
        None, min_length=1, max_length=200, description="`next` of the page before"
    )
    limit: Annotated[int, Field(ge=1, le=1000), DIGITS] = 500


class FactsPage(Strict):
    """One page of a benchmark's bugs."""

    bugs: list[BugFacts]
    next: str | None


class AttemptFilter(Strict):
    """Which page of a benchmark's attempts, in the order in which they were changed last."""

    cursor: str | None = Field(
        None,
        max_length=40,
        pattern=r"^[0-9]{1,18}-[0-9]{1,18}$",
        description="`next` of the page before; `VERSION-0` leads to what came after a version",
    )
    limit: Annotated[int, Field(ge=1, le=5000), DIGITS] = 2000


class AttemptPage(Strict):
    """One page of a benchmark's attempts, without their patches."""

    attempts: list[AttemptRow]
    next: str | None
