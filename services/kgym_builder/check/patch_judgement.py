"""From a plan to the work of a check, and from its results to outcomes and new warnings. Pure."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

from kgym.api.steps import Diagnostic, FileCheck, FileOutcome, PatchOutcome
from kgym.source import diagnostics
from kgym.source.patching import Change
from kgym.source.unified_diff import common_start
from kgym_builder.check.compilation import (
    CompileBatch,
    CompileCommands,
    CompileResult,
    CompileResults,
    Counts,
    make_commands,
)
from kgym_builder.check.compile_plan import EVERYTHING, CompilePlan, FileChange, FilePlan, Way
from kgym_builder.kbuild import kbuild
from kgym_builder.kbuild.object_index import Index, Object
from kgym_builder.kbuild.saved_commands import compile_words, depfile
from kgym_builder.kbuild.working_tree import orphans
from kgym_builder.toolchains.toolchain import Toolchain

_MADE = re.compile(r"(?m)^ +(?:CC|AS)(?: \[M\])? +(\S+\.o)$")
_FAILED = re.compile(r"(?m)^make(?:\[\d+\])?: \*\*\* \[(?:\S+: )?(\S+\.o)\] ")
_NO_RULE = re.compile(r"\*\*\* No rule to make target '([^'\n]{1,200})'")
# Largest number of changed lines of a file that are matched, as matching takes quadratic time. For
# larger changes, only the numbers of equal warnings are compared.
_MOST_LINES = 2000

_WORST = {
    FileOutcome.REMOVED: PatchOutcome.COMPILES,
    FileOutcome.COMPILES: PatchOutcome.COMPILES,
    FileOutcome.NOT_BUILT: PatchOutcome.NOT_BUILT,
    FileOutcome.OVER_LIMIT: PatchOutcome.OVER_LIMIT,
    FileOutcome.DOES_NOT_COMPILE: PatchOutcome.DOES_NOT_COMPILE,
}


def work(
    plan: CompilePlan, tools: Toolchain, changes: Sequence[Change], symbols: Sequence[str]
) -> CompileBatch:
    """Return the jobs of a plan."""
    make = kbuild.command(tools)
    if plan.way is Way.MAKE:
        commands = [["rm", "-f", "--", *gone]] if (gone := orphans(changes)) else []
        commands += [[*make, "olddefconfig"]] if plan.configures else []
        paths = [path for file in plan.files for path in objects(file)]
        first = make_commands([*commands, [*make, "-k", *plan.targets]], list(dict.fromkeys(paths)))
        return CompileBatch(changes, [], first, symbols)
    prepare = make_commands([[*make, "prepare"]], []) if plan.way is Way.PREPARE else None
    jobs = []
    for obj in plan.objects:
        words = compile_words(obj.command)
        assert words is not None, "the plan takes another way for such a command"
        jobs.append(CompileCommands([words], [obj.path], depfile(words)))
    return CompileBatch(changes, jobs, prepare, symbols)


def objects(file: FilePlan) -> list[str]:
    """Return the objects of a file; for a file that the patch adds, the name make would give."""
    own = re.sub(r"\.[cS]$", ".o", file.path)
    return [obj.path for obj in file.objects] or [own] * (own != file.path)


@dataclass(frozen=True)
class PatchJudgement:
    """The outcome of a plan: by file, with the compiler's messages."""

    plan: CompilePlan
    outcome: CompileResults

    @cached_property
    def done(self) -> list[CompileResult]:
        """The results of all jobs that were done, in order."""
        jobs = [self.outcome.jobs[place] for place in sorted(self.outcome.jobs)]
        return [self.outcome.first, *jobs] if self.outcome.first is not None else jobs

    @property
    def _failures(self) -> list[CompileResult]:
        return [result for result in self.done if result.status != 0]

    @cached_property
    def files(self) -> list[FileCheck]:
        """The outcome of each file."""
        judge = self._made if self.plan.way is Way.MAKE else self._commanded
        return [_removed(file, judge(file)) for file in self.plan.files]

    @cached_property
    def patch_outcome(self) -> PatchOutcome:
        """The worst outcome among the files that are code, or among all if none is."""
        code = [
            check.outcome
            for check, file in zip(self.files, self.plan.files, strict=True)
            if file.is_code
        ]
        outcomes = code or [check.outcome for check in self.files]
        order = list(_WORST)
        return _WORST[max(outcomes, key=order.index, default=FileOutcome.NOT_BUILT)]

    @property
    def failed(self) -> bool:
        """Whether something does not compile, or ran into a limit."""
        return self.patch_outcome in {PatchOutcome.DOES_NOT_COMPILE, PatchOutcome.OVER_LIMIT}

    @cached_property
    def errors(self) -> list[Diagnostic]:
        """The compiler's errors."""
        return _parsed("error", *(failure.output for failure in self._failures))

    @property
    def reason(self) -> str:
        """The first error in one line; empty if nothing failed."""
        if not self.failed:
            return ""
        if self.errors:
            first = self.errors[0]
            return f"{first.file}:{first.line}: {first.message}"
        for failure in self._failures:
            if missing := _NO_RULE.search(failure.output):
                return (
                    f"nothing makes {missing[1]} any more: change the makefile that names it, too"
                )
        ends = [failure.output.strip().splitlines()[-1:] for failure in self._failures]
        last = next((end[0] for end in ends if end), "it printed nothing")
        status = self._failures[0].status if self._failures else "none"
        return f"{last} (status {status})"

    @property
    def output(self) -> str:
        """The compiler's output of the jobs that failed."""
        return "".join(_without_progress(failure.output) for failure in self._failures)

    def warned(self, index: Index) -> Iterator[tuple[Object | None, list[Diagnostic], str]]:
        """Yield the object whose earlier warnings to compare, the warnings now, and the output.

        Make's output does not say which object a warning belongs to, so the first made object that
        depends on the file is taken; a new file has none.
        """
        for place, result in sorted(self.outcome.jobs.items()):
            if result.status == 0 and (warnings := _warnings(result.output)):
                yield self.plan.objects[place], warnings, result.output
        if self.plan.way is not Way.MAKE or self.outcome.first is None:
            return
        warnings = _warnings(self.outcome.first.output)
        made = set(_MADE.findall(self.outcome.first.output))
        for file, known in index.dependents({warning.file for warning in warnings}).items():
            objects = (obj for obj in known.objects if obj.path in made)
            own = [warning for warning in warnings if warning.file == file]
            yield next(objects, None), own, _without_progress(self.outcome.first.output)

    @cached_property
    def before(self) -> Counts:
        """Instruction counts in all objects before the patch."""
        return {key: count for result in self.done for key, count in result.before.items()}

    @cached_property
    def after(self) -> Counts:
        """Instruction counts in all objects that compiled."""
        made = self.plan.way is Way.MAKE
        done = (result for result in self.done if made or result.status == 0)
        return {key: count for result in done for key, count in result.after.items()}

    def _commanded(self, file: FilePlan) -> FileCheck:
        first = self.outcome.first
        paths = [obj.path for obj in self.plan.objects]
        if first is not None and first.status != 0:
            return _check(file, [first] * bool(file.objects), 0, file.dependents)
        results = {paths[place]: result for place, result in self.outcome.jobs.items()}
        own: list[CompileResult | None] = [results.get(obj.path) for obj in file.objects]
        # The index does not know files that the patch adds; the new dependency files do.
        if not own:
            own = [result for result in results.values() if file.path in result.dependencies]
        return _check(file, own, len(own), max(file.dependents, len(own)))

    def _made(self, file: FilePlan) -> FileCheck:
        first = self.outcome.first
        if first is None or first.killed:
            return _check(file, [None], 0, file.dependents)
        made, failed = set(_MADE.findall(first.output)), set(_FAILED.findall(first.output))
        named = any(error.file == file.path for error in self.errors)
        if file.steers_make:
            folder = "" if file.target == EVERYTHING else str(file.target)
            inside = {path for path in made if path.startswith(folder)}
            reached = bool(inside or file.dependents or self.plan.configures or named)
            return _check(file, [first] if reached else [], len(inside), file.dependents)
        own = set(objects(file))
        if own & failed or named or (first.status != 0 and file.objects and not own & made):
            outcome = FileOutcome.DOES_NOT_COMPILE
        else:
            outcome = FileOutcome.COMPILES if own & made else FileOutcome.NOT_BUILT
        count = len(own & made)
        return FileCheck(
            path=file.path, outcome=outcome, objects=count, dependents=max(file.dependents, count)
        )


