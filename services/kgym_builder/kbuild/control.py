"""Our object in every kernel (`control.c`), which raises known faults on purpose.

A module, or LKDTM, would make another kernel than the tested one. As the object is part of the
entries of SuiteCache, a fix and the detectors are tried on the same kernel, and no patch can tell
these uses apart. No kernel fails to build because of it: if a compiler, linker or objtool rejects
a part, that part is left out, and the result says so.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from kgym.api.steps import Finding, Severity
from kgym.bugs.detectors import WHOLE
from kgym.errors import UserError
from kgym.source.patching import Change
from kgym_builder.kbuild.kbuild import DoesNotCompile, Output
from kgym_builder.kbuild.working_tree import Tree

# Patches must not touch anything of this name (`refuse`).
NAME = "kgym_control"
SOURCE = Path(__file__).with_name("control.c").read_bytes()
MAKEFILE = "kernel/Makefile"
PATH = f"kernel/{NAME}.c"
OBJECT = f"kernel/{NAME}.o"

_LINE = f"\nobj-y += {NAME}.o\n".encode()
_WORD = NAME.encode()
_PART = re.compile(rf"#ifndef {NAME}_without_(\w+)")
_NAMES = re.compile(rf"\b{NAME}_\w+")
_PLACE = re.compile(rf"\b{NAME}\.c:(\d+)")
_LEADS = re.compile(
    r"In file included from |\s+from |.*: [Ii]n function .*:$|\S+: error: undefined symbol: "
)
_ERROR = re.compile(r"\berror: |undefined reference|undefined symbol")
# Compiler messages that are kept for each part left out.
_SHOWN = 3
_LONGEST = 500


def changes(makefile: bytes | None) -> list[Change]:
    """Return the changes that add the object to a tree with this MAKEFILE; none without one."""
    if makefile is None:
        return []
    return [Change(PATH, SOURCE), Change(MAKEFILE, makefile + _LINE)]


def refuse(name: str, before: Callable[[str], bytes | None], after: Iterable[Change]) -> None:
    """Raise UserError `reserved` if a patch touches the object or mentions its name."""
    for change in after:
        old, new = before(change.path) or b"", change.content or b""
        if NAME in change.path or old.count(_WORD) != new.count(_WORD):
            message = f"{name}: {change.path}: what is called {NAME} belongs to kGymSuite"
            raise UserError("reserved", f"{message}, which tries the kernel's detectors by it")


# --- parts that a kernel does not compile --------------------------------------------------------


async def spared(
    make: Callable[[], Awaitable[None]],
    again: Callable[[], Awaitable[None]],
    tree: Tree,
    output: Output,
    lacking: Mapping[str, str],
) -> dict[str, str]:
    """Run `make`; while our object makes it fail, leave out the parts at fault and run `again`.

    `lacking` maps the parts that are left out already to the reasons. Returns it with the new
    ones. Raises the build's own error if the object is not to blame.
    """
    lost = dict(lacking)
    while True:
        try:
            await make()
        except DoesNotCompile:
            failed_parts = failing(output.tail)
            if WHOLE in lost or not failed_parts:
                raise
            # Another failure without a new part at fault: the whole object is left out, so that
            # this loop ends.
            more = {part: words for part, words in failed_parts.items() if part not in lost}
            lost = (
                lost | more
                if more and WHOLE not in more
                else {WHOLE: "; ".join(failed_parts.values())}
            )
            await tree.write([Change(PATH, without(lost))])
            make = again
        else:
            return lost


def without(parts: Collection[str]) -> bytes:
    """Return the source without these parts; line numbers stay."""
    if WHOLE in parts:
        return b"/* Left out: this kernel does not take it. */\n"
    words = "".join(f"#define {NAME}_without_{part}\n" for part in sorted(parts))
    return f"{words}#line 1\n".encode() * bool(parts) + SOURCE


def failing(lines: Sequence[str]) -> dict[str, str]:
    """Return the parts that a failed build's output names, with messages; all parts if unclear."""
    messages = [message for message in _messages(lines) if NAME in message]
    messages = [message for message in messages if _ERROR.search(message)] or messages
    by_part: dict[str, list[str]] = {}
    for message in messages:
        for part in _named(message):
            by_part.setdefault(part, []).append(message)
    if messages and not by_part:
        by_part[WHOLE] = messages
    return {part: "; ".join(messages[-_SHOWN:]) for part, messages in by_part.items()}


def dropped(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each part that is left out only with the patch.

    Such a patch could switch off the control that would show that it hides the crash.
    """
    for part in sorted(after.keys() - before.keys()):
        what = "none of the controls is" if part == WHOLE else f"the control `{part}` is not"
        yield Finding(
            check="detector",
            severity=Severity.BLOCKING,
            reason="control_dropped",
            message=f"{what} in the kernel with the patch, as it does not compile: {after[part]}",
        )


def _messages(lines: Iterable[str]) -> Iterator[str]:
    """Join each message with the lines before it that say where: includes, the function."""
    led: list[str] = []
    for line in lines:
        led.append(line.strip())
        if not _LEADS.match(line):
            yield " ".join(led)[-_LONGEST:]
            led.clear()


def _named(message: str) -> set[str]:
    """Return the parts that a message names by line number or symbol."""
    lines, names = _parts()
    parts = {lines.get(int(number)) for number in _PLACE.findall(message)}
    parts |= {names.get(name) for name in _NAMES.findall(message)}
    return {part for part in parts if part}


def _parts() -> tuple[dict[int, str], dict[str, str]]:
    """Return the part of each line and of each name in the source."""
    lines: dict[int, str] = {}
    names: dict[str, str] = {}
    part, depth = "", 0
    for number, line in enumerate(SOURCE.decode().splitlines(), 1):
        if match := _PART.match(line):
            part, depth = match[1], 0
        elif part:
            lines[number] = part
            names |= dict.fromkeys(_NAMES.findall(line), part)
            depth += line.startswith("#if") - line.startswith("#endif")
            if depth < 0:
                part = ""
    return lines, names
