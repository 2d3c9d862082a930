"""Logs with crashes, and their reports."""

import re
from pathlib import Path

from kgym.crash.report import CrashReport, parse


def report_of(log: bytes | str, *, running: bool = False) -> CrashReport:
    """Return the first crash of a log, which must have one."""
    report = parse(log, running=running)
    assert report is not None
    return report


def logs(name: str) -> dict[str, str]:
    """Return the logs of a file beside this one, by their headings (`### ...`)."""
    text = (Path(__file__).parent / name).read_text()
    _, *parts = re.split(r"(?m)^### (.+)\n", text)
    return dict(zip(parts[::2], parts[1::2], strict=True))
