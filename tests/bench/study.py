"""Simulated searches: what each strategy resolves for a dollar, builds included.

Bugs, models and platforms are drawn by chance (`tests/crashfixer/skill.py` has the assumptions);
the searches are the real ones. It says how strategies compare under these assumptions, and
nothing about a real model. Every strategy meets the same bugs.

one       one search of each bug: shares resolved and claimed wrongly, dollars, kernels, hours
equal     each strategy again and again until so many dollars are spent: share resolved, with its
          standard error
settings  the same with one assumption changed, for a few strategies
"""

import argparse
import gc
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from typing import Any

from kgym_crashfixer import strategies
from tests.crashfixer.skill import Bug, Prices, Simulation, Skill

# Dollars for a bug.
EQUAL = (1.0, 2.0, 4.0)
# Rows whose simulation is that of another: reasons and the model's name are not simulated.
SAME = {f"table2-{row:02}" for row in (3, 8, 9, 10, 11, 12)}
# What examples, a cause and definitions change about answers is assumed nowhere.
NOT_SIMULATED = "rgym-"
COMPARED = ("tool", "forest", "best-first", "escalate")
BASE = (Skill(), Prices())
SETTINGS: dict[str, tuple[Skill, Prices]] = {
    "as stated": BASE,
    "the fix is always in the files": (replace(BASE[0], elsewhere=0.0), BASE[1]),
    "a plain agent sees no more files": (replace(BASE[0], outside=0.0), BASE[1]),
    "answers repeat each other less (0.2)": (replace(BASE[0], habit=0.2), BASE[1]),
    "answers repeat each other more (0.8)": (replace(BASE[0], habit=0.8), BASE[1]),
    "reflection sees little (0.3)": (replace(BASE[0], reflects=0.3), BASE[1]),
    "reflection sees much (0.9)": (replace(BASE[0], reflects=0.9), BASE[1]),
    "the model learns little": (replace(BASE[0], learns=0.35, stubborn=0.7), BASE[1]),
    "hard bugs (0.15)": (replace(BASE[0], insight=0.15), BASE[1]),
    "kernels cost nothing": (BASE[0], replace(BASE[1], kernel=0.0, check=0.0)),
    "kernels cost five times as much": (BASE[0], replace(BASE[1], kernel=5 * BASE[1].kernel)),
    "nothing is cached": (BASE[0], replace(BASE[1], cached=BASE[1].read)),
    "nothing is cached between cycles": (BASE[0], replace(BASE[1], across=False)),
    "further hypotheses are worth little (0.2)": (replace(BASE[0], listed=0.2), BASE[1]),
    "a ranking within the answer is worth nothing": (replace(BASE[0], weighs=0.0), BASE[1]),
    "further patches repeat the first (0.9)": (replace(BASE[0], alike=0.9), BASE[1]),
    "what was supposed teaches little": (replace(BASE[0], supposition=False), BASE[1]),
    "twice as many wrong theories": (replace(BASE[0], theories=12), BASE[1]),
}


def names() -> list[str]:
    """Return the strategies that differ in a simulation."""
    return [
        name
        for name in strategies.names()
        if name[:9] not in SAME and not name.startswith(NOT_SIMULATED)
    ]


def searched(seed: int, skill: Skill, prices: Prices, name: str) -> Counter[str]:
    """Search for a fix of one bug until the most dollars are spent; return what to sum up."""
    simulation = Simulation(Bug(seed, skill), prices, strategies.load(name))
    claimed = simulation.search(limit=float("inf"))
    counts: Counter[str] = Counter()
    counts["bugs"] += 1
    counts["resolved"] += bool(simulation.right)
    counts["wrong"] += simulation.right is False
    counts["dollars"] += simulation.dollars  # type: ignore[assignment]
    counts["kernels"] += simulation.kernels
    counts["hours"] += simulation.seconds / 3600  # type: ignore[assignment]
    while not claimed and simulation.dollars < EQUAL[-1]:
        claimed = simulation.search(limit=EQUAL[-1])
    for dollars in EQUAL:
        counts[f"at {dollars:g}"] += bool(simulation.right) and simulation.dollars <= dollars
    return counts


