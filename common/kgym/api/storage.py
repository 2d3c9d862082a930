"""Use of the storage: the body of GET /v1/storage, and what retention removes."""

from typing import Literal

from pydantic import Field

from kgym.api.states import State
from kgym.api.steps import Count, Strict

Kept = Literal["artifacts", "bases", "entries", "memos", "sources", "toolchains", "database"]


class KeptKind(Strict):
    """The stored objects of one kind."""

    kind: Kept = Field(
        description="artifacts of steps; bases: files from which artifacts are stored as"
        " differences; entries of SuiteCache; memos: cached answers; sources that can be read;"
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
    """The artifacts of attempts that ended within `days` days, but not within fewer."""

    days: int | None = Field(description="null: longer ago, or still running")
    bytes: Count


class StorageView(Strict):
    """The stored bytes by kind, age and job."""

    bytes: Count
    budget: int | None = Field(description="maximum bytes; null without a budget")
    free: int | None = Field(description="free bytes of the storage's disk; null if unknown")
    warning: str | None = Field(description="warning of a full storage; null without one")
    kinds: list[KeptKind]
    ages: list[KeptByAge]
    jobs: list[KeptOfJob] = Field(description="those with most bytes, at most 50")


def warning(used: int, budget: int | None, free: int | None, disk: int | None) -> str | None:
    """Return the warning for this use; None if there is no reason for one. Pure."""
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


class OldFiles(Strict):
    """The files of an attempt that retention removes, and why.

    `unaccepted`: its result was not accepted, or another attempt has replaced it.
    """

    job: int
    step: int
    prefix: str
    bytes: int
    why: Literal["age", "budget", "unaccepted"]


class OldEntry(Strict):
    """An entry, memo, source or image in storage that retention removes, and why."""

    prefix: str
    bytes: int
    why: Literal["age", "budget"]


class OldLog(Strict):
    """The log of an attempt that retention removes from the database."""

    job: int
    step: int
    attempt: int
    bytes: int
