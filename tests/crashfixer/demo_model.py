"""The model of the demo's tape: answers written by hand, one of each kind that fails, then a fix.

No model was asked. `python -m tests.crashfixer.demo_model SERVER TAPE` runs the demo's search with
it on the platform of the scheduler at that URL, and writes the tape that `./run demo --agent`
replays.
"""

import asyncio
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kgym.api.agent.conversation import Reply
from kgym.api.agent.runs import RunRequest, RunView
from kgym.api.agent.strategy import Strategy
from kgym.bugs.bug import Bug
from kgym.client import AsyncClient
from kgym_crashfixer.models.model import Call
from kgym_crashfixer.models.tape import Head, Recorder, begin
from kgym_crashfixer.platform import SchedulerPlatform
from kgym_crashfixer.platform_protocol import Platform, Submitted
from kgym_crashfixer.runs.agent import Agent
from kgym_crashfixer.runs.run_store import RunStore, Stored
from kgym_crashfixer.strategies import load

FILE = "kernel/watch_queue.c"


def _solution(text: str) -> str:
    return f"<solution>\n{text.strip()}\n</solution>"


def _change(reason: str, original: str, patched: str) -> str:
    return (
        f"<reason>\n{reason}\n</reason>\n<file>\n{FILE}\n</file>\n"
        f"<original>\n{original}\n</original>\n<patched>\n{patched}\n</patched>\n"
    )


# --- the first cycle: a wrong idea ----------------------------------------------------------------

_LATE = _solution("""
The number of filters is published in wfilter->nr_filters before the filters themselves are
written. A reader on another CPU that looks at the new filter walks over entries that are not there
yet. Set nr_filters only after the loop in watch_queue_set_filter() has copied the entries.""")
_FREED = _solution("""
The filter that is replaced is freed by kfree_rcu() while this call still writes to it. Take
pipe_lock() before the new filter is built, and hold it until it is in place.""")
_WEIGHED = """
1. Strength: the order of the two writes is really wrong for a reader without a lock. Weakness: the
   report shows a write by the caller itself, not a read by somebody else.
2. Weakness: the report says slab-out-of-bounds, not use-after-free, and the object is new.

<choice>1</choice>"""

_COUNT = "\twfilter->nr_filters = nr_filter;\n\n\tq = wfilter->filters;"
_COPIED = "\t\t__set_bit(q->type, wfilter->type_filter);\n\t\tq++;\n\t}\n"
_MOVED = _change("The number is set too early.", _COUNT, "\tq = wfilter->filters;") + _change(
    "It is set when the entries are there.",
    _COPIED,
    f"{_COPIED}\twfilter->nr_filters = nr_filter;\n",
)
_NOT_THERE = _MOVED.replace("nr_filters = nr_filter;\n\n", "nr_filters = filter.nr_filters;\n\n")
_NOT_C = _change(
    "The number is set when the entries are there.",
    _COPIED,
    f"{_COPIED}\tsmp_store_release(&wfilter->nr_filters, nr_filter_copied);\n",
)
_HALF = "The name was wrong. <file>\nkernel/watch_queue.c\n</file>\n<original>\n\t\tq++;"
_LEARNED = """
The attempt assumed that somebody else reads entries too early. The kernel crashes as before, in
the same write of the caller, so the order of the writes has nothing to do with it. The write goes
past an object that was just allocated: look at how its size is computed."""

# --- the second: the detector is blamed; and the right one ----------------------------------------

_FALSE = _solution("""
The write is to a flexible array, whose size KASAN cannot know: a false report. Exempt
watch_queue_set_filter() from KASAN.""")
_SILENT = _change(
    "KASAN misjudges the flexible array.",
    "long watch_queue_set_filter(struct pipe_inode_info *pipe,",
    "__no_sanitize_address\nlong watch_queue_set_filter(struct pipe_inode_info *pipe,",
)
_SILENCED = """
The attempt assumed that the report is false, and turned the detector off in this function. The
platform noticed: the faults that it raises on purpose go unreported there. Nothing was mended."""