def _removed(file: FilePlan, check: FileCheck) -> FileCheck:
    """Return the check of a file, `removed` if the patch removes it: no object is expected.

    A removed file that the config never compiled stays `not_built`.
    """
    if file.removed and file.dependents and check.outcome is FileOutcome.NOT_BUILT:
        return check.model_copy(update={"outcome": FileOutcome.REMOVED})
    return check


def _parsed(severity: str, *outputs: str) -> list[Diagnostic]:
    parsed = diagnostics.parse(line for output in outputs for line in output.splitlines())
    return [diagnostic for diagnostic in parsed if diagnostic.severity == severity]


def _warnings(output: str) -> list[Diagnostic]:
    return _parsed("warning", output) if "warning:" in output else []


def _without_progress(output: str) -> str:
    """Return the output without kbuild's progress lines, such as `  CC      fs/open.o`."""
    return re.sub(r"(?m)^ {2,}[A-Z]+(?: \[M\])? .*\n", "", output)


def _check(
    file: FilePlan, own: Sequence[CompileResult | None], objects: int, dependents: int
) -> FileCheck:
    if not own:
        outcome = FileOutcome.NOT_BUILT
    elif any(result is not None and result.status != 0 and not result.killed for result in own):
        outcome = FileOutcome.DOES_NOT_COMPILE
    elif any(result is None or result.killed for result in own):
        outcome = FileOutcome.OVER_LIMIT
    else:
        outcome = FileOutcome.COMPILES
    return FileCheck(path=file.path, outcome=outcome, objects=objects, dependents=dependents)


