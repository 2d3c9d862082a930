"""The detectors of a kernel, from its config and command line. Pure.

The config, and the list of faults that cannot be raised, are those of the kernel without the patch:
a patch that removes a detector must not be excused for it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kgym.api.steps import ControlName
from kgym.crash.report import CrashType, type_of

KASAN = (ControlName.KASAN_OUT_OF_BOUNDS, ControlName.KASAN_USE_AFTER_FREE)
# The kinds of undefined behaviour that controls raise; UBSAN_MISC is Linux 5.10's symbol.
_UBSAN = {"shift": ("UBSAN_SHIFT", "UBSAN_MISC"), "bounds": ("UBSAN_BOUNDS", "UBSAN_MISC")}
WHOLE = "all"
WATCH = "watch"
# The parts of the object that raises faults, with the faults of each. A kernel may reject a part.
# WATCH raises none: it counts tasks that end with a detector switched off.
PARTS: Mapping[str, tuple[ControlName, ...]] = {
    WHOLE: tuple(ControlName),
    WATCH: (),
    "kasan": KASAN,
    **{
        str(name): (name,)
        for name in ControlName
        if name not in KASAN and name is not ControlName.PANIC
    },
}
_ALWAYS = frozenset({ControlName.WARNING, ControlName.PANIC, ControlName.OOPS})
# Needed in addition to _ALWAYS, by crash type; other types need every detector.
_OF_TYPES: Mapping[CrashType, tuple[ControlName, ...]] = {
    CrashType.WARNING: (),
    CrashType.BUG: (),
    CrashType.REFCOUNT: (),
    CrashType.LOCKDEP: (ControlName.LOCKDEP,),
    CrashType.HANG: (ControlName.HUNG_TASK,),
    CrashType.MEMORY_LEAK: (ControlName.LEAK,),
    CrashType.UBSAN: (ControlName.UBSAN,),
    CrashType.MEMORY_SAFETY_UBSAN: (ControlName.UBSAN, *KASAN),
    CrashType.DOS: KASAN,
    CrashType.MEMORY_SAFETY_BUG: KASAN,
    CrashType.NULL_DEREF: KASAN,
    **dict.fromkeys((kind for kind in CrashType if kind.startswith("KASAN-")), KASAN),
}
# The config symbols that the answer depends on.
SYMBOLS = frozenset(
    {
        *("BUG", "DETECT_HUNG_TASK", "PROVE_LOCKING", "KASAN_GENERIC", "KASAN_SW_TAGS"),
        *("UBSAN", "UBSAN_TRAP", "UBSAN_SANITIZE_ALL", "UBSAN_SHIFT", "UBSAN_BOUNDS"),
        *("UBSAN_MISC", "DEBUG_FS", "DEBUG_KMEMLEAK", "DEBUG_KMEMLEAK_DEFAULT_OFF"),
        "TRACEPOINTS",
    }
)
_UNAVAILABLE = "controls not available on this kernel"
_LINE = re.compile(r"CONFIG_(\w+)=(.*)|# CONFIG_(\w+) is not set")


@dataclass(frozen=True, slots=True)
class Detectors:
    """The faults that a kernel reports, according to its config and command line."""

    lacking: Mapping[ControlName, str]
    """The faults that it does not detect, with reasons."""
    ubsan: tuple[str, ...]
    """The kinds of undefined behaviour that it detects: `shift`, `bounds`."""
    panics: bool
    """Whether a KASAN report makes it panic."""
    unavailable: Mapping[ControlName, str] = field(default_factory=dict)
    """The faults that it may detect but that cannot be raised on it, with reasons."""
    unwatched: str = ""
    """Why tasks that end with a detector switched off cannot be counted; empty if they can."""


def symbols(config: str) -> dict[str, str]:
    """Return the SYMBOLS that occur in a .config, with their values (`n`: not set)."""
    values = {}
    for line in config.splitlines():
        if match := _LINE.fullmatch(line):
            values[match[1] or match[3]] = match[2] or "n"
    return {name: values[name] for name in sorted(SYMBOLS & values.keys())}


def detectors(
    symbols: Mapping[str, str], command_line: str, lacking: Mapping[str, str] | None = None
) -> Detectors:
    """Return the detectors of a kernel with these symbols and this command line.

    `lacking` are the parts (PARTS) that its object for raising faults does not have, with reasons.
    """
    words = command_line.split()
    lacks = {
        ControlName.WARNING: _without(symbols, "BUG"),
        **dict.fromkeys(KASAN, _without(symbols, "KASAN_GENERIC", "KASAN_SW_TAGS")),
        ControlName.UBSAN: _no_ubsan(symbols),
        ControlName.LOCKDEP: _without(symbols, "PROVE_LOCKING"),
        ControlName.HUNG_TASK: _without(symbols, "DETECT_HUNG_TASK"),
        ControlName.LEAK: _no_kmemleak(symbols, words),
    }
    gone = {part: f"{_UNAVAILABLE}: {why}" for part, why in (lacking or {}).items()}
    return Detectors(
        lacking={name: why for name, why in lacks.items() if why},
        ubsan=_ubsan(symbols),
        panics=_panics(words),
        unavailable={
            name: why
            for part, why in gone.items()
            for name in PARTS.get(part, tuple(ControlName))
            if not lacks.get(name)
        },
        unwatched=gone.get(WHOLE) or gone.get(WATCH) or _without(symbols, "TRACEPOINTS"),
    )


def needed(titles: Sequence[str]) -> frozenset[ControlName]:
    """Return the faults that a kernel has to report to be trusted to report such a crash."""
    faults = set(_ALWAYS) if titles else set(ControlName)
    for title in titles:
        faults |= set(_OF_TYPES.get(type_of(title), ControlName))
    return frozenset(faults)


def _without(symbols: Mapping[str, str], *names: str) -> str:
    return "" if any(symbols.get(name) == "y" for name in names) else f"no CONFIG_{names[0]}"


def _ubsan(symbols: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(kind for kind, names in _UBSAN.items() if not _without(symbols, *names))


def _no_ubsan(symbols: Mapping[str, str]) -> str:
    if why := _without(symbols, "UBSAN"):
        return why
    if symbols.get("UBSAN_TRAP") == "y":
        return "CONFIG_UBSAN_TRAP makes it an oops like others"
    if symbols.get("UBSAN_SANITIZE_ALL") == "n":  # Linux 6.9 removed the symbol: always on since
        return "no CONFIG_UBSAN_SANITIZE_ALL"
    return "" if _ubsan(symbols) else "no CONFIG_UBSAN_SHIFT, nor CONFIG_UBSAN_BOUNDS"


def _no_kmemleak(symbols: Mapping[str, str], words: Sequence[str]) -> str:
    if why := _without(symbols, "DEBUG_KMEMLEAK") or _without(symbols, "DEBUG_FS"):
        return why
    # As in mm/kmemleak.c: the last `kmemleak=` of the command line overrides the config's default.
    off = symbols.get("DEBUG_KMEMLEAK_DEFAULT_OFF") == "y"
    for word in words:
        if word in ("kmemleak=on", "kmemleak=off"):
            off = word == "kmemleak=off"
    return "kmemleak is not switched on by the command line" if off else ""


def _panics(words: Sequence[str]) -> bool:
    # The last parameter of a name counts. With kasan_multi_shot, KASAN does not panic_on_warn
    # (mm/kasan/report.c, end_report()).
    last = dict(word.partition("=")[::2] for word in words)
    on_warn = last.get("panic_on_warn") == "1" and "kasan_multi_shot" not in last
    return on_warn or last.get("kasan.fault") == "panic"
