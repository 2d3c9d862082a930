"""Config symbols under which kbuild's Makefiles compile a file. Pure."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

_ASSIGNED = re.compile(
    r"^[ \t]*([\w.+-]+)-(?:\$[({]CONFIG_(\w+)[)}]|y|m|objs)[ \t]*[:+]?=(.*)$", re.MULTILINE
)
# Lists that are linked as they are; every other list is linked into one object of its name.
_TOPS = frozenset({"obj", "lib", "core", "drivers", "net", "libs", "virt"})
# Nested objects that are followed: a Makefile may be hostile, or refer to itself.
_MOST = 100
MAKEFILES = ("Makefile", "Kbuild")


def places(path: str) -> Iterator[tuple[str, str]]:
    """Yield the folders whose Makefiles decide on a C file, with its name in each.

    `net/802/garp.c`: `garp.o` in `net/802`, `802/` in `net`.
    """
    whole = PurePosixPath(path)
    if whole.suffix not in {".c", ".S"}:
        return
    yield str(whole.parent), f"{whole.stem}.o"
    for folder in whole.parents[:-2]:
        yield str(folder.parent), f"{folder.name}/"


def conditions(makefile: str, item: str) -> frozenset[str]:
    """Return the symbols, without CONFIG_, that a Makefile requires for an object or folder.

    The set is empty if the item is always compiled, or not named. The first of several ways counts.
    """
    lists: dict[str, list[tuple[str, str | None]]] = {}
    for group, symbol, items in _ASSIGNED.findall(re.sub(r"\\\n", " ", makefile)):
        for name in items.partition("#")[0].split():
            lists.setdefault(name, []).append((group, symbol or None))
    return _wanted(lists, item, set()) or frozenset()


def _wanted(
    lists: dict[str, list[tuple[str, str | None]]], item: str, seen: set[str]
) -> frozenset[str] | None:
    """Return the symbols on the first way from an item to a top list; None if there is none."""
    if item in seen or len(seen) == _MOST:
        return None
    seen.add(item)
    for group, symbol in lists.get(item, ()):
        own = frozenset({symbol} if symbol else ())
        if group in _TOPS:
            return own
        above = _wanted(lists, f"{group}.o", seen)
        if above is not None:
            return own | above
    return None
