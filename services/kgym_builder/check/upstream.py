"""What a maintainer asks about a patch that compiles: style, static checks, subsystem, recipients.

The scripts are the tree's own, and as hostile as the tree. They run in its sandbox, on the tree
without the patch, so that a patch cannot replace them. What they print is parsed and bounded.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from kgym.api.steps import Diagnostic, Finding, Upstream
from kgym.errors import KgymError
from kgym.host import separate_process
from kgym.source import diagnostics, unified_diff
from kgym_builder.check.compile_plan import FileChange
from kgym_builder.check.patch_judgement import Lines, new_warnings
from kgym_builder.evidence.patch_review import style
from kgym_builder.kbuild.object_index import Object
from kgym_builder.kbuild.saved_commands import compile_words
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.kernel_source.line_history import LineHistory

_SCRIPT, _MAINTAINERS, _STYLE = "scripts/get_maintainer.pl", "MAINTAINERS", ".clang-format"
# Without the history, which names whoever touched the code last, and which most trees lack.
_OPTIONS = ("--no-tree", "--nogit", "--nogit-fallback", "--norolestats", "--roles")
_SECONDS = 60.0
# Characters of MAINTAINERS, which has a million, and of a pattern in it.
_MOST_TEXT, _LONGEST_PATTERN = 4 << 20, 100
_RECIPIENTS, _FINDINGS = 100, 100
# Objects that sparse checks, before and after the patch.
_OBJECTS = 20
# kbuild's CHECKFLAGS, without those that the saved commands have as well.
_SPARSE = ("-D__linux__", "-Dlinux", "-D__STDC__", "-Dunix", "-D__unix__", "-Wbitwise")
_ADDRESS = r"[\w.+=-]{1,64}@[\w.-]{1,200}"
_RECIPIENT = re.compile(
    rf'(?:(?:"[^"<>\\]{{1,100}}"|[^"<>@,;:\\()]{{1,100}}) <{_ADDRESS}>|{_ADDRESS})'
    r"(?: \([^\n]{1,300}\))?"
)
# A part of a subject before a colon that names subsystems, such as `bpf, arm64`.
_SUBSYSTEM = re.compile(r"[\w/.+*\[\]-]+(?:, ?[\w/.+*\[\]-]+)*")
T = TypeVar("T")


class UpstreamQuestions:
    """The questions about one patch: on the tree `before` it, and the tree `after` it."""

    def __init__(self, before: Tree, after: Tree, files: Sequence[FileChange]) -> None:
        self.before, self.after, self.files = before, after, files
        self.missing: list[str] = []

    async def diff(self, given: str) -> str:
        """Return the patch as Git writes it; empty if it does more than change UTF-8 texts."""
        if "\nnew mode " in given:
            return ""
        weight = 64 * sum(len(file.before or b"") for file in self.files)
        return await separate_process.call(weight, _as_git, self.files)

    async def answers(
        self,
        diff: str,
        objects: Sequence[Object],
        lines: Mapping[str, Lines],
        history: LineHistory | None,
    ) -> Upstream:
        """Return the answers about this diff, except for its `release`."""
        files = await self.before.read([_SCRIPT, _MAINTAINERS, _STYLE])
        findings = await self._known("checkpatch", style(self.before, diff, "--strict"), [])
        findings += await self._known("sparse", self._sparse(objects, lines), [])
        if _STYLE in files:
            findings += await self._known("clang-format", self._clang_format(lines), [])
        asked = self._recipients(diff) if _SCRIPT in files else _no_script()
        maintainers = files.get(_MAINTAINERS, b"")[:_MOST_TEXT].decode(errors="replace")
        path = max(self.files, key=lambda file: len(file.after or b"") > 0).path
        subjects = history.subjects if history else ()
        weight = 8 * len(maintainers)
        return Upstream(
            findings=findings[:_FINDINGS],
            prefix=await separate_process.call(weight, prefix, subjects, path, maintainers),
            recipients=await self._known("recipients", asked, []),
            blame=list(history.blame) if history else [],
            missing=self.missing,
        )

    async def _known(self, what: str, work: Awaitable[T], nothing: T) -> T:
        """Return an answer; if the tree's program fails, note why there is none."""
        try:
            return await work
        except KgymError as error:
            self.missing.append(f"{what}: {error.message}")
            return nothing

    async def _recipients(self, diff: str) -> list[str]:
        argv = ["perl", _SCRIPT, *_OPTIONS]
        done = await self.before.run(argv, stdin=diff.encode(), timeout=_SECONDS)
        return list(filter(_RECIPIENT.fullmatch, done.text.splitlines()))[:_RECIPIENTS]

    async def _sparse(self, objects: Sequence[Object], lines: Mapping[str, Lines]) -> list[Finding]:
        """Return the warnings of sparse that the patch adds."""
        if not await _has(self.before, "sparse"):
            return []
        new: list[Diagnostic] = []
        for obj in objects[:_OBJECTS]:
            words = compile_words(obj.command) or []
            argv = ["sparse", *_SPARSE, *(word for word in words[1:] if word not in {"-c", "-o"})]
            argv = [word for word in argv if word != obj.path]
            old, now = [await _diagnostics(tree, argv) for tree in (self.before, self.after)]
            new += new_warnings(old, now, lines)
        return _findings("sparse", new)

    async def _clang_format(self, lines: Mapping[str, Lines]) -> list[Finding]:
        """Return the places that break the style of .clang-format, in files that followed it."""
        if not await _has(self.before, "clang-format"):
            return []
        new: list[Diagnostic] = []
        for path in lines:
            argv = ["clang-format", "--style=file", "--dry-run", "--", path]
            if path.endswith((".c", ".h")) and not await _diagnostics(self.before, argv):
                new += await _diagnostics(self.after, argv)
        return _findings("clang-format", new)


