"""The messages of compilers and linkers, out of a build log."""

import pytest

from kgym.source.diagnostics import parse


@pytest.mark.parametrize(
    ("line", "file", "number", "column", "severity", "message"),
    [
        ("fs/a.c:12:5: error: expected ';' before 'x'", "fs/a.c", 12, 5, "error", "expected ';'"),
        ("./include/a.h:3:1: warning: unused [-Wx]", "include/a.h", 3, 1, "warning", "unused"),
        ("a.c:1:10: fatal error: x.h: No such file", "a.c", 1, 10, "error", "x.h: No such"),
        ("a.S:7: Error: no such instruction: `foo'", "a.S", 7, None, "error", "no such instr"),
        ("ld: fs/a.o: in function `f':", None, None, None, None, None),
        ("fs/a.c:(.text+0x1d): undefined reference to `g'", "fs/a.c", None, None, "error", "undef"),
        ("ld: a.o:(.data+0x0): multiple definition of `x'", "a.o", None, None, "error", "multiple"),
        ('ERROR: modpost: "f" [a.ko] undefined!', "modpost", None, None, "error", '"f"'),
        (
            "fs/Makefile:3: *** missing separator.  Stop.",
            "fs/Makefile",
            3,
            None,
            "error",
            "*** mis",
        ),
        ("make[1]: *** [scripts/Makefile.build:250: fs/a.o] Error 1", None, None, None, None, None),
        ("fs/a.c: In function 'f':", None, None, None, None, None),
        ("fs/a.c:12:5: note: each undeclared identifier", None, None, None, None, None),
        ("  CC      fs/error.o", None, None, None, None, None),
    ],
)
def test_a_line_is_read(
    line: str,
    file: str | None,
    number: int | None,
    column: int | None,
    severity: str | None,
    message: str | None,
) -> None:
    diagnostics = parse([line])
    if file is None:
        assert diagnostics == []
        return
    (diagnostic,) = diagnostics
    assert (diagnostic.file, diagnostic.line, diagnostic.column, diagnostic.severity) == (
        file,
        number,
        column,
        severity,
    )
    assert diagnostic.message.startswith(message or "")


def test_the_same_message_counts_once() -> None:
    assert len(parse(["a.h:1:1: error: x"] * 3 + ["a.h:2:1: error: x"])) == 2
