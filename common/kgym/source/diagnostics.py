"""Compiler, assembler and linker messages of a build log. Pure."""

import re
from collections.abc import Iterable

from kgym.api.steps import Diagnostic

# Characters of a line that are matched: these patterns backtrack, and a hostile line could
# take hours.
_LONGEST = 4000

# gcc and clang write FILE:LINE:COLUMN: SEVERITY: MESSAGE; the assembler omits the column.
_COMPILER = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>[0-9]{1,9}):(?:(?P<column>[0-9]{1,9}):)? "
    r"(?P<severity>fatal error|error|warning|Error|Warning): (?P<message>.+)$"
)
# ld: "ld: FILE: in function `f':" then "FILE:(.text+0x12): undefined reference to `g'".
_LINKER = re.compile(
    r"^(?:\S*ld(?:\.\w+)?: )?(?P<file>[^\s:]+\.(?:o|a|c|S|lds)):"
    r"(?:(?P<line>[0-9]{1,9}):)? ?(?:\(\S+\): )?"
    r"(?P<message>(?:undefined reference|multiple definition|relocation).+)$"
)
_MODPOST = re.compile(r"^ERROR: modpost: (?P<message>.+)$")
_MAKE = re.compile(
    r"^(?P<file>\S*(?:Makefile|Kbuild|Kconfig)\S*?):(?P<line>[0-9]{1,9}): (?P<message>(?!warning: )"
    r"(?:\*\*\* )?(?!recipe for).+?)\.?(?:  Stop\.)?$"
)


def parse(lines: Iterable[str]) -> list[Diagnostic]:
    """Return the errors and warnings of a log in order, without duplicates."""
    diagnostics: dict[Diagnostic, None] = {}
    for line in lines:
        if diagnostic := _read(line[:_LONGEST].rstrip()):
            diagnostics[diagnostic] = None
    return list(diagnostics)


def _read(line: str) -> Diagnostic | None:
    if match := _COMPILER.match(line):
        warning = match["severity"].lower() == "warning"
        return _make(match, "warning" if warning else "error", match["column"])
    if match := _LINKER.match(line):
        return _make(match, "error")
    if match := _MODPOST.match(line):
        return Diagnostic(file="modpost", severity="error", message=match["message"])
    if (match := _MAKE.match(line)) and "Error " not in match["message"]:
        return _make(match, "error")
    return None


def _make(match: re.Match[str], severity: str, column: str | None = None) -> Diagnostic:
    groups = match.groupdict()
    return Diagnostic(
        file=groups["file"].removeprefix("./"),
        line=int(groups["line"]) if groups["line"] else None,
        column=int(column) if column else None,
        severity="warning" if severity == "warning" else "error",
        message=groups["message"],
    )
