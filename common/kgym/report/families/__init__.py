"""The crashes that Linux announces, as data: one family per marker."""

from kgym.report.families.bug import BUG
from kgym.report.families.family import Family, Format
from kgym.report.families.info import INFO
from kgym.report.families.other import OTHERS, REBOOT
from kgym.report.families.programs import LEAKED_OBJECT, PROGRAMS
from kgym.report.families.warning import WARNINGS

FAMILIES: tuple[Family, ...] = (BUG, WARNINGS, INFO, *OTHERS, *PROGRAMS)
"""In the order in which they are asked about a line that holds several markers."""

__all__ = ["FAMILIES", "LEAKED_OBJECT", "REBOOT", "Family", "Format"]
