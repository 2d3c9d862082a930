"""Write `configs/localisation/report-frequencies.toml`: how often reports name functions and files.

    python -m tests.crashfixer.report_frequencies FOLDER… > TABLE

Each folder holds crash reports or console logs, some with the header of syzkaller's own cases.
"""

import posixpath
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from kgym.crash import report as reports

# Reports with fewer are cut off, or name no stack.
_LEAST_FRAMES = 3
# Names in fewer reports are rare anyway.
_LEAST = 2
_HEADER = re.compile(rb"(?:[A-Z_]+:.*\n|#.*\n)+\n")


def table(logs: Iterator[bytes]) -> str:
    """Return the table of these logs, in TOML."""
    functions: Counter[str] = Counter()
    files: Counter[str] = Counter()
    number = symbolized = 0
    for log in logs:
        report = reports.parse(_without_header(log))
        if report is None:
            continue
        frames = [*report.frames, *report.alloc_stack, *report.free_stack]
        named = {frame.function for frame in frames}
        if len(named) < _LEAST_FRAMES:
            continue
        number += 1
        functions.update(named)
        places = {posixpath.normpath(frame.file) for frame in frames if frame.file}
        if places:
            symbolized += 1
            files.update(places)
    lines = [
        "# How many crash reports of a corpus name a function or a file of the kernel in a stack.",
        "# Made by `python -m tests.crashfixer.report_frequencies`; names in one report are not.",
        f"reports = {number}",
        f"symbolized = {symbolized}",
    ]
    for title, counts in (("functions", functions), ("files", files)):
        kept = sorted(
            ((name, count) for name, count in counts.items() if count >= _LEAST),
            key=lambda item: (-item[1], item[0]),
        )
        lines += ["", f"[{title}]", *(f'"{name}" = {count}' for name, count in kept)]
    return "\n".join(lines) + "\n"


def _without_header(log: bytes) -> bytes:
    log = log.replace(b"\r", b"")
    match = _HEADER.match(log)
    return log[match.end() :].partition(b"\nREPORT:\n")[0] if match else log


def main(folders: Sequence[str]) -> None:
    """Print the table of these folders' reports."""
    paths = [path for name in folders for path in sorted(Path(name).iterdir())]
    kept = (path for path in paths if path.is_file() and path.suffix not in {".gz", ".json"})
    sys.stdout.write(table(path.read_bytes() for path in kept))


if __name__ == "__main__":
    main(sys.argv[1:])
