"""The report of a log that holds a crash."""

from kgym.crash.report import CrashReport, parse


def report_of(log: bytes | str, *, running: bool = False) -> CrashReport:
    """Return the first crash of a log, which must have one."""
    report = parse(log, running=running)
    assert report is not None
    return report
