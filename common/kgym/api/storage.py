"""What the scheduler keeps on disk: the body of GET /v1/storage."""

from typing import Literal

from pydantic import Field

from kgym.api.states import State
from kgym.api.steps import Count, Strict

Kept = Literal["artifacts", "bases", "entries", "memos", "sources", "toolchains", "database"]


class KeptKind(Strict):
    """All that is kept of one kind."""

    kind: Kept = Field(
        description="artifacts of steps; bases: what artifacts are kept as their difference from;"
        " entries of SuiteCache; memos of what was found out once; sources that can be read;"
        " toolchains: images of compilers; the database"
    )
    bytes: Count
    number: Count = Field(description="of attempts, bases, entries, memos; 1 for the database")


class KeptOfJob(Strict):
    """The artifacts of one job."""

    job: int
    state: State
    submitter: str
    tags: list[str]
    bytes: Count


class KeptByAge(Strict):
    """The artifacts of the attempts that ended within so many days, and not within fewer."""

    days: int | None = Field(description="null: longer ago, or not yet")
    bytes: Count


class StorageView(Strict):
    """What is kept, by kind, age and job."""

    bytes: Count
    budget: int | None = Field(description="bytes that it shall keep to; null without one")
    free: int | None = Field(description="bytes left on the storage's disk; null if not known")
    warning: str | None = Field(description="why something has to be done, if it has to")
    kinds: list[KeptKind]
    ages: list[KeptByAge]
    jobs: list[KeptOfJob] = Field(description="those that keep most, at most 50")


def warning(used: int, budget: int | None, free: int | None, disk: int | None) -> str | None:
    """Return what is to be said of so many bytes. Pure."""
    if budget is not None and used >= budget:
        return (
            f"the storage holds {used / 1e9:,.1f} GB, its budget is {budget / 1e9:,.1f} GB"
            " (KGYM_DISK_BUDGET): finished jobs' artifacts go, the oldest first;"
            " `kgym du` tells what takes most, `kgym gc` removes more"
        )
    if free is not None and disk is not None and free < min(disk // 20, 10 << 30):
        return (
            f"the storage's disk has {free / 1e9:,.1f} GB left of {disk / 1e9:,.1f} GB:"
            " `kgym du` tells what takes most, `kgym gc --apply` removes what is old"
        )
    return None
