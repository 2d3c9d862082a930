"""Compiler diagnostics and findings beside the lines of a patch. Pure; linear time.

A patch may apply at other lines than its diff says, and edits have no line numbers. So a message is
placed at its line number if the compiler quoted that line, else at the only line with the quoted
text.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from kgym.api.jobs import JobView, StepView
from kgym.api.steps import (
    BuildResult,
    BuildSpec,
    CheckResult,
    CheckSpec,
    Diagnostic,
    Finding,
    GitSource,
    Patch,
    PatchCheck,
    PatchOutcome,
    ReproduceResult,
    ReproduceSpec,
    Severity,
)
from kgym_monitor.pages import diff_lines
from kgym_monitor.pages.diff_lines import ChangedFile, ShownPatch
from kgym_monitor.pages.source_links import link

# Most messages of a patch on a page.
SHOWN = 300
# Most patches whose diffs a job's page shows; of more, it links to a page each.
WHOLE = 5
# Most patches of a build that are shown: the last ones.
_BUILT = 20
_HEAD = re.compile(r"^([^\s:][^:]{0,999}):([0-9]{1,9}):")
_QUOTE = re.compile(r"^ {0,12}([0-9]{1,9}) \| (.{0,4000})")

# A line of a shown patch: index of its file, and index within that, from 0.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Message:
    """A compiler's message or a finding; `link` is its line in the unpatched source."""

    about: Diagnostic
    label: str
    link: str | None = None


@dataclass(slots=True)
class Messages:
    """Messages on a patch, by place."""

    beside: dict[Place, list[Message]] = field(default_factory=dict)
    within: dict[str, list[Message]] = field(default_factory=dict)
    """By changed file: on lines that the diff does not show."""
    elsewhere: list[Message] = field(default_factory=list)
    """In other files."""
    left_out: int = 0

    def at(self, file: int, line: int) -> list[Message]:
        """Return the messages below a line."""
        return self.beside.get((file, line), [])


@dataclass(frozen=True, slots=True)
class CheckedPatch:
    """A patch and its result; `check` is None while the step runs."""

    number: int
    name: str
    shown: ShownPatch
    messages: Messages
    errors: int = 0
    warnings: int = 0
    check: PatchCheck | None = None


def counts(result: CheckResult) -> list[tuple[PatchOutcome, int]]:
    """Count patches by outcome; outcomes without a patch are left out."""
    by_outcome = Counter(check.outcome for check in result.patches)
    return [(outcome, by_outcome[outcome]) for outcome in PatchOutcome if by_outcome[outcome]]


def patches(step: StepView) -> list[CheckedPatch]:
    """Return the patches whose diffs a job's page shows."""
    match step.spec:
        case CheckSpec(patches=asked) if len(asked) <= WHOLE:
            return [shown for number in range(len(asked)) if (shown := patch(step, number))]
        case BuildSpec(patches=asked):
            return _built(step, asked[-_BUILT:])
    return []


def patch(step: StepView, number: int) -> CheckedPatch | None:
    """Return a patch of a check step with its result, if any; None if there is no such patch."""
    if not isinstance(step.spec, CheckSpec) or not 0 <= number < len(step.spec.patches):
        return None
    asked, result = step.spec.patches[number], step.result
    known = isinstance(result, CheckResult) and number < len(result.patches)
    check = result.patches[number] if isinstance(result, CheckResult) and known else None
    if check is None:
        return CheckedPatch(number, asked.name, diff_lines.files(asked), Messages())
    shown = diff_lines.files(asked)
    return _checked(
        number, asked.name, shown, check.diagnostics, check.output, _source(step), check
    )


def on_trial(job: JobView) -> list[CheckedPatch]:
    """Return the patches on trial, with the compiler's messages and the findings at their lines."""
    for step in job.steps:
        if isinstance(step.spec, BuildSpec) and step.spec.review:
            findings = [
                finding
                for other in job.steps
                if other is step or _runs_build(job, other, step)
                if isinstance(other.result, BuildResult | ReproduceResult)
                for finding in other.result.findings
                if finding.file is not None
            ]
            names = set(step.spec.review)
            built = _built(step, step.spec.patches[-_BUILT:], findings)
            return [patch for patch in built if patch.name in names]
    return []


def _runs_build(job: JobView, run: StepView, build: StepView) -> bool:
    if not isinstance(run.spec, ReproduceSpec) or run.spec.build.job is not None:
        return False
    return job.step(run.spec.build.step) is build


def _built(
    step: StepView, asked: Sequence[Patch], findings: Sequence[Finding] = ()
) -> list[CheckedPatch]:
    """Return a build's patches, the last one first, which is the one on trial.

    A message belongs to the last patch of its file, or else to the last of all: the kernel was
    compiled with the patches before it.
    """
    left = list(_build_diagnostics(step))
    shown = [diff_lines.files(patch) for patch in asked]
    known = {path for patch in shown for path in patch.paths}
    checked = []
    for number in reversed(range(len(asked))):
        last, paths = number == len(asked) - 1, shown[number].paths
        own, others = list[Diagnostic](), list[Diagnostic]()
        for diagnostic in left:
            is_own = diagnostic.file in paths or (last and diagnostic.file not in known)
            (own if is_own else others).append(diagnostic)
        left = others
        placed = _checked(number, asked[number].name, shown[number], own, "", _source(step))
        if last:
            notes = sorted(map(_of_finding, findings), key=lambda message: message.label)
            placed.messages.left_out += max(0, len(notes) - SHOWN)
            _place(shown[number], placed.messages, notes[:SHOWN], {}, _source(step))
        checked.append(placed)
    return checked


