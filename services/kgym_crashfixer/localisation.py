"""Localisation: the files that a fix may have to change. Pure."""

import contextlib
import functools
import math
import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from pydantic import Field

from kgym.api.agent.nodes import CauseCommit
from kgym.api.steps import Patch, Strict
from kgym.bugs.bug import Bug
from kgym.configs import CONFIGS
from kgym.crash import report as reports
from kgym.crash.report import Frame
from kgym.crash.report.never_blamed import NEVER_TO_BLAME
from kgym.errors import UserError
from kgym.source import patching

# Files are ranked by syzkaller's blame, then by how rare their frames are in other reports. Of the
# corpus's 274 reports few have source lines, so functions are counted. With these weights each of
# its 14 guilty-file cases ranks its file first.

# Share of reports above which a function is no evidence.
_FREQUENT = 0.03
# The same for files, which fewer reports name.
_FREQUENT_FILE = 0.3
# Weight of a frame of the allocation's or the free's stack, relative to the crash's.
_OTHER_STACK = 0.5
_HEADER = 0.5
# Weight of files whose functions serve all others: the fault is rarely theirs.
_GENERIC = 0.3
# Weight of the file that syzkaller's rules blame, relative to the best other file.
_BLAMED = 1.25
# Weight of each frame relative to the one above it.
_DEEPER = 0.9
# Folders of entry code and detectors, which are candidates only if there is no other file.
_LAST = (
    *("arch/x86/entry/", "arch/x86/include/generated/", "kernel/entry/"),
    *("mm/kasan/", "mm/kmsan/"),
)
_SERVICES = (*_LAST, "kernel/locking/", "lib/")
# Suffixes of functions that the compiler has split or cloned.
_PART = re.compile(r"\..*")
_NEVER_TO_BLAME = re.compile(NEVER_TO_BLAME)
_WORD = re.compile(r"[A-Za-z_]\w{2,}", re.ASCII)
# Words of a query.
_LONGEST_QUERY = 2_000


class Frequencies(Strict):
    """The numbers of crash reports in a corpus that name a function or a file."""

    reports: int = Field(ge=1, description="with a stack")
    functions: dict[str, int]
    symbolized: int = Field(ge=1, description="reports with source lines")
    files: dict[str, int]

    @classmethod
    @functools.cache
    def load(cls) -> "Frequencies":
        """Return the shipped table."""
        text = (CONFIGS / "localisation" / "report-frequencies.toml").read_text()
        return cls.model_validate(tomllib.loads(text))

    def function(self, name: str) -> float:
        """Return the share of reports that name the function."""
        return self.functions.get(name, 0) / self.reports

    def file(self, path: str) -> float:
        """Return the share of symbolized reports that name the file."""
        return self.files.get(path, 0) / self.symbolized


def of_fix(bug: Bug) -> list[str]:
    """Return the files of the developer's fix, an oracle for studies; raise UserError `no_fix`."""
    if bug.fix is None:
        raise UserError("no_fix", f"{bug.name} has no fix from which to take the files")
    return patching.files(bug.fix)


def of_cause(cause: CauseCommit) -> list[str]:
    """Return the C files that the causing commit changed, those with named functions first."""
    named = [function.file for function in cause.functions]
    with contextlib.suppress(UserError, ValueError):  # the diff of a commit need not be a patch
        named += patching.files(Patch(name="cause", diff=cause.diff)) if cause.diff else []
    return [path for path in dict.fromkeys(map(posixpath.normpath, named)) if _is_in_tree(path)]


def of_report(text: str, defined: Mapping[str, Sequence[str]] = MappingProxyType({})) -> list[str]:
    """Return the files of a crash report, the most likely first.

    First comes the file that syzkaller's rules blame. Another file counts as its best frame: near
    the top of a stack, and rare in other reports. Very frequent files are omitted. `defined` has
    the files that define the functions of frames without a source line.
    """
    known = Frequencies.load()
    crash = reports.parse(text.encode())
    if crash is None:
        return []
    best: dict[str, float] = {}
    blamed = reports.guilty_file(text)
    for frame, path, weight in _frames(crash, defined):
        share = known.function(frame.function)
        if share >= _FREQUENT or known.file(path) >= _FREQUENT_FILE:
            continue
        # Inverse document frequency, smoothed as for BM25: a function that no report names is
        # rarest.
        rarity = math.log((known.reports + 1) / (share * known.reports + 1))
        value = weight * rarity * (_HEADER if path.endswith(".h") else 1.0)
        value *= _GENERIC if _serves(frame, path) else 1.0
        best[path] = max(best.get(path, 0.0), value)
    # A generic file is only blamed if no other file has a source line. With `defined`, functions
    # without lines were looked up, so other files are known.
    if blamed is not None and _is_in_tree(blamed) and not (defined and reports.is_generic(blamed)):
        best[blamed] = _BLAMED * max(best.values(), default=1.0)
    ordered = sorted(best, key=lambda path: (-best[path], path))
    return [path for path in ordered if not path.startswith(_LAST)] or ordered


