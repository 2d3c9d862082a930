"""What a maintainer asks about a patch that compiles: style, static checks, subsystem, recipients.

The scripts are the tree's own, and as hostile as the tree. They run in its sandbox, on the tree
without the patch, so that a patch cannot replace them. What they print is parsed and bounded.
"""

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable, Sequence

from kgym.api.steps import Finding, Upstream
from kgym.host import proc, separate_process
from kgym.host.sandbox_limits import LimitExceeded
from kgym.source import diagnostics, unified_diff
from kgym.source.subsystem import subsystem
from kgym_builder.check.compile_plan import FileChange
from kgym_builder.check.patch_judgement import changed_lines, new_warnings
from kgym_builder.evidence.patch_review import CHECKPATCH, style
from kgym_builder.kbuild.object_index import Object
from kgym_builder.kbuild.saved_commands import compile_words
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.kernel_source.line_history import LineHistory

_MAINTAINERS = "MAINTAINERS"
# Git's history is not used: it names whoever touched the code last, and most trees have none.
_SCRIPT = "scripts/get_maintainer.pl --no-tree --nogit --nogit-fallback --norolestats --roles"
_SECONDS = 60.0
# Characters of MAINTAINERS, which has a million, and of a diff.
_MOST_TEXT, _MOST_DIFF = 4 << 20, 200_000
# Objects, and files, that tools examine before and after the patch; and entries of a list.
_OBJECTS, _LISTED = 20, 100
# kbuild's CHECKFLAGS, without those that the saved commands have as well.
_SPARSE = ("sparse", "-D__linux__", "-Dlinux", "-D__STDC__", "-Dunix", "-D__unix__", "-Wbitwise")
_FORMAT = ("clang-format", "--style=file", "--fallback-style=none", "--dry-run", "--")
_STYLE = "-Wclang-format-violations"
_ADDRESS = r"[\w.+=-]{1,64}@[\w.-]{1,200}"
_RECIPIENT = re.compile(
    rf'(?:(?:"[^"<>\\]{{1,100}}"|[^"<>@,;:\\()\x00-\x1f]{{1,100}}) <{_ADDRESS}>|{_ADDRESS})'
    r"(?: \([^\n]{1,300}\))?",
    re.ASCII,
)
# Reasons of findings on tools without an answer. These come first, so that none is cut off.
_NO_ANSWER = {"not_run", "timed_out"}
# Returns the history of a diff's lines, and of a file; None if there is none at hand.
History = Callable[[str, str], Awaitable[LineHistory | None]]


async def answers(
    before: Tree,
    after: Tree,
    files: Sequence[FileChange],
    submitted: str,
    objects: Sequence[Object],
    history: History,
) -> Upstream:
    """Return the answers for a `submitted` diff that changes these files and objects.

    A missing or failing tool is a finding: otherwise, it would seem to have no objections.
    """
    weight = 64 * sum(len(file.before or b"") for file in files)
    diff = await separate_process.call(weight, _as_git, submitted, files)
    path = min((file.path for file in files), key=lambda path: path.endswith(".h"))
    past = await history(diff, path) if diff else None
    files_of = (await before.read([_MAINTAINERS])).get(_MAINTAINERS, b"")[:_MOST_TEXT]
    maintainers, subjects = files_of.decode(errors="replace"), past.subjects if past else ()
    asked = await _run(before, ["perl", *_SCRIPT.split()], (diff or submitted).encode())
    findings = await style(before, diff or submitted, "--strict")
    if not await before.read([CHECKPATCH]):
        findings.append(_not_run("checkpatch", "the tree has no checkpatch.pl"))
    if asked is None or asked.returncode != 0:
        findings.append(_not_run("get_maintainer", "the tree's get_maintainer.pl failed"))
    recipients = asked.text.splitlines() if asked is not None else []
    findings += await _linted(before, after, files, objects)
    findings.sort(key=lambda finding: finding.reason not in _NO_ANSWER)  # a stable sort
    weight = 8 * len(maintainers)
    return Upstream(
        diff=diff,
        findings=findings[:_LISTED],
        prefix=await separate_process.call(weight, subsystem, subjects, path, maintainers),
        recipients=list(filter(_RECIPIENT.fullmatch, recipients))[:_LISTED],
        blame=list(past.blame) if past else [],
    )


async def _run(tree: Tree, argv: Sequence[str], stdin: bytes = b"") -> proc.Completed | None:
    """Return how a program has ended; None if it reaches a limit."""
    try:
        return await tree.run(argv, stdin=stdin, timeout=_SECONDS, check=False)
    except (proc.ProgramTimedOut, LimitExceeded):
        return None


def _not_run(check: str, message: str) -> Finding:
    return Finding(check=check, reason="not_run", message=message)


async def _linted(
    before: Tree, after: Tree, files: Sequence[FileChange], objects: Sequence[Object]
) -> list[Finding]:
    """Return the warnings of sparse and clang-format, if installed, that the patch adds."""
    lines = await asyncio.to_thread(changed_lines, files)
    words: list[list[str]] = [[*_SPARSE, *_flags(obj)] for obj in objects[:_OBJECTS]]
    words += [[*_FORMAT, path] for path in list(lines)[:_OBJECTS] if path.endswith((".c", ".h"))]
    installed = await _run(before, ["sh"], b"command -v sparse; command -v clang-format\n")
    paths = installed.text.splitlines() if installed is not None else []
    names = {path.rpartition("/")[2] for path in paths}
    absent = sorted({command[0] for command in words} - names)
    findings = [_not_run(name, f"{name} is not installed") for name in absent]
    commands = [command for command in words if command[0] in names]
    script = "".join(f"{shlex.join(command)}\n" for command in commands).encode()
    printed = [await _run(tree, ["sh"], script) for tree in (before, after)]
    if None in printed:  # a patch could provoke this, to hide their warnings
        message = f"sparse and clang-format were not done within {_SECONDS:g} s"
        return [*findings, Finding(check="sparse", reason="timed_out", message=message)]
    old, new = [diagnostics.parse(done.text.splitlines() if done else []) for done in printed]
    # Few files of the kernel follow the style of clang-format.
    loose = {each.file for each in old if _STYLE in each.message}
    for each in new_warnings(old, new, lines):
        if _STYLE not in each.message or each.file not in loose:
            facts = each.model_dump(include={"file", "line", "message"})
            check = "clang-format" if _STYLE in each.message else "sparse"
            findings.append(Finding(check=check, reason="new_warning", **facts))
    return findings


def _flags(obj: Object) -> list[str]:
    """Return the words of an object's command that sparse gets, too."""
    words: Sequence[str] = compile_words(obj.command) or ()
    return [word for word in words[1:] if word not in {"-c", "-o", obj.path}]


def _as_git(submitted: str, files: Sequence[FileChange]) -> str:
    """Return a patch as Git writes it; empty if it does more than change UTF-8 texts."""
    parts = []
    for file in files:
        try:
            before, after = (side.decode() for side in (file.before, file.after) if side)
        except ValueError:  # it is new, gone, or not UTF-8
            return ""
        parts.append(unified_diff.between(file.path, before, after, functions=True))
    diff = "".join(parts)
    return diff if len(diff) <= _MOST_DIFF and "\nnew mode " not in submitted else ""
