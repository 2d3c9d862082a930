"""Lines of a stack trace, in the formats of all kernel versions and architectures.

x86 and arm64 print ` func+0x1/0x2`, with `[<ffffffff81000000>]` before it up to 4.10, `? ` before
frames that the unwinder could not verify, and ` [module]` after it; powerpc prints two addresses
and `(unreliable)`; s390 `([<000>] func+0x1/0x2)`; arm
`[<80de0078>] (callee) from [<80de0574>] (caller+0x28/0x2c)` and since 5.18
` callee from caller+0x28/0x2c`. syz-symbolize appends ` file.c:12` and, on lines of their own
without an offset, prints the functions that were inlined. scripts/decode_stacktrace.sh replaces the
offset by the places in the source, the innermost inlined function's first: ` func (a.h:1 b.c:2)`.
"""

import re
from collections import deque

from kgym.crash.report.crash_report import Frame
from kgym.crash.report.rust_names import demangle

# An instruction's address as printed in traces.
PC = r"\[<?(?:(?:0x)?[0-9a-f]+|\(____ptrval____\))>?\]"
_PLACES = r" \((?=(?:[\w./+~-]+\.\w{1,3}|\?\?):[0-9?])"
# What follows a function's name: an offset, a compiler's suffix (.part.0, .cold, .isra.3), places.
AFTER = rf"(?:\.|\+|{_PLACES})"
FUNC = rf"([a-zA-Z0-9_]+){AFTER}"

_NAME = r"(?P<function>[a-zA-Z_][\w.$]*)"
_WHERE = rf"(?:\+0x(?P<offset>[0-9a-f]+)(?:/0x(?P<size>[0-9a-f]+))?|(?={_PLACES}))"
_REST = r"(?P<rest>.*)"
_FORMS = tuple(
    re.compile(form)
    for form in (
        r"[ \t]*(?:<[A-Z#]+>[ \t]+)?"
        rf"(?:\(?{PC}\)? ){{0,2}}(?P<uncertain>\? +)?{_NAME}{_WHERE}{_REST}",
        rf"[ \t]*{PC} \([\w.$]+\) from {PC} \({_NAME}{_WHERE}{_REST}",
        rf"[ \t]*[\w.$]+ from {_NAME}{_WHERE}{_REST}",
        rf"[ \t]*(?:{PC} ){{0,2}}{_NAME}(?P<rest> [\w./+-]+\.\w+:[0-9]+ \[inline\])",
    )
)
_REGISTER = re.compile(
    r"(?:R?IP|EIP): (?:0010:|0060:)?|(?:PC is at|p?c :|epc :) ?|NIP (?=\[)|RIP  (?=\[)"
    r"| *(?:epc|era|ERA) *: [0-9a-f]+ (?=[a-zA-Z_])|Krnl PSW : [0-9a-f]+ [0-9a-f]+ \("
)
_CRASHED = re.compile(rf"(?:{PC} +){{0,2}}{_NAME}{_WHERE}{_REST}")
_MODULE = re.compile(r" \[([a-z]\w*)(?: [0-9a-f]+)?\]|\) ([a-z]\w*)$")
_SOURCE = re.compile(r"[ (](?:\./)?([\w./+~-]+\.\w+):([0-9]+)")
_INLINED = re.compile(r"\[inline\](?:, CPU#[0-9]+: .*)?$")


def is_inlined(line: str) -> bool:
    """Return whether symbolisation has added the line, for an inlined function."""
    return _INLINED.search(line) is not None


def parse_frame(line: str) -> Frame | None:
    """Parse a line without its console prefix as a frame; None if it is not one."""
    match = next(filter(None, (form.match(line) for form in _FORMS)), None)
    return _frame(match) if match else None


def parse_crashed(line: str) -> Frame | None:
    """Parse the line of a register dump with the crashing instruction in the kernel."""
    register = _REGISTER.match(line)
    match = _CRASHED.match(line, register.end()) if register else None
    return _frame(match) if match else None


def _frame(match: re.Match[str]) -> Frame:
    groups = match.groupdict()
    rest = groups["rest"]
    source = deque(_SOURCE.finditer(rest), maxlen=1)
    module = _MODULE.search(rest)
    inlined = rest.endswith("[inline]")
    return Frame(
        function=demangle(groups["function"]),
        offset=_hex(groups.get("offset")),
        size=_hex(groups.get("size")),
        file=source[0][1] if source else None,
        line=int(source[0][2]) if source else None,
        inlined=inlined,
        uncertain=bool(groups.get("uncertain")) or rest.endswith("(unreliable)"),
        module=module[1] or module[2] if module and not inlined else None,
    )


def _hex(digits: str | None) -> int | None:
    return None if digits is None else int(digits, 16)
