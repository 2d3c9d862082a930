"""Test cases of the parser, with expected results.

A report case is a header of `KEY: value` lines (`#` begins a comment), an empty line, the console
log, and optionally a line `REPORT:` with the expected text of the report. A guilty case has only
the key FILE, and a symbolised report. The format is that of syzkaller's pkg/report/testdata.
"""

from dataclasses import dataclass, field

from kgym.crash.report.blamed_file import guilty_file
from kgym.crash.report.crash_report import CrashReport
from kgym.crash.report.parser import parse


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `header` holds the last value of each key, `alt` all values of ALT."""

    log: bytes
    header: dict[str, str] = field(default_factory=dict)
    alt: tuple[str, ...] = ()
    report: bytes | None = None


def read_case(data: bytes) -> Case:
    """Parse a case file, which need not be UTF-8."""
    head, _, log = (b"\n" + data.replace(b"\r", b"")).partition(b"\n\n")
    log, separator, report = log.partition(b"\n\nREPORT:\n")
    pairs = [
        (key, value.strip())
        for line in head.decode("utf-8", "replace").splitlines()
        if line and not line.startswith("#")
        for key, _, value in [line.partition(":")]
    ]
    alt = tuple(sorted(value for key, value in pairs if key == "ALT"))
    return Case(log + b"\n\n" * bool(separator), dict(pairs), alt, report if separator else None)


def check(case: Case) -> dict[str, bool]:
    """Return which fields of the case were parsed correctly; fields it does not give are absent.

    `no_crash` replaces the title for a log without a crash.
    """
    header = case.header
    report = parse(case.log, running=True)  # syzkaller's consoles begin after the boot
    if "FILE" in header:
        text = case.log.decode("utf-8", "replace")
        return {
            "guilty_file": header["FILE"] == (report.guilty_file if report else guilty_file(text))
        }
    if not header.get("TITLE"):
        return {"no_crash": report is None}
    wanted = _wanted(case)
    got = _got(report) if report else {}
    return {name: name in got and got[name] == value for name, value in wanted.items()}


def _wanted(case: Case) -> dict[str, object]:
    header = case.header
    wanted: dict[str, object] = {
        "title": header["TITLE"],
        "alt": case.alt,
        "type": header.get("TYPE", ""),
        **{name: header.get(name.upper(), "N") == "Y" for name in _FLAGS},
        **{name: header[name.upper()] for name in ("frame", "executor") if name.upper() in header},
    }
    if "START" in header:
        last = header.get("END", header["START"]).encode()
        wanted["start"] = case.log.find(header["START"].encode())
        wanted["end"] = case.log.find(last) + len(last)
    if case.report is not None:
        wanted["report"] = case.report
    return wanted


_FLAGS = ("corrupted", "suppressed", "panicked")


def _got(report: CrashReport) -> dict[str, object]:
    who = report.executor
    return {
        "title": report.title,
        "alt": tuple(sorted(report.alt_titles)),
        "type": report.type.value,
        **{name: getattr(report, name) for name in _FLAGS},
        "frame": report.frame,
        "executor": f"proc={who.proc}, id={who.id}" if who else "",
        "start": report.start,
        "end": report.end,
        "report": report.text.encode(),
    }
