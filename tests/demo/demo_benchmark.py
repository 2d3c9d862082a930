"""A benchmark with attempts, for pages and for what is measured: made up, the same each time."""

import asyncio
import random
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from kgym.bench import publication
from kgym.bench.attempt_record import AttemptRecord, Outcome, Overlap, Setup, Votes
from kgym.bench.bug_record import BugFacts, PublishedBug
from kgym.bench.dataset import About
from kgym.bench.publication import BenchmarkStore

NAME = "demo-bench"
# The id of its first bug.
FIRST = "00000000" * 5
_SEED = 20251222
_AGENTS = ("plain", "tool", "forest", "explorer", "function-wise")
_MODELS = ("model-a", "model-b")
_SUBSYSTEMS = ("net", "ext4", "usb", "io-uring", "bpf", "sound", "wireless", "mm")
_KINDS = (
    ("KASAN-READ", "KASAN use-after-free", "KASAN: use-after-free Read in"),
    ("KASAN-WRITE", "KASAN slab-out-of-bounds", "KASAN: slab-out-of-bounds Write in"),
    ("WARNING", "WARNING", "WARNING in"),
    ("NULL-POINTER-DEREFERENCE", "general protection fault", "general protection fault in"),
    ("MEMORY_LEAK", "memory leak", "memory leak in"),
)
_FAILED = (Outcome.TRIGGER, Outcome.OTHER, Outcome.BOOT, Outcome.COMPILE, Outcome.BAD)
_BEGIN = datetime(2024, 6, 1, tzinfo=UTC)


def bugs(count: int) -> list[PublishedBug]:
    """Return bugs, fixed in the course of 19 months."""
    chance = random.Random(_SEED)
    return [_bug(number, chance) for number in range(count)]


def setups(count: int) -> list[Setup]:
    """Return setups, each other than the rest."""
    return [
        Setup(
            agent=_AGENTS[number % len(_AGENTS)],
            model=_MODELS[number // 2 % len(_MODELS)],
            settings=f"v{number // (2 * len(_AGENTS)) + 1}",
            feedback=number % 2 == 0,
            dollars=5.6 if number % 3 == 0 else None,
        )
        for number in range(count)
    ]


def attempts(on: Sequence[PublishedBug], by: Sequence[Setup], runs: int) -> Iterator[AttemptRecord]:
    """Yield attempts: some setups are better than others, and some bugs harder."""
    chance = random.Random(_SEED + 1)
    hard = [chance.random() for _ in on]
    for number, setup in enumerate(by):
        able = 0.35 + 0.5 * (number + 1) / len(by)
        for bug, hardness in zip(on, hard, strict=True):
            odds = 0.0 if hardness > 0.95 else able * (1.3 - hardness)
            for run in range(1, runs + 1):
                yield _attempt(bug.facts.id, setup, run, odds, chance)


def put(store: BenchmarkStore) -> None:
    """Publish a small benchmark."""
    on, by = bugs(40), setups(6)
    publish(store, NAME, on, attempts(on, by, 3))


def publish(
    store: BenchmarkStore, name: str, on: Sequence[PublishedBug], tried: Iterable[AttemptRecord]
) -> None:
    """Publish bugs and attempts on them."""
    about = About(
        name=name,
        description="Made up, to show what pages look like.",
        bugs=len(on),
        sha256="de" * 32,
    )
    asyncio.run(publication.publish(store, name, about, on, tried))


def _bug(number: int, chance: random.Random) -> PublishedBug:
    kind, class_, words = _KINDS[number % len(_KINDS)]
    subsystem = chance.choice(_SUBSYSTEMS)
    fixed = _BEGIN + timedelta(days=chance.randrange(570))
    function, lines = f"{subsystem.replace('-', '_')}_part_{number}", chance.randrange(1, 60)
    file = f"{subsystem}/part{number % 7}.c"
    facts = BugFacts(
        id=f"{number:08x}" * 5,
        title=f"{words} {function}",
        titles=[f"{words} {function}"],
        status="fixed",
        subsystems=[subsystem],
        type=kind,
        crash_class=class_,
        compilers=["gcc 12.2.0" if number % 3 else "Debian clang version 15.0.6"],
        reproducer="both" if number % 4 else "syz",
        reported=fixed - timedelta(days=chance.randrange(1, 200)),
        fixed=fixed,
        fix=f"{number:012x}",
        fix_title=f"{subsystem}: check the length in {function}()",
        lines=lines,
        files=[file],
        functions=[f"{file}:{function}"],
        has_cause=number % 3 == 0,
    )
    return PublishedBug(facts=facts, diff=_patch(file, "len > sizeof(*p)"))


def _attempt(bug: str, setup: Setup, run: int, odds: float, chance: random.Random) -> AttemptRecord:
    passed = chance.random() < odds
    outcome = Outcome.PASS if passed else chance.choice(_FAILED)
    yes = chance.randrange(10) if passed else 0
    share = chance.randrange(3)
    return AttemptRecord(
        bug=bug,
        setup=setup,
        run=run,
        outcome=outcome,
        crashed=0 if passed else chance.randrange(26),
        completed=25,
        votes=Votes(yes=yes, no=9 - yes) if passed else None,
        files=Overlap(common=min(share, 1), all=1 + share // 2),
        functions=Overlap(common=share // 2, all=1),
        clean=passed and chance.random() < 0.9,
        equivalence=Overlap(common=chance.randrange(1800, 2001), all=2000) if passed else None,
        dollars=round(chance.uniform(0.1, 3), 4),
        kernel_dollars=0.28 * (run % 3),
        seconds=round(chance.uniform(60, 2400), 1),
        kernel_runs=run % 3 if setup.feedback else 0,
        tokens=chance.randrange(10_000, 2_000_000),
        diff=None if outcome is Outcome.BAD else _patch("net/core.c", f"n < {run}"),
    )


def _patch(file: str, test: str) -> str:
    return (
        f"--- a/{file}\n+++ b/{file}\n@@ -10,3 +10,5 @@\n \tp = next(q);\n"
        f"+\tif ({test})\n+\t\treturn -EINVAL;\n \tuse(p);\n"
    )
