"""SuiteCache's entries, as they are kept and used: the bodies of the REST interface."""

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from kgym.api.jobs import DIGITS, EntryName, WorkerState
from kgym.api.states import State
from kgym.api.steps import Count, Line, Name, Sha256, Strict, Verdict

# How entries are named: as their folders are.
ENTRY = re.compile(r"[0-9A-Za-z][\w.+-]{0,63}", re.ASCII)


def mark_of(name: str) -> str:
    """Return where storage has the mark that an entry was dropped."""
    return f"dropped/{name}/mark"


# Entries that a worker tells of, at most.
HELD = 1000


class HeldEntry(Strict):
    """An entry that a worker's host keeps, so that its steps need not fetch it."""

    name: EntryName
    bytes: Count


class EntryHolder(Strict):
    """A worker whose host keeps an entry."""

    worker: str
    state: WorkerState
    bytes: Count


class EntryMaking(Strict):
    """How an entry was made: from scratch, or from the entry that was nearest to it."""

    image_sha256: Sha256 = Field(description="of the image that this is about")
    toolchain: Name = Field(description="what tells the compiler from others, as a hash")
    files: Annotated[str, Field(max_length=64, pattern=r"^([0-9a-f]{64})?$")] = Field(
        description="hash of the list of its source files; empty: they could not be listed"
    )
    base: EntryName | None = Field(None, description="the entry it was made from; null: scratch")
    files_changed: Count = Field(0, description="source files in which `base` differs")
    symbols_changed: Count = Field(0, description="symbols of the config, likewise")
    objects: Count = Field(description="objects that were compiled for it")
    reason: Line = Field("", description="why it was made from scratch")
    rehearsal: Literal["none", "equal", "unequal"] = Field(
        "none",
        description="whether it was made both ways, and whether the kernels were the same; where"
        " they were not, `reason` says in what, and the one from scratch was taken",
    )
    rehearsed: EntryName | None = Field(None, description="the entry it was rehearsed from")
    made_at: datetime
    seconds: float = Field(description="make took, for all that was made")


class EntryView(Strict):
    """A kernel that was compiled once, for all builds and checks of its source and config."""

    name: EntryName
    kernel_release: Name | None = Field(description="null where what tells it is not in storage")
    compiler_version: Name | None
    source_identity: Line | None = Field(description="e.g. `package:linux-source-6.1=6.1.192-1`")
    backports: list[Name] = Field(max_length=1000)
    bytes: Count | None = Field(description="in storage; null: not there, only with workers")
    touched_at: datetime | None = Field(
        description="when it was stored, or fetched by a worker, last; by that retention goes"
    )
    holders: list[EntryHolder] = Field(description="the workers whose hosts keep a copy")
    jobs: Count = Field(description="that have built or checked patches on it")
    states: dict[State, Count] = Field(description="how many of these, by state; no zeros")
    verdicts: dict[Verdict, Count] = Field(
        description="how many of these came to a verdict, by verdict; no zeros"
    )
    created_at: datetime | None = Field(description="when the first of these was submitted")
    used_at: datetime | None = Field(description="when one of these has changed last")
    making: EntryMaking | None = Field(
        None, description="how it was made; null where that is not in storage"
    )


class DroppedEntry(Strict):
    """An entry that was removed from storage."""

    name: EntryName
    bytes: Count = Field(description="that this has freed there")
    holders: list[EntryHolder] = Field(
        description="workers with a copy on their disks: they are told with their next claim, for"
        " an hour, and remove it when nobody uses it"
    )


class EntryFilter(Strict):
    """Which entries a list shows: those used last come first."""

    name: EntryName | None = Field(None, description="the entry of this name")
    text: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="entries with this in name, release, compiler, source or a worker's name"
    )
    cursor: str | None = Field(
        None, max_length=18, pattern="^[0-9]{1,18}$", description="`next` of the page before"
    )
    limit: Annotated[int, Field(ge=1, le=200), DIGITS] = Field(50, description="entries on a page")


class EntryPage(Strict):
    """One page of a list; `next` is the cursor of the page after it."""

    entries: list[EntryView]
    bytes: Count = Field(description="of all that are stored, whatever the filter")
    number: Count = Field(description="of entries, whatever the filter")
    next: str | None
