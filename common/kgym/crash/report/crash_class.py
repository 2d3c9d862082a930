"""What bugs are sorted by: the class that a crash's title begins with, the subsystem of a file."""

import re

_ACCESS = re.compile(r" (?:Read|Write|read|write)$")
_LONGEST = 60


def crash_class(title: str) -> str:
    """Return what kind of crash a title tells of, without where: `KASAN slab-out-of-bounds`.

    A title that names no place, such as `no output from test machine`, is its own class.
    """
    what = _ACCESS.sub("", title.partition(" in ")[0])
    what = what.removeprefix("BUG: ").removeprefix("INFO: ")
    tool, _, rest = what.partition(": ")
    words = f"{tool} {rest}" if rest and tool.isupper() else what
    return words[:_LONGEST].strip()


def subsystem(path: str) -> str | None:
    """Return the folder of a source file, at most two names of it: `net/ipv4`; None for none."""
    folder = [name for name in path.split("/")[:-1] if name not in {"", ".", ".."}][:2]
    return "/".join(folder)[:_LONGEST] or None
