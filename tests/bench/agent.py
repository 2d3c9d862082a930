"""The agent's own speed: the model and the platform are made up.

cycle_ms      its own work for a debug cycle: the model and the platform answer at once;
              cycle_cpu_ms is the processor's part of it
replay_s      a run of 16 cycles from a tape, on simulated jobs that take no time
idle_share    how much of the time of two workers that try kernels goes unused while four trees
              want kernels tried, from the first kernel to the end of the first tree: a question
              takes 0.1 s, a check 0.05 s, a kernel 1 s. Checks have a worker of their own, as on
              a host that does everything (`step_registry.workers_of_one_host`)

What `run_kernel` takes is measured by `agent_door`, on a real platform:

door_overhead_s  from the call to the answer, without build and reproducer
uncompilable_s   the whole answer for a patch that does not compile

What the agent asks is measured by `agent_questions`; the kernel that it needs is compiled first:

first_question_s   from the start of a run to its first question, on a bug that was shown before
prompt_tokens      of the questions of a strategy's first cycle, up to its first kernel
localised_share    of real reports, whose fixed file is among the first five candidates
"""

import asyncio
import functools
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kgym.api.agent.conversation import Reply
from kgym.api.agent.nodes import Crash, Tried
from kgym.api.agent.runs import RunRequest, RunView
from kgym.api.agent.strategy import Forest, Strategy
from kgym.api.steps import PatchCheck, PatchOutcome, Verdict
from kgym.bugs.bug import Bug
from kgym_crashfixer.context import Near, cut
from kgym_crashfixer.models.model import Call, Model
from kgym_crashfixer.models.tape import Recorder, Replay
from kgym_crashfixer.platform_protocol import BEGIN, Begun, Submitted
from kgym_crashfixer.runs.agent import Agent
from kgym_crashfixer.runs.run_store import RunStore, Stored
from kgym_crashfixer.search.work import (
    Check,
    Checked,
    PlatformWork,
    Question,
    Result,
    Seen,
    Source,
    Try,
)
from tests.bench.agent_door import door
from tests.bench.agent_questions import questions
from tests.crashfixer.world import edit, limit
from tests.figures import parser, show

CYCLES = 16
# Four trees side by side: what keeps a platform busy.
TREES = Forest(name="trees", trees=4, depth=4)
WORKERS = 2
# Tokens of code in a question.
WINDOW = 30_000


def source(functions: int) -> str:
    """Return a C file of about 300 bytes for each function."""
    body = "".join(f"\tif (value[{n}] > {n})\n\t\treturn -EINVAL;\n" for n in range(6))
    function = "static int made_{n}(struct made *made, int *value)\n{{\n{body}\treturn 0;\n}}\n\n"
    return "#define LIMIT 99\n\n" + "".join(
        function.format(n=n, body=body) for n in range(functions)
    )


FILES = {"kernel/watch.c": source(400), "kernel/other.c": source(400)}
CRASH = Crash(
    title="KASAN: out-of-bounds in made_7",
    report="BUG: KASAN: out-of-bounds in made_7\n" + " made_7+0x1/0x2\n" * 100,
    trace="made_6() [active]\n\\_ made_7() [active]\n" * 10,
)


@functools.lru_cache(maxsize=64)
def shown(
    files: tuple[tuple[str, str], ...], report: str, trace: str | None, changed: str
) -> dict[str, str]:
    """Cut files to the window, as the platform does."""
    return dict(cut(dict(files), Near.of(report, trace, changed), WINDOW).files)


class Numbers:
    """A model that writes another number each time; none is right."""

    name = "made:up"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def ask(self, call: Call) -> Reply:
        await asyncio.sleep(self._seconds)
        text = "<choice>1</choice>"
        match call.prompt.purpose:
            case "hypothesis":
                text = f"<solution>The limit is wrong ({call.occurrence}).</solution>"
            case "patch":
                new = int.from_bytes(call.occurrence.encode()) % 1_000_003
                text = edit(limit(call.prompt.text), str(1000 + new))
            case "summary":
                text = "Another number did not help."
        return Reply(text=text, model=self.name, price=0.0)

    async def close(self) -> None:
        pass


