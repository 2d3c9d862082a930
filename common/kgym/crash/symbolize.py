"""Source lines for crash reports, out of a kernel's debug information.

Frames are looked up by function, offset and size, which randomised addresses do not change. One
run of `llvm-addr2line`, or of binutils' `addr2line` where LLVM's is not installed, answers for
all frames of all reports: 300 addresses of a vmlinux of 144 MB took 0.5 s of CPU time with LLVM's
and 1.1 s with binutils', which names the wrong file for code that macros make in headers. The
tools read a file that came out of a patched build, so they run in the sandbox.
"""

import bisect
import posixpath
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kgym.crash.report import CrashReport
from kgym.crash.report.source_lines import InlinedCall, Location, calls, with_sources
from kgym.host.sandbox import Sandbox

_SECONDS = 120.0
# What every kernel has; where it stands tells the folder that the kernel was compiled in.
_ROOT_FUNCTION, _ROOT_FILE = "start_kernel", "init/main.c"
_UNKNOWN = "??"
_ANY = re.compile(b"")
_CODE = re.compile(rb"^[0-9a-f]+ [tTwW] ")


async def symbolize(reports: Sequence[CrashReport], vmlinux: Path) -> list[CrashReport]:
    """Return the reports with files, lines and inlined functions.

    A frame that `vmlinux` does not have in that size stays as it is: it is of another kernel, or
    there are several of that name and size. Raises ProgramFailed for a file that is no ELF file.
    """
    box = Sandbox(readonly={"/in": vmlinux.parent})
    symbols = Symbols(await _lines(box, ["nm", "-n", f"/in/{vmlinux.name}"], wanted=_CODE))
    wanted = set().union(*map(calls, reports))
    addresses = {call: address for call in wanted if (address := symbols.address(call))}
    root = symbols.start(_ROOT_FUNCTION)
    asked = [*([root] if root else []), *sorted(set(addresses.values()))]
    tool = "llvm-addr2line" if shutil.which("llvm-addr2line") else "addr2line"
    question = "".join(f"{address:#x}\n" for address in asked)
    answer = await _lines(box, [tool, "-afi", "-e", f"/in/{vmlinux.name}"], question)
    places = dict(read_places(answer))
    folder = _folder(places.get(root or 0, ()))

    def lookup(call: InlinedCall) -> Sequence[Location]:
        places_of_call = places.get(addresses.get(call, 0), ())
        return [place._replace(file=_relative(place.file, folder)) for place in places_of_call]

    return [with_sources(report, lookup) for report in reports]


async def _lines(
    box: Sandbox, argv: Sequence[str], stdin: str = "", wanted: re.Pattern[bytes] = _ANY
) -> list[str]:
    """Return the lines of a program's output; all of them, of which `run` keeps but the end."""
    lines: list[str] = []

    def keep(line: bytes) -> None:
        if wanted.search(line):
            lines.append(line.decode(errors="replace"))

    await box.run(argv, timeout=_SECONDS, stdin=stdin.encode(), on_line=keep)
    return lines


class Symbols:
    """The functions of a kernel, read from the lines of `nm -n`: "ffffffff81000000 T name"."""

    def __init__(self, listing: Iterable[str]) -> None:
        self._starts: dict[str, list[int]] = defaultdict(list)
        for line in listing:
            address, _, rest = line.partition(" ")
            kind, _, name = rest.partition(" ")
            if kind in "tTwW" and len(kind) == 1:
                self._starts[name].append(int(address, 16))
        self._all = sorted({start for starts in self._starts.values() for start in starts})

    def start(self, function: str) -> int | None:
        """Return the address of the only function of that name."""
        starts = self._starts.get(function, ())
        return starts[0] if len(starts) == 1 else None

    def address(self, call: InlinedCall) -> int | None:
        """Return the address of the instruction; None if it is not known for sure."""
        starts = {
            start for start in self._starts.get(call.function, ()) if self._size(start) == call.size
        }
        if len(starts) != 1 or call.offset > call.size:
            return None
        return starts.pop() + call.offset - call.returns

    def _size(self, start: int) -> int | None:
        """Return the size that the kernel prints, up to the next symbol (kernel/kallsyms.c)."""
        following = bisect.bisect_right(self._all, start)
        return self._all[following] - start if following < len(self._all) else None


def read_places(lines: Iterable[str]) -> Iterator[tuple[int, list[Location]]]:
    """Read the output of `addr2line -afi`: an address, then function and place in turns."""
    block: list[str] = []
    for line in [*lines, "0x0"]:
        if not line.startswith("0x"):
            block.append(line)
            continue
        if block:
            yield int(block[0], 16), list(_locations(block[1:]))
        block = [line]


def _locations(block: Sequence[str]) -> Iterator[Location]:
    for function, place in zip(block[::2], block[1::2], strict=False):
        match = re.match(r"(.+):([0-9]+)", place)
        if match and match[1] != _UNKNOWN and int(match[2]):
            yield Location(function, match[1], int(match[2]))


def _folder(root: Sequence[Location]) -> str:
    file = posixpath.normpath(root[-1].file) if root else ""
    return file.removesuffix(_ROOT_FILE) if file.endswith(f"/{_ROOT_FILE}") else ""


def _relative(file: str, folder: str) -> str:
    return posixpath.normpath(file).removeprefix(folder)