def functions(text: str) -> list[str]:
    """Return the functions of a report's frames without a source line, in order."""
    names = (_PART.sub("", frame.function) for frame in _stacks(text) if frame.file is None)
    return list(dict.fromkeys(names))


def _stacks(text: str) -> list[Frame]:
    """Return the frames of all stacks of a report."""
    crash = reports.parse(text.encode())
    return [] if crash is None else [*crash.frames, *crash.alloc_stack, *crash.free_stack]


def _serves(frame: Frame, path: str) -> bool:
    """Return whether a frame is a detector's, an allocator's, a lock's or the entry code's."""
    service = path.startswith(_SERVICES) or reports.is_generic(path)
    return service or _NEVER_TO_BLAME.search(frame.function) is not None


def _frames(
    crash: reports.CrashReport, defined: Mapping[str, Sequence[str]]
) -> Iterator[tuple[Frame, str, float]]:
    """Yield the frames in files of the tree, with file and weight."""
    near = {posixpath.dirname(paths[0]) for paths in defined.values() if len(paths) == 1}
    for stack, weight in (
        (crash.frames, 1.0),
        (crash.alloc_stack, _OTHER_STACK),
        (crash.free_stack, _OTHER_STACK),
    ):
        depth = 0
        for frame in stack:
            own = [frame.file] if frame.file else defined.get(_PART.sub("", frame.function), ())
            paths = [posixpath.normpath(path) for path in own if path and _is_in_tree(path)]
            if frame.uncertain or not paths:
                continue
            # Of several files that define the function, those in C are likelier than headers with
            # stubs, and those in a folder of other frames' files are likelier than others.
            paths = [path for path in paths if path.endswith(".c")] or paths
            paths = [path for path in paths if posixpath.dirname(path) in near] or paths
            for path in paths:
                yield frame, path, weight * _DEEPER**depth / len(paths)
            depth += not all(_serves(frame, path) for path in paths)


def _is_in_tree(path: str) -> bool:
    """Return whether a path is a C file or header inside the tree: a report may be forged."""
    inside = not path.startswith("/") and ".." not in path.split("/")
    return inside and len(path) <= 1000 and path.endswith((".c", ".h"))


def words(text: str) -> list[str]:
    """Return the identifiers of code or a report, and their parts."""
    identifiers = []
    for match in _WORD.finditer(text):
        whole = match[0].lower()
        identifiers.append(whole)
        parts = [part for part in whole.split("_") if len(part) > 2]
        if len(parts) > 1:
            identifiers += parts
    return identifiers


def rare_functions(text: str) -> list[str]:
    """Return the functions of a report's stacks that are rare in other reports, innermost first."""
    known = Frequencies.load()
    names = [frame.function for frame in _stacks(text) if not frame.uncertain]
    return [name for name in dict.fromkeys(names) if known.function(name) < _FREQUENT]


def by_words(query: str, documents: Mapping[str, str]) -> list[str]:
    """Rank documents by BM25; omit those without any word of the query."""
    import bm25s  # type: ignore[import-untyped]  # noqa: PLC0415 - with numpy, it takes 0.3 s

    asked = words(query)[:_LONGEST_QUERY]
    if not documents or not asked:
        return []
    paths = list(documents)
    index = bm25s.BM25()
    index.index([words(f"{path}\n{documents[path]}") for path in paths], show_progress=False)
    scores = index.get_scores(asked)
    ordered = sorted(zip(paths, map(float, scores), strict=True), key=lambda pair: -pair[1])
    return [path for path, score in ordered if score > 0]
