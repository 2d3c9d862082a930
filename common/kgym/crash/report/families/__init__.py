"""The crash messages of Linux as data: one family per marker."""

from kgym.crash.report.families.bug import BUG
from kgym.crash.report.families.family import Family, Format
from kgym.crash.report.families.info import INFO
from kgym.crash.report.families.other import LEAKED_OBJECT, OOPS, OTHERS, PROGRAMS, REBOOT
from kgym.crash.report.families.warning import WARNINGS

# In order of precedence for a line with several markers.
FAMILIES: tuple[Family, ...] = (BUG, WARNINGS, INFO, *OTHERS, OOPS, *PROGRAMS)

__all__ = ["FAMILIES", "LEAKED_OBJECT", "OOPS", "REBOOT", "Family", "Format"]
