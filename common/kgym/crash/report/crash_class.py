"""Groups of bugs: the class at the beginning of a crash's title, the subsystem of a file."""

import re

_ACCESS = re.compile(r" (?:Read|Write|read|write)$")
_LONGEST = 60


def crash_class(title: str) -> str:
    """Return the kind of crash in a title, without the place: `KASAN slab-out-of-bounds`.

    A title without a place, such as `no output from test machine`, is its own class.
    """
    what = _ACCESS.sub("", title.partition(" in ")[0])
    what = what.removeprefix("BUG: ").removeprefix("INFO: ")
    tool, _, rest = what.partition(": ")
    words = f"{tool} {rest}" if rest and tool.isupper() else what
    return words[:_LONGEST].strip()


def subsystem(path: str) -> str | None:
    """Return the first two folders of a source file, such as `net/ipv4`; None without one."""
    folder = [name for name in path.split("/")[:-1] if name not in {"", ".", ".."}][:2]
    return "/".join(folder)[:_LONGEST] or None
