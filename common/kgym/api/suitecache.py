"""SuiteCache's entries and their use: the bodies of the REST interface."""

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from kgym.api.jobs import DIGITS, EntryName, NumberCursor, WorkerState
from kgym.api.outcomes import Outcome
from kgym.api.steps import Count, Line, Name, Number, Sha256, Strict

# Names of entries, which are also names of folders.
ENTRY = re.compile(r"[0-9A-Za-z][\w.+-]{0,63}", re.ASCII)


def mark_of(name: str) -> str:
    """Return the storage key of the file that marks an entry as dropped."""
    return f"dropped/{name}/mark"


# Maximum number of entries that a worker reports.
HELD = 1000


class HeldEntry(Strict):
    """An entry on the disk of a worker's host."""

    name: EntryName
    bytes: Count


class EntryHolder(Strict):
    """A worker whose host has an entry on its disk."""

    worker: str
    state: WorkerState
    bytes: Count


class EntryMaking(Strict):
    """How an entry was made: from scratch, or from the most similar entry."""

    image_sha256: Sha256 = Field(description="of the entry's image")
    toolchain: Name = Field(description="hash that identifies the compiler")
    files: Annotated[str, Field(max_length=64, pattern=r"^([0-9a-f]{64})?$")] = Field(
        description="hash of the list of its source files; empty: they could not be listed"
    )
    base: EntryName | None = Field(None, description="the entry it was made from; null: scratch")
    files_changed: Count = Field(0, description="source files in which `base` differs")
    symbols_changed: Count = Field(0, description="symbols of the config in which `base` differs")
    objects: Count = Field(description="objects that were compiled for it")
    reason: Line = Field("", description="why it was made from scratch")
    rehearsal: Literal["none", "equal", "unequal"] = Field(
        "none",
        description="whether it was made both ways, and whether the kernels were the same; where"
        " they were not, `reason` says in what, and the one from scratch was taken",
    )
    rehearsed: EntryName | None = Field(None, description="the entry it was rehearsed from")
    made_at: datetime
    seconds: Number = Field(description="duration of make")


class EntryView(Strict):
    """A kernel compiled once for all builds and checks of its source and config."""

    name: EntryName
    kernel_release: Name | None = Field(description="null if not in storage")
    compiler_version: Name | None
    source_identity: Line | None = Field(description="e.g. `package:linux-source-6.1=6.1.192-1`")
    backports: list[Name] = Field(max_length=1000)
    bytes: Count | None = Field(description="in storage; null: not there, only with workers")
    touched_at: datetime | None = Field(
        description="when it was last stored, or fetched by a worker; used by retention"
    )
    holders: list[EntryHolder] = Field(description="workers whose hosts have a copy")
    jobs: Count = Field(description="jobs that built or checked patches on it")
    outcomes: dict[Outcome, Count] = Field(description="number of these jobs by outcome; no zeros")
    created_at: datetime | None = Field(description="when the first of these jobs was submitted")
    used_at: datetime | None = Field(description="when one of these jobs last changed")
    making: EntryMaking | None = Field(None, description="how it was made; null if not in storage")


class DroppedEntry(Strict):
    """An entry that was removed from storage."""

    name: EntryName
    bytes: Count = Field(description="bytes freed in storage")
    holders: list[EntryHolder] = Field(
        description="workers with a copy on their disks: for an hour, answers to their claims name"
        " the entry, and they remove it once it is unused"
    )


class EntryFilter(Strict):
    """Selection of a list of entries, in order of last use."""

    name: EntryName | None = Field(None, description="the entry of this name")
    text: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="entries with this in name, release, compiler, source or a worker's name"
    )
    cursor: NumberCursor = None
    limit: Annotated[int, Field(ge=1, le=200), DIGITS] = Field(50, description="entries on a page")


class EntryPage(Strict):
    """One page of a list; `next` is the cursor of the page after it."""

    entries: list[EntryView]
    bytes: Count = Field(description="of all stored entries, without the filter")
    number: Count = Field(description="of all entries, without the filter")
    next: str | None
