"""Texts for values on pages: durations, sizes, states, probabilities. Pure."""

import math
from datetime import UTC, datetime

from pydantic import ValidationError

from kgym.api import trusted_tags
from kgym.api.jobs import JobView, StepView
from kgym.api.key_value_tags import bug_and_patch
from kgym.api.outcomes import Outcome
from kgym.api.patch_rows import Check
from kgym.api.states import State
from kgym.api.steps import ReproduceResult, StepKind, Verdict
from kgym.bugs.conclusion import ANSWERS, Answer

_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {
    0x7F: 0x2421
}
# Invisible characters and changes of direction, with which text could look like other text.
_HIDDEN = (
    *range(0x80, 0xA0),
    *(0xAD, 0x061C, 0xFEFF),
    *range(0x200B, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
)
_VISIBLE = _PICTURES | dict.fromkeys(_HIDDEN, 0xFFFD)
VERDICTS = {
    Verdict.SAME_CRASH: "same crash",
    Verdict.OTHER_CRASH: "other crash",
    Verdict.NO_CRASH: "no crash",
    Verdict.INCONCLUSIVE: "inconclusive",
}
_LOOKS = {Answer.YES: "succeeded", Answer.NO: "failed", Answer.USER: "failed"}
# The state whose colour and mark an outcome has.
LOOKS = {
    **{outcome: _LOOKS.get(answer, "queued") for outcome, answer in ANSWERS.items()},
    Outcome.WAITING: "queued",
    Outcome.RUNNING: "running",
    Outcome.ABORTED: "aborted",
}
CHECKS = {
    Check.REPRODUCER: "Reproducer",
    Check.CONTROLS: "Controls",
    Check.WORK: "Work",
    Check.VARIANTS: "Variants",
    Check.BALANCE: "Balance",
    Check.KERNEL_TESTS: "Kernel's own tests",
    Check.FINDINGS: "Findings",
}
# What a reader can do about an outcome.
NEXT = {
    Outcome.RESOLVED: "Next: download the bundle of the last step, and try it by hand.",
    Outcome.NOT_RESOLVED: "Next: read what failed below. `--accept REASON` accepts a finding that"
    " a right fix cannot avoid.",
    Outcome.DOES_NOT_COMPILE: "Next: correct the errors at the lines below, and submit again.",
    Outcome.DOES_NOT_APPLY: "Next: make the diff against this kernel's source, and submit again.",
    Outcome.NOT_BUILT: "Next: choose a config that compiles the changed files.",
    Outcome.NOT_REPRODUCED: "Next: more instances or a longer time may show the bug.",
    Outcome.REFUSED: "Next: correct what the reason names, and submit again.",
    Outcome.INCONCLUSIVE: "Next: restart the job; if it stays without an answer, read the log of"
    " the step.",
    Outcome.ABORTED: "Next: restart the job if you want its answer.",
}
KINDS = {
    StepKind.BUILD: "Build",
    StepKind.CHECK: "Check",
    StepKind.REPRODUCE: "Reproduce",
    StepKind.MINIMIZE: "Minimize",
    StepKind.SOURCE: "Source",
    StepKind.SYZKALLER: "Syzkaller",
    StepKind.HISTORY: "History",
}


def visible(text: object) -> str:
    """Return text with visible control characters: an escape sequence reads `␛[31m`."""
    shown = str(text)
    # Every value of a page passes here; most need no translation, which takes ten times as long.
    return shown if shown.isprintable() else shown.replace("\r\n", "\n").translate(_VISIBLE)


def fault(error: ValueError) -> str:
    """Return what is wrong with a form, for the reader: pydantic's own text repeats the input."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def duration(seconds: float | None) -> str:
    """Return a duration: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds is None:
        return ""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for size, name, part, part_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {name}" + (f" {rest} {part_name}" if rest else "")
    return f"{whole} s"


def nanoseconds(count: int) -> str:
    """Return a duration in a trace: `350 ns`, `12.3 µs`, `4.56 ms`, `1.2 s`, `3 min 20 s`."""
    if count >= 60 * 10**9:
        return duration(count / 1e9)
    for unit, name in ((10**9, "s"), (10**6, "ms"), (1000, "µs")):
        if count >= unit:
            return f"{count / unit:.6g} {name}"
    return f"{count} ns"


def offset(count: int) -> str:
    """Return a signed offset: `-12.3 µs`, `0`, `+4 ms`."""
    sign = "" if not count else "-" if count < 0 else "+"
    return sign + (nanoseconds(abs(count)) if count else "0")


def size(count: float | None) -> str:
    """Return bytes with a decimal unit: `512 B`, `4.1 kB`, `1.6 GB`."""
    if count is None:
        return ""
    if count < 1000:
        return f"{count:.0f} B"
    power = min(int(math.log10(count) // 3), 5)
    return f"{count / 1000**power:.1f} {' kMGTP'[power]}B"


def percent(share: float) -> str:
    """Return a share of 1 in percent, 100 % only if it is exactly that."""
    shown = f"{share * 100:.1f}".rstrip("0").rstrip(".")
    return "over 99.9 %" if shown == "100" and share < 1 else f"{shown} %"


def exact(moment: datetime) -> str:
    """Return a time in UTC; scripts convert it to the reader's zone."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def bug_of(job: JobView) -> str | None:
    """Return the job's bug."""
    return bug_and_patch(job.tags)[0]


def subject(job: JobView) -> str:
    """Return the job's bug and patch, or else its kinds of steps."""
    bug, patch = bug_and_patch(job.tags)
    if bug:
        return f"{bug}: {patch}" if patch else bug
    kinds = [KINDS[step.kind] for step in job.steps]
    return " → ".join(kinds[:6]) + (" → …" if len(kinds) > 6 else "")


def plain_tags(job: JobView) -> list[str]:
    """Return the user's tags: without bug and patch, and without hashes."""
    marks = trusted_tags.marks(job.tags)
    return [tag for tag in job.tags if tag not in marks and not tag.startswith(("bug=", "patch="))]


def waits(job: JobView, step: StepView) -> str | None:
    """Return why a step has not started; None if it has."""
    if step.state is State.QUEUED:
        return _queued(step)
    if step.state is State.PENDING:
        before = step.number - 1
        if job.state.final:
            return f"not started, as step {before} did not succeed"
        return f"starts when step {before} has succeeded"
    return None


def _queued(step: StepView) -> str:
    if step.waiting is not None:
        return f"waits: {step.waiting}"
    if step.ahead is None:  # just queued
        return "waits for a worker"
    line = {0: "next in its queue", 1: "1 step of its kind is ahead"}.get(
        step.ahead, f"{step.ahead:,} steps of its kind are ahead"
    )
    soon = "" if step.begins_in is None else f"; starts in about {duration(step.begins_in)}"
    return f"waits for a worker: {line}{soon}"


def instances(result: ReproduceResult) -> str:
    """Return how many instances crashed."""
    if not result.completed:
        return f"none of {result.requested} instances completed its run"
    left = result.requested - result.completed
    rest = f"; {left} of {result.requested} did not complete" if left > 0 else ""
    return f"{result.crashed} of {result.completed} completed instances crashed{rest}"


def confidence(result: ReproduceResult) -> str | None:
    """Return the confidence of a `no_crash`; None for other verdicts."""
    if result.verdict is not Verdict.NO_CRASH:
        return None
    if result.confidence is not None:
        return f"{percent(result.confidence)}, {_measured(result)}"
    if result.unseen_chance is not None:
        chance = percent(result.unseen_chance)
        return (
            f"if the bug were still there, these runs would miss it with a probability of {chance}"
        )
    return "not measured: it is unknown how often the bug shows"


def _measured(result: ReproduceResult) -> str:
    measured = result.calibration
    if measured is None:
        return "from the runs without the fix"
    return f"as {measured.crashed} of {measured.runs} measured runs without the fix showed the bug"
