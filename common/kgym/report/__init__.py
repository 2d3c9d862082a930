"""Crash reports of the Linux kernel, read from console logs the way syzkaller reads them."""

from kgym.report.guilty import guilty_file
from kgym.report.model import CrashReport, CrashType, Executor, Frame, frame_of
from kgym.report.parser import parse, parse_all
from kgym.report.title import type_of
from kgym.report.watch import Watch

__all__ = [
    "CrashReport",
    "CrashType",
    "Executor",
    "Frame",
    "Watch",
    "frame_of",
    "guilty_file",
    "parse",
    "parse_all",
    "type_of",
]
