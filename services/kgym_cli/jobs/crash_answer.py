"""Crashes in the commands' JSON output."""

from typing import Self

from kgym.crash.report import CrashReport
from kgym_cli.output.answer import Answer


class FrameAnswer(Answer):
    """One line of a stack trace."""

    function: str
    offset: int | None
    size: int | None
    file: str | None
    line: int | None
    inlined: bool
    uncertain: bool
    module: str | None


class ExecutorAnswer(Answer):
    """Process and program of a syzkaller executor that crashed."""

    proc: int
    id: int


class CrashAnswer(Answer):
    """The crash in a console log; `title` and `report` are null without one."""

    title: str | None = None
    alt_titles: list[str] = []
    type: str | None = None
    corrupted: bool = False
    corrupted_reason: str = ""
    suppressed: bool = False
    panicked: bool = False
    frame: str | None = None
    frames: list[FrameAnswer] = []
    report: str | None = None
    start: int | None = None
    end: int | None = None
    executor: ExecutorAnswer | None = None
    task: str | None = None
    pid: int | None = None
    cpu: int | None = None
    guilty_file: str | None = None
    alloc_stack: list[FrameAnswer] = []
    free_stack: list[FrameAnswer] = []

    @classmethod
    def of(cls, report: CrashReport | None) -> Self:
        """Return the answer for a crash report, or for a log without one."""
        # Defaults stand for a log without a crash, so every key exists in either case.
        return cls() if report is None else cls.model_validate(report.as_dict())