# --- warnings that a patch adds -----------------------------------------------------------------


class Lines:
    """Maps lines of a changed file to their numbers before the change."""

    def __init__(self, before: str, after: str) -> None:
        old, new = before.split("\n"), after.split("\n")
        start = common_start(old, new)
        end = common_start(old[start:][::-1], new[start:][::-1])
        self._blocks = [(0, 0, start)]
        middle = old[start : len(old) - end], new[start : len(new) - end]
        if max(map(len, middle)) <= _MOST_LINES:
            matcher = SequenceMatcher(None, *middle, autojunk=False)
            blocks = matcher.get_matching_blocks()
            self._blocks += [(start + a, start + b, size) for a, b, size in blocks]
        self._blocks.append((len(old) - end, len(new) - end, end))
        self._starts = [block[1] for block in self._blocks]

    def before(self, line: int) -> int | None:
        """Return the earlier number of a line, both counted from 1; None if the line is new."""
        old, new, size = self._blocks[bisect_right(self._starts, line - 1) - 1]
        return old + line - new if line - 1 < new + size else None


def changed_lines(files: Iterable[FileChange]) -> dict[str, Lines]:
    """Return the lines of the files that a patch changes, without those that it adds or removes."""
    return {
        file.path: Lines(
            *(side.decode(errors="surrogateescape") for side in (file.before, file.after))
        )
        for file in files
        if file.before is not None and file.after is not None
    }


def new_warnings(
    before: Iterable[Diagnostic], after: Iterable[Diagnostic], lines: Mapping[str, Lines]
) -> list[Diagnostic]:
    """Return the warnings in `after` that are not in `before`.

    An equal warning on an unchanged line is old. Of the other warnings with the same message in a
    file, as many count as old as earlier ones are left.
    """
    old = Counter((warning.file, warning.message, warning.line) for warning in before)
    moved = []
    for warning in after:
        line = warning.line
        if warning.file in lines and line is not None:
            line = lines[warning.file].before(line)
        place = (warning.file, warning.message, line)
        if old[place] > 0:
            old[place] -= 1
        else:
            moved.append(warning)
    left: Counter[tuple[str, str]] = Counter()
    for (file, message, _), count in old.items():
        left[file, message] += count
    new = []
    for warning in moved:
        if left[warning.file, warning.message] > 0:
            left[warning.file, warning.message] -= 1
        else:
            new.append(warning)
    return new