def _of_finding(finding: Finding) -> Message:
    blocking = finding.severity is Severity.BLOCKING
    about = Diagnostic(
        file=finding.file or "",
        line=finding.line,
        severity="error" if blocking else "warning",
        message=finding.message,
    )
    # In the order of these labels, blocking findings come first.
    return Message(about, "blocking finding" if blocking else "note")


def _build_diagnostics(step: StepView) -> Iterable[Diagnostic]:
    if isinstance(step.result, BuildResult):
        yield from step.result.warnings
    listed = step.failure.details.get("diagnostics") if step.failure else None
    for item in listed if isinstance(listed, list) else []:
        try:
            yield Diagnostic.model_validate(item)
        except ValidationError:  # details are whatever a worker sent
            continue


def _checked(
    number: int,
    name: str,
    shown: ShownPatch,
    diagnostics: Sequence[Diagnostic],
    output: str,
    source: tuple[object, str | None],
    check: PatchCheck | None = None,
) -> CheckedPatch:
    placed = messages(shown, diagnostics, output, source)
    errors = sum(diagnostic.severity == "error" for diagnostic in diagnostics)
    return CheckedPatch(number, name, shown, placed, errors, len(diagnostics) - errors, check)


def messages(
    shown: ShownPatch,
    diagnostics: Sequence[Diagnostic],
    output: str = "",
    source: tuple[object, str | None] = (None, None),
) -> Messages:
    """Place diagnostics beside the lines of a patch; `source` is the kernel's source and release.

    At most SHOWN are kept, errors first. `output` is the compiler's text.
    """
    ordered = sorted(diagnostics, key=lambda diagnostic: diagnostic.severity != "error")
    placed = Messages(left_out=max(0, len(diagnostics) - SHOWN))
    first = map(_of_compiler, ordered[:SHOWN])
    _place(shown, placed, first, _quotes(output), source)
    return placed


def _of_compiler(about: Diagnostic) -> Message:
    return Message(about, "error" if about.severity == "error" else "new warning")


def _place(
    shown: ShownPatch,
    placed: Messages,
    messages: Iterable[Message],
    quoted: Mapping[tuple[str, int], str],
    source: tuple[object, str | None],
) -> None:
    files = dict[str, _Lines]()
    for number, file in enumerate(shown.files):
        files.setdefault(file.path, _Lines()).add(number, file)
    for message in messages:
        about = message.about
        if about.file not in shown.paths:
            where = link(*source, {"file": about.file, "line": about.line})
            placed.elsewhere.append(replace(message, link=where))
            continue
        lines = files.get(about.file)
        words = None if about.line is None else quoted.get((about.file, about.line))
        place = lines.find(about.line, words) if lines else None
        if place is None:
            placed.within.setdefault(about.file, []).append(message)
        else:
            placed.beside.setdefault(place, []).append(message)


class _Lines:
    """Shown lines of a patched file, by number and by text."""

    def __init__(self) -> None:
        self._by_number: dict[int, tuple[Place, str]] = {}
        self._by_words: dict[str, list[Place]] = {}
        self._added: set[Place] = set()

    def add(self, number: int, file: ChangedFile) -> None:
        """Add the lines of one part of the file's changes."""
        for at, line in enumerate(file.lines):
            if line.kind not in {"added", "same"}:
                continue
            place, words = (number, at), _plain(line.text)
            if line.new is not None:
                self._by_number[line.new] = place, words
            self._by_words.setdefault(words, []).append(place)
            if line.kind == "added":
                self._added.add(place)

    def find(self, number: int | None, quoted: str | None) -> Place | None:
        """Return the line with this number, or the only one with the quoted text."""
        wanted = None if quoted is None else _plain(quoted)
        if number in self._by_number:
            place, words = self._by_number[number]
            if wanted in {None, words}:
                return place
        alike = self._by_words.get(wanted, []) if wanted else []
        # The compiler more likely complains about an added line than about a context line with the
        # same text.
        own = [position for position in alike if position in self._added] or alike
        return own[0] if len(own) == 1 else None


def _plain(text: str) -> str:
    return " ".join(text.split())  # compilers print tabs as spaces


def _quotes(output: str) -> dict[tuple[str, int], str]:
    """Return source lines quoted by the compiler, by file and number."""
    quotes: dict[tuple[str, int], str] = {}
    file = ""
    for line in output.split("\n"):
        if head := _HEAD.match(line):
            file = head[1].removeprefix("./")
        elif quote := _QUOTE.match(line):
            quotes.setdefault((file, int(quote[1])), quote[2])
    return quotes


def _source(step: StepView) -> tuple[object, str | None]:
    """Return source and release of a step's kernel, None where unknown."""
    source: Any = getattr(step.spec, "source", None)
    release: str | None = getattr(step.result, "kernel_release", None)
    return (source if isinstance(source, GitSource) else None), release
