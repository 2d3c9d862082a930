"""The functions on a crash's stack, and their addresses in another build. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kgym.api.steps import InstanceArtifact, InstanceOutcome, Reached, ReproduceResult

# Functions that are watched, innermost first: the outer ones are those of every system call.
LONGEST = 12
# A static name that more functions share identifies none of them.
_TWINS = 4
_SYMBOL = re.compile(r"^([0-9a-f]{16}) [tTwW] (\S+)$", re.MULTILINE | re.ASCII)
_VARIANT = re.compile(r"\.(isra|constprop|part|cold|llvm)\b.*")
_FRAME = re.compile(r"[A-Za-z_][\w.]{0,200}", re.ASCII)


def report_of(baseline: ReproduceResult, kept: Iterable[str]) -> str | None:
    """Return the name of the artifact that reports the baseline's crash, if there is one."""
    # Other instances may have crashed differently, or while they booted.
    names = list(kept)
    for instance in baseline.instances:
        if instance.outcome is InstanceOutcome.CRASH and instance.title == baseline.title:
            wanted = re.compile(InstanceArtifact.REPORT_JSON.of(rf"{instance.number}(-retry-\d+)?"))
            if reports := [name for name in names if wanted.fullmatch(name)]:
                return reports[-1]
    return None


def functions(report: Mapping[str, Any]) -> list[str]:
    """Return the functions of a report (`CrashReport.as_dict`), from the crash outwards."""
    # Inlined functions have no address; uncertain frames (`?`) may be leftovers on the stack.
    frames = [
        _VARIANT.sub("", frame["function"])
        for frame in report.get("frames") or []
        if not frame["inlined"] and not frame["uncertain"] and _FRAME.fullmatch(frame["function"])
    ]
    inmost = report.get("frame")
    if inmost in frames:
        frames = frames[frames.index(inmost) :]
    return list(dict.fromkeys(frames))


def addresses(system_map: str, wanted: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the start addresses of these functions by a System.map, in the given order."""
    places: dict[str, list[int]] = {name: [] for name in wanted}
    for match in _SYMBOL.finditer(system_map):
        name = _VARIANT.sub("", match[2])
        if name in places and ".cold" not in match[2]:
            places[name].append(int(match[1], 16))
    known = {name: tuple(at) for name, at in places.items() if 0 < len(at) <= _TWINS}
    return dict(list(known.items())[:LONGEST])


def reached(wanted: Iterable[str], common: frozenset[str], hit: frozenset[str]) -> list[Reached]:
    """Return which functions were reached, leaving out those that any program reaches."""
    return [Reached(function=name, reached=name in hit) for name in wanted if name not in common]
