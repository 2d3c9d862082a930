"""Which detectors a kernel has, by its config and command line. Pure.

The config is that of the kernel without the patch that is tried: a patch cannot take a
detector away and be excused for it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgym.steps import ControlName

KASAN = (ControlName.KASAN_OUT_OF_BOUNDS, ControlName.KASAN_USE_AFTER_FREE)
_UBSAN = {"shift": ("UBSAN_SHIFT", "UBSAN_MISC"), "bounds": ("UBSAN_BOUNDS", "UBSAN_MISC")}
"""The kinds of undefined behaviour that can be tried; UBSAN_MISC is Linux 5.10's symbol."""
SYMBOLS = frozenset(
    {
        *("BUG", "DETECT_HUNG_TASK", "PROVE_LOCKING", "KASAN_GENERIC", "KASAN_SW_TAGS"),
        *("UBSAN", "UBSAN_TRAP", "UBSAN_SANITIZE_ALL", "UBSAN_SHIFT", "UBSAN_BOUNDS"),
        *("UBSAN_MISC", "DEBUG_FS", "DEBUG_KMEMLEAK", "DEBUG_KMEMLEAK_DEFAULT_OFF"),
    }
)
"""What of a config the answer hangs on."""
_LINE = re.compile(r"CONFIG_(\w+)=(.*)|# CONFIG_(\w+) is not set")


@dataclass(frozen=True, slots=True)
class Detectors:
    """What a kernel detects."""

    lacking: Mapping[ControlName, str]
    """The faults that it does not, and why."""
    ubsan: tuple[str, ...]
    """The kinds of undefined behaviour that it does: `shift`, `bounds`."""
    panics: bool
    """Whether it panics at a report of KASAN's."""


def symbols(config: str) -> dict[str, str]:
    """Return those of the SYMBOLS that a .config states, with their values (`n`: not set)."""
    found = {}
    for line in config.splitlines():
        if match := _LINE.fullmatch(line):
            found[match[1] or match[3]] = match[2] or "n"
    return {name: found[name] for name in sorted(SYMBOLS & found.keys())}


def detectors(symbols: Mapping[str, str], command_line: str) -> Detectors:
    """Return what a kernel with these symbols and this command line detects."""
    words = command_line.split()
    found = {
        ControlName.WARNING: _without(symbols, "BUG"),
        **dict.fromkeys(KASAN, _without(symbols, "KASAN_GENERIC", "KASAN_SW_TAGS")),
        ControlName.UBSAN: _no_ubsan(symbols),
        ControlName.LOCKDEP: _without(symbols, "PROVE_LOCKING"),
        ControlName.HUNG_TASK: _without(symbols, "DETECT_HUNG_TASK"),
        ControlName.LEAK: _no_kmemleak(symbols, words),
    }
    return Detectors(
        lacking={name: why for name, why in found.items() if why},
        ubsan=_ubsan(symbols),
        panics=_panics(words),
    )


def _without(symbols: Mapping[str, str], *names: str) -> str:
    return "" if any(symbols.get(one) == "y" for one in names) else f"no CONFIG_{names[0]}"


def _ubsan(symbols: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(kind for kind, names in _UBSAN.items() if not _without(symbols, *names))


def _no_ubsan(symbols: Mapping[str, str]) -> str:
    if why := _without(symbols, "UBSAN"):
        return why
    if symbols.get("UBSAN_TRAP") == "y":
        return "CONFIG_UBSAN_TRAP makes it an oops like others"
    if symbols.get("UBSAN_SANITIZE_ALL") == "n":  # no symbol since Linux 6.9, but always so
        return "no CONFIG_UBSAN_SANITIZE_ALL"
    return "" if _ubsan(symbols) else "no CONFIG_UBSAN_SHIFT, nor CONFIG_UBSAN_BOUNDS"


def _no_kmemleak(symbols: Mapping[str, str], words: Sequence[str]) -> str:
    if why := _without(symbols, "DEBUG_KMEMLEAK") or _without(symbols, "DEBUG_FS"):
        return why
    off = symbols.get("DEBUG_KMEMLEAK_DEFAULT_OFF") == "y"
    for word in words:
        if word in ("kmemleak=on", "kmemleak=off"):
            off = word == "kmemleak=off"
    return "kmemleak is not switched on by the command line" if off else ""


def _panics(words: Sequence[str]) -> bool:
    last = dict(word.partition("=")[::2] for word in words)
    on_warn = last.get("panic_on_warn") == "1" and "kasan_multi_shot" not in last
    return on_warn or last.get("kasan.fault") == "panic"