def part(job: tuple[str, tuple[str, ...], range]) -> dict[tuple[str, str], Counter[str]]:
    """Search for fixes of some bugs in one setting; return sums by setting and strategy."""
    setting, strategies, seeds = job
    gc.set_threshold(100_000, 20, 20)  # it takes a tenth of the time otherwise
    sums: dict[tuple[str, str], Counter[str]] = {}
    for seed in seeds:
        for name in strategies:
            run = searched(seed, *SETTINGS[setting], name)
            sums.setdefault((setting, name), Counter()).update(run)
    return sums


def row(setting: str, name: str, sums: Counter[str]) -> dict[str, Any]:
    """Return what a strategy came to, for one bug."""
    bugs = sums["bugs"]
    return {
        "setting": setting,
        "strategy": name,
        "localisation": strategies.load(name).localisation,
        "bugs": bugs,
        "resolved": round(sums["resolved"] / bugs, 4),
        "claimed_wrongly": round(sums["wrong"] / bugs, 4),
        "dollars": round(sums["dollars"] / bugs, 3),
        "dollars_per_resolved": round(sums["dollars"] / sums["resolved"], 2)
        if sums["resolved"]
        else None,
        "kernels": round(sums["kernels"] / bugs, 2),
        "hours": round(sums["hours"] / bugs, 2),
        "resolved_at_dollars": {
            f"{dollars:g}": round(sums[f"at {dollars:g}"] / bugs, 4) for dollars in EQUAL
        },
        "standard_error_at_dollars": {
            f"{dollars:g}": round(_error(sums[f"at {dollars:g}"] / bugs, bugs), 4)
            for dollars in EQUAL
        },
    }


def _error(share: float, bugs: int) -> float:
    """Return the standard error of a share."""
    return math.sqrt(share * (1 - share) / bugs)


def table(rows: Iterable[dict[str, Any]], first: str) -> str:
    """Return rows as Markdown; `first` is the key that tells them apart."""
    equal = " | ".join(f"at ${dollars:g}" for dollars in EQUAL)
    lines = [
        f"| {first} | files | resolved | claimed wrongly | $ a bug | $ a resolved bug | hours |"
        f" {equal} |",
        f"|---|---|{'---:|' * (5 + len(EQUAL))}",
    ]
    for line in rows:
        errors = line["standard_error_at_dollars"]
        at = " | ".join(
            f"{share:.1%} ± {errors[dollars]:.1%}"
            for dollars, share in line["resolved_at_dollars"].items()
        )
        lines.append(
            f"| {line[first]} | {line['localisation']} | {line['resolved']:.1%}"
            f" | {line['claimed_wrongly']:.1%} | {line['dollars']:.2f}"
            f" | {line['dollars_per_resolved'] or 0:.2f} | {line['hours']:.1f} | {at} |"
        )
    return "\n".join(lines).replace("%", " %")


def main() -> None:
    """Simulate; print the tables, or all figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bugs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first bug")
    parser.add_argument("--others", type=int, default=400, help="bugs of each other setting")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    begun = time.monotonic()
    last = arguments.first + arguments.bugs
    sums: dict[tuple[str, str], Counter[str]] = {}
    jobs = [
        ("as stated", tuple(names()), range(at, min(at + 5, last)))
        for at in range(arguments.first, last, 5)
    ]
    others = [
        (setting, COMPARED, range(at, min(at + 20, arguments.first + arguments.others)))
        for at in range(arguments.first, arguments.first + arguments.others, 20)
        for setting in SETTINGS
        if setting != "as stated"
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        for sums_of_part in pool.map(part, [*others, *jobs]):
            for key, more in sums_of_part.items():
                sums.setdefault(key, Counter()).update(more)
    figures = answer(sums, time.monotonic() - begun)
    if arguments.json:
        print(json.dumps(figures))
        return
    print(table(figures["strategies"], "strategy"))
    for name in COMPARED:
        rows = (line for line in figures["settings"] if line["strategy"] == name)
        print(f"\n{name}\n\n{table(rows, 'setting')}")


def answer(sums: dict[tuple[str, str], Counter[str]], seconds: float) -> dict[str, Any]:
    """Return all figures, with the assumptions that they rest on."""
    rows = [row(setting, name, counts) for (setting, name), counts in sums.items()]
    return {
        "simulation": True,
        "skill": asdict(BASE[0]),
        "prices": asdict(BASE[1]),
        "strategies": [line for line in rows if line["setting"] == "as stated"],
        "settings": [line for line in rows if line["strategy"] in COMPARED],
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    main()