async def _no_script() -> list[str]:
    raise KgymError("no_script", f"the tree has no {_SCRIPT}")


async def _has(tree: Tree, program: str) -> bool:
    argv = ["sh", "-c", f"command -v {program}"]
    return (await tree.run(argv, timeout=_SECONDS, check=False)).returncode == 0


async def _diagnostics(tree: Tree, argv: Sequence[str]) -> list[Diagnostic]:
    done = await tree.run(argv, timeout=_SECONDS, check=False)
    return diagnostics.parse(done.text.splitlines())


def _findings(check: str, new: Iterable[Diagnostic]) -> list[Finding]:
    named = {"check": check, "reason": "new_warning"}
    facts = (each.model_dump(include={"file", "line", "message"}) for each in new)
    return [Finding.model_validate({**named, **fact}) for fact in facts]


def _as_git(files: Sequence[FileChange]) -> str:
    parts = []
    for file in files:
        if file.before is None or file.after is None:
            return ""
        try:
            before, after = file.before.decode(), file.after.decode()
        except UnicodeDecodeError:
            return ""
        parts.append(unified_diff.between(file.path, before, after, functions=True))
    return "".join(parts)


def prefix(subjects: Iterable[str], path: str, maintainers: str) -> str:
    """Return the subsystem of a file: as most subjects name it, or by MAINTAINERS, or its path."""
    used = Counter(filter(None, map(_subsystem, subjects)))
    if used:
        return used.most_common(1)[0][0]
    entries = (line[2:].strip() for line in maintainers.splitlines() if line.startswith("F:"))
    name = max(filter(lambda each: _covers(each, path), entries), key=len, default="")
    *folders, last = path.split("/")
    # Below a folder of its own, a file belongs to that folder's subsystem.
    name = name.rstrip("/*") or (folders[-1] if len(folders) > 1 else last)
    return re.sub(r"\.\w+$|[*?\[\]]", "", name.rpartition("/")[2]) or last


def _subsystem(subject: str) -> str:
    """Return the words of a subject that name subsystems, without their last colon."""
    if subject.startswith(("Revert ", "Merge ")):
        return ""
    names = []
    for part in subject[:100].split(": ")[:-1]:
        if not _SUBSYSTEM.fullmatch(part):
            break
        names.append(part)
    return ": ".join(names)


def _covers(pattern: str, path: str) -> bool:
    """Return whether an entry `F:` of MAINTAINERS covers a file; a folder covers all below it."""
    if path == pattern or path.startswith(f"{pattern.rstrip('/')}/"):
        return True
    begin = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    close = path.startswith(begin) and pattern.count("/") == path.count("/")
    return close and len(pattern) <= _LONGEST_PATTERN and fnmatchcase(path, pattern)
