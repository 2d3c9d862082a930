"""What an agent's patch is, found out within limits: whoever wrote it wants to cost time."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kgym.api.steps import Patch
from kgym.bench.attempt_record import AttemptRecord
from kgym.bench.patch_identity import identity, text_identity
from kgym.bench.patch_overlap import changed_parts, overlap
from kgym.errors import KgymError
from kgym.host import separate_process
from kgym.source.patching import Read

SMALL = 32 << 10
"""Characters of a patch that may be looked at within this process."""
P = ParamSpec("P")
T = TypeVar("T")


async def change(diff: str, read: Read) -> str:
    """Return which change a patch is (`kgym.bench.patch_identity`)."""
    try:
        return await _apart(diff, identity, diff, read)
    except KgymError:  # it takes too much work
        return text_identity(diff)


async def compared(record: AttemptRecord, fix: Patch | None, read: Read) -> AttemptRecord:
    """Return the record with what its patch shares with the developers'.

    That is null if there is none, one of them does not apply, or it would take too much work.
    """
    diff = record.diff
    if diff is None or fix is None:
        return record
    try:
        theirs = await asyncio.to_thread(changed_parts, fix, read)
        ours = await _apart(diff, changed_parts, diff, read)
    except KgymError:
        return record
    files, functions = overlap(ours, theirs)
    return record.model_copy(update={"files": files, "functions": functions})


async def _apart(diff: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function says of a patch; of a large one by a process with limits."""
    if len(diff) <= SMALL:
        return await asyncio.to_thread(function, *args, **kwargs)
    seconds, memory = separate_process.SECONDS, separate_process.MEMORY
    return await separate_process.within(seconds, memory, function, *args, **kwargs)