class Workers:
    """A platform of two workers for kernels and one for checks.

    It counts how long the two work, until the first tree has ended.
    """

    def __init__(self, submitted: Submitted, check: float, kernel: float) -> None:
        self._submitted, self._seconds = submitted, {Check: check, Try: kernel}
        self._free = {Check: asyncio.Semaphore(1), Try: asyncio.Semaphore(WORKERS)}
        self._jobs = 0
        self._tries: dict[str, int] = {}
        self._begun = 0.0
        self._worked = 0.0
        # When each kernel that is being tried began.
        self._trying: dict[str, float] = {}
        self.idle_share: float | None = None

    async def begin(self) -> Begun:
        await self._submitted(BEGIN, 1)
        return Begun(crash=CRASH, files=FILES, job=1)

    async def resume(self, begun: Begun) -> None:
        pass

    async def do(self, name: str, work: PlatformWork) -> Result:
        if isinstance(work, Source):
            return Seen(text="")
        self._jobs += 1
        await self._submitted(name, 1 + self._jobs)
        async with self._free[type(work)]:
            begun = time.monotonic()
            if isinstance(work, Try):
                self._trying[name] = begun
            await asyncio.sleep(self._seconds[type(work)])
        if isinstance(work, Check):
            good = PatchOutcome.COMPILES
            return Checked(
                patches=[
                    PatchCheck(name=patch.name, outcome=good, seconds=0) for patch in work.patches
                ]
            )
        now = time.monotonic()
        del self._trying[name]
        self._begun = self._begun or begun
        self._worked += now - begun
        tree = work.node.partition(".")[0]
        self._tries[tree] = self._tries.get(tree, 0) + 1
        if self._tries[tree] == CYCLES // 4 and self.idle_share is None:
            worked = self._worked + sum(now - started for started in self._trying.values())
            self.idle_share = 1 - worked / ((now - self._begun) * WORKERS)
        return Tried(verdict=Verdict.SAME_CRASH, crash=CRASH)

    def fitted(self, question: Question) -> Question:
        values = question.values
        if not isinstance(values["files"], dict):
            return question
        near = values["report"], values["trace"], values["changed"]
        files = shown(tuple(values["files"].items()), *near)
        return question.model_copy(update={"values": {**values, "files": files}})

    async def close(self) -> None:
        pass


async def ran(
    folder: Path, model: Model, check: float = 0.0, kernel: float = 0.0
) -> tuple[float, RunView, Workers]:
    """Carry out a forest that finds nothing; return the seconds it took, and what it did."""
    store = RunStore(Path(tempfile.mkdtemp(dir=folder)))
    platforms: list[Workers] = []

    @asynccontextmanager
    async def opened(
        run: Stored, bug: Bug, strategy: Strategy, submitted: Submitted
    ) -> AsyncIterator[Workers]:
        platforms.append(Workers(submitted, check, kernel))
        yield platforms[-1]

    agent = Agent(store, lambda _: model, opened)
    try:
        request = RunRequest(bug="watch-queue-filter", strategy=TREES, model="made:up")
        begun = time.monotonic()
        run = await agent.start(request)
        await agent.wait(run)
        seconds = time.monotonic() - begun
        view = await agent.show(run)
    finally:
        await agent.close()
    if len(view.nodes) != CYCLES:
        raise SystemExit(f"{len(view.nodes)} cycles instead of {CYCLES}: {view.reason}")
    return seconds, view, platforms[0]


async def figures() -> dict[str, Any]:
    """Measure all."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tape = folder / "tape.jsonl"
        await ran(folder, Recorder(Numbers(0.0), tape))  # what is imported late is there then
        cpu = time.process_time()
        seconds, view, _ = await ran(folder, Numbers(0.0))
        cpu = time.process_time() - cpu
        replayed, _, _ = await ran(folder, Replay(tape))
        _, _, workers = await ran(folder, Numbers(0.1), check=0.05, kernel=1.0)
    assert workers.idle_share is not None
    return {
        "cycle_ms": round(1000 * seconds / CYCLES, 1),
        "cycle_cpu_ms": round(1000 * cpu / CYCLES, 1),
        "questions": view.spent.calls,
        "replay_s": round(replayed, 2),
        "idle_share": round(workers.idle_share, 4),
    }


def main() -> None:
    """Measure; print JSON, or a line for each figure."""
    options = parser(__doc__).parse_args()
    show(asyncio.run(figures()) | door() | questions(FILES, CRASH), options)


if __name__ == "__main__":
    main()
