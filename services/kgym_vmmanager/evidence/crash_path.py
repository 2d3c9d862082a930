"""The way to a crash: the functions of its stack, and where another build has them. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kgym.api.steps import InstanceArtifact, InstanceOutcome, Reached, ReproduceResult

# Functions that are looked for, inmost first.
LONGEST = 12
# A name that more functions have than that tells nothing.
_TWINS = 4
_SYMBOL = re.compile(r"^([0-9a-f]{16}) [tTwW] (\S+)$", re.MULTILINE | re.ASCII)
_VARIANT = re.compile(r"\.(isra|constprop|part|cold|llvm)\b.*")
_FRAME = re.compile(r"[A-Za-z_][\w.]{0,200}", re.ASCII)


def report_of(baseline: ReproduceResult, kept: Iterable[str]) -> str | None:
    """Return which of the artifacts reports the baseline's crash.

    Other instances may have crashed otherwise, or while they booted.
    """
    names = list(kept)
    for instance in baseline.instances:
        if instance.outcome is InstanceOutcome.CRASH and instance.title == baseline.title:
            wanted = re.compile(InstanceArtifact.REPORT_JSON.of(rf"{instance.number}(-retry-\d+)?"))
            if reports := [name for name in names if wanted.fullmatch(name)]:
                return reports[-1]
    return None


def functions(report: Mapping[str, Any]) -> list[str]:
    """Return the functions of a crash report (`CrashReport.as_dict`) from where it crashed out.

    Inlined ones have no address, and what the report is not sure of says nothing.
    """
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
    """Return where these functions begin in a kernel with this System.map, in their order."""
    places: dict[str, list[int]] = {name: [] for name in wanted}
    for match in _SYMBOL.finditer(system_map):
        name = _VARIANT.sub("", match[2])
        if name in places and ".cold" not in match[2]:
            places[name].append(int(match[1], 16))
    known = {name: tuple(at) for name, at in places.items() if 0 < len(at) <= _TWINS}
    return dict(list(known.items())[:LONGEST])


def reached(wanted: Iterable[str], common: frozenset[str], hit: frozenset[str]) -> list[Reached]:
    """Return which functions were gone through, less those that everybody goes through."""
    return [Reached(function=name, reached=name in hit) for name in wanted if name not in common]
