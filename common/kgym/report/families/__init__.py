"""The crashes that Linux announces, as data: one family per marker."""

from kgym.report.families.bug import BUG
from kgym.report.families.family import Family, Format
from kgym.report.families.info import INFO
from kgym.report.families.other import OTHERS
from kgym.report.families.warning import WARNINGS

FAMILIES: tuple[Family, ...] = (*WARNINGS, BUG, INFO, *OTHERS)

__all__ = ["FAMILIES", "Family", "Format"]