_TWO_LIMITS = _solution("""
watch_queue_set_filter() walks the user's filters twice. The first loop counts those whose type is
below sizeof(type_filter) * 8, and room is allocated for as many; the second copies those below
sizeof(type_filter) * BITS_PER_LONG, a much larger limit. A type between the two is copied but was
not counted: the copy is written past the end of the array, and its bit past the end of the bitmap.
Compare with WATCH_TYPE__NR, the number of types that there are, in both loops. The earlier change
of the order is not needed: undo it.""")
_WEIGHED_AGAIN = """
1. Strength: it explains why the write is out of bounds of a new object, and why type 100 is needed.
2. Weakness: an object whose size is known at its allocation is no false report.

<choice>1</choice>"""
_FIRST, _SECOND = (
    f"\t\tif (tf[i].type >= sizeof(wfilter->type_filter) * {unit})\n\t\t\tcontinue;"
    for unit in ("8", "BITS_PER_LONG")
)
_RIGHT = "\t\tif (tf[i].type >= WATCH_TYPE__NR)\n\t\t\tcontinue;"
_UNDONE = _change("The number was set in time.", "\tq = wfilter->filters;", _COUNT) + _change(
    "The number was set in time.", f"{_COPIED}\twfilter->nr_filters = nr_filter;\n", _COPIED
)
_FIX = (
    _change("Count what there is a type for.", _FIRST, _RIGHT)
    + _change("Copy just what was counted.", _SECOND, _RIGHT)
    + _UNDONE
)
_HALF_FIX = _change("Copy no more than was counted.", _SECOND, _RIGHT) + _UNDONE
_REFUSAL = (
    _change(
        "No type that the bitmap has no bit for.",
        _FIRST,
        _RIGHT.replace("continue", "goto err_filter"),
    )
    + _UNDONE
)
_JUDGED = """
1 uses the same limit, the number of types, in both loops, and so does what the solution says.
2 leaves the wrong limit in the loop that counts.
3 refuses what user space was allowed to ask for before.

<choice>1</choice>"""

ANSWERS = {
    ("t0", "hypothesis"): [_LATE, _FREED],
    ("t0", "reflection"): [_WEIGHED],
    ("t0", "patch"): [_NOT_THERE, _NOT_C, _MOVED],
    ("t0", "repair"): [_MOVED, _HALF],
    ("t0", "summary"): [_LEARNED],
    ("t0.0", "hypothesis"): [_TWO_LIMITS, _FALSE],
    ("t0.0", "reflection"): [_WEIGHED_AGAIN],
    ("t0.0", "patch"): [_FIX, _HALF_FIX, _REFUSAL],
    ("t0.0", "consistency"): [_JUDGED],
    ("t0.1", "hypothesis"): [_FALSE, _FALSE],
    ("t0.1", "patch"): [_SILENT, _SILENT, _SILENT],
    ("t0.1", "summary"): [_SILENCED],
}
"""What is answered, by the cycle that asks and what for; then by the number of its kind."""


class Written:
    """Answers as they were written."""

    name = "written by hand"

    async def ask(self, call: Call) -> Reply:
        """Return the answer to a question of the demo's search."""
        node = call.prompt.identity.partition("\n")[0]
        answers = ANSWERS[node, call.prompt.purpose]
        if call.prompt.purpose == "repair":  # which patch is to be mended tells them apart
            number = int("nr_filter_copied" in call.prompt.text)
        else:
            asked = re.findall(r"[hp](\d+)/", call.occurrence)
            number = int(asked[-1]) if asked else 0
        text = answers[number].strip()
        return Reply(
            text=text,
            model=self.name,
            finish="stop",
            input_tokens=(len(call.prompt.system) + len(call.prompt.text)) // 4,
            output_tokens=len(text) // 4,
        )

    async def close(self) -> None:
        """Nothing is held."""


async def record(server: str, tape: Path) -> RunView:
    """Carry out the demo's run on the platform there; return it."""

    @asynccontextmanager
    async def opened(
        run: Stored, bug: Bug, strategy: Strategy, submitted: Submitted
    ) -> AsyncIterator[Platform]:
        async with AsyncClient(server) as client:
            yield SchedulerPlatform(
                client, bug, strategy, key=run.key, group=f"demo-{run.key}", submitted=submitted
            )

    with tempfile.TemporaryDirectory() as scratch:
        agent = Agent(RunStore(Path(scratch)), lambda _: Recorder(Written(), tape), opened)
        request = RunRequest(bug="watch-queue-filter", strategy="demo", model=Written.name)
        begin(tape, Head(bug=request.bug, strategy=load("demo")))
        run = await agent.start(request)
        await agent.wait(run)
        view = await agent.show(run)
        await agent.close()
    return view


if __name__ == "__main__":
    print(asyncio.run(record(sys.argv[1], Path(sys.argv[2]))).model_dump_json(indent=2))
