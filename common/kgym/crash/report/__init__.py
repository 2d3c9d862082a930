"""Crash reports of the Linux kernel, parsed from console logs as syzkaller does."""

from kgym.crash.report.blamed_file import guilty_file, is_generic
from kgym.crash.report.console_watch import Watch
from kgym.crash.report.crash_report import CrashReport, CrashType, Executor, Frame, frame_of
from kgym.crash.report.parser import parse, parse_all
from kgym.crash.report.title import type_of

__all__ = [
    "CrashReport",
    "CrashType",
    "Executor",
    "Frame",
    "Watch",
    "frame_of",
    "guilty_file",
    "is_generic",
    "parse",
    "parse_all",
    "type_of",
]
