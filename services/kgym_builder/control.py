"""The object of ours in every kernel, which raises known faults on purpose (`control.c`).

It is part of the entries of SuiteCache, so that the kernel that a fix is tried on is the one
whose detectors are tried, and no patch can tell the one use from the other.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from kgym.errors import UserError
from kgym.patch import Change

NAME = "kgym_control"
SOURCE = Path(__file__).with_name("control.c").read_bytes()
MAKEFILE = "kernel/Makefile"

_PATH = f"kernel/{NAME}.c"
_LINE = f"\nobj-y += {NAME}.o\n".encode()
_WORD = NAME.encode()


def changes(makefile: bytes | None) -> list[Change]:
    """Return what puts it into a tree whose MAKEFILE this is; nothing where there is none."""
    if makefile is None:
        return []
    return [Change(_PATH, SOURCE), Change(MAKEFILE, makefile + _LINE)]


def refuse(name: str, before: Callable[[str], bytes | None], after: Iterable[Change]) -> None:
    """Refuse a patch, called `name`, that touches the object or speaks of it."""
    for change in after:
        old, new = before(change.path) or b"", change.content or b""
        if NAME in change.path or old.count(_WORD) != new.count(_WORD):
            message = f"{name}: {change.path}: what is called {NAME} belongs to kGymSuite"
            raise UserError("reserved", f"{message}, which tries the kernel's detectors by it")
