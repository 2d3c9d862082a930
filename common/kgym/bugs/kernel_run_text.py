"""Results of patches as text for models and people: short, bounded, the answer first. Pure.

A patch or a guest may have written crash reports and compiler output to instruct their reader. So
they stand between tags, which they cannot close.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from kgym.api.outcomes import Outcome
from kgym.api.steps import Diagnostic, PatchCheck, PatchOutcome, Severity
from kgym.bugs.conclusion import check_reason
from kgym.bugs.kernel_run import KernelRun
from kgym.crash.report.repeats import counted

# Characters of an answer: agents cut longer ones themselves, often at the most useful part.
MOST = 9000
_REPORT, _OUTPUT, _LINE = 6000, 4000, 300
_FEW = 5
# `#include <trace/events/sched.h>` stays unchanged: edits have to quote code byte for byte.
_TAG = re.compile(
    r"<(?!trace/\w)(?=/?(?:crash_report|compiler|file|trace|matches|console|program|reproducer|commits|machine_code|mails?)\b)",
    re.IGNORECASE,
)
# Also surrogates, which a mail's header may decode to: no answer can hold them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def run_text(run: KernelRun) -> str:
    """Return the result of a patch; the first line begins with the answer."""
    return bounded("\n".join(_run(run)), MOST)


def check_text(check: PatchCheck) -> str:
    """Return the result of a check."""
    return bounded("\n".join(_check(check)), MOST)


def bounded(text: str, most: int) -> str:
    """Return the text, cut to `most` characters with a note of how many are left out."""
    if len(text) <= most:
        return text
    return f"{text[: most - 60]}\n[… {len(text) - most + 60} more characters]"


def quoted(tag: str, text: str, most: int) -> str:
    """Return untrusted text between tags: bounded, and unable to close them."""
    # A space breaks our tags in the text; control characters could hide text in a terminal.
    safe = _TAG.sub("< ", _CONTROLS.sub("\ufffd", text.replace("\r\n", "\n").strip("\n")))
    return f"<{tag}>\n{bounded(safe, most)}\n</{tag}>"


def named(paths: Sequence[str], most: int = _FEW) -> str:
    """Return the first paths, and the number of the others."""
    rest = f" and {len(paths) - most} more" if len(paths) > most else ""
    return f"{', '.join(paths[:most])}{rest}"


def _run(run: KernelRun) -> Iterator[str]:
    if run.obstacles:
        yield f"{run.answer}:"
        for obstacle in run.obstacles:
            yield f"- {_line(obstacle.reason)}: {_line(obstacle.message)}"
    elif run.title:
        yield f"{run.answer}: {_line(run.title)}"
        yield _line(run.reason)
    else:
        yield f"{run.answer}: {_line(run.reason)}"
    if run.outcome is Outcome.DOES_NOT_COMPILE:
        yield from _compiler(run.output, run.diagnostics)
    else:
        yield from _warnings(run.diagnostics)
    if run.evidence and run.outcome is Outcome.RESOLVED:
        yield f"evidence: {run.evidence}"
    yield from _findings(run)
    if run.printed:
        yield quoted("console", run.printed, _OUTPUT)
    if run.report:
        yield quoted("crash_report", counted(run.report), _REPORT)
    if run.left_out:
        files = _line(named(run.left_out))
        yield f"left out, as they are untracked (`git add` what belongs to the patch): {files}"
    jobs = [run.job, run.shown_by, run.checked_by]
    number = next((number for number in jobs if number is not None), None)
    if number is not None:
        yield f"job {number}, {run.seconds.get('total', 0):.0f} s"


def _findings(run: KernelRun) -> Iterator[str]:
    reasons = {obstacle.reason for obstacle in run.obstacles}
    notes = [finding for finding in run.findings if finding.reason not in reasons]
    for finding in notes[:_FEW]:
        blocking = finding.severity is Severity.BLOCKING
        mark = "blocking" if blocking and not finding.accepted else "note"
        accepted = "accepted: " if blocking and finding.accepted else ""
        yield f"{mark}: {accepted}{finding.check}: {_line(finding.message)}"


def _check(check: PatchCheck) -> Iterator[str]:
    why = check_reason(check) if check.outcome is PatchOutcome.NOT_BUILT else check.reason
    reason = f": {_line(why)}" if why else ""
    match check.outcome:
        case PatchOutcome.COMPILES:
            yield "compiles"
            changed = named([function.name for function in check.functions], 10)
            yield f"functions that it changes: {_line(changed) or 'none'}"
            yield from _warnings(check.diagnostics)
        case PatchOutcome.NOT_BUILT:
            yield f"changes nothing{reason}"
        case PatchOutcome.DOES_NOT_COMPILE:
            yield f"does not compile{reason}"
            yield from _compiler(check.output, check.diagnostics)
        case PatchOutcome.DOES_NOT_APPLY:
            yield f"does not apply{reason}"
        case PatchOutcome.REFUSED:
            yield f"no patch{reason}"
        case PatchOutcome.OVER_LIMIT:
            yield f"not known: a limit ended the check{reason}"


def _compiler(output: str, diagnostics: Sequence[Diagnostic]) -> Iterator[str]:
    lines = [_diagnosed(diagnostic) for diagnostic in diagnostics if diagnostic.severity == "error"]
    text = output or "\n".join(lines)
    if text:
        yield quoted("compiler", text, _OUTPUT)


def _warnings(diagnostics: Iterable[Diagnostic]) -> Iterator[str]:
    added = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "warning"]
    for diagnostic in added[:_FEW]:
        yield f"new warning: {_line(_diagnosed(diagnostic))}"


def _diagnosed(diagnostic: Diagnostic) -> str:
    place = ":".join(
        str(part)
        for part in (diagnostic.file, diagnostic.line, diagnostic.column)
        if part is not None
    )
    return f"{place}: {diagnostic.severity}: {diagnostic.message}"


def _line(text: str) -> str:
    # A worker's text may have megabytes; only its beginning can be in the line.
    line = " ".join(_CONTROLS.sub("\ufffd", text[: 16 * _LINE]).split())
    whole = len(text) <= 16 * _LINE and len(line) <= _LINE
    return line if whole else f"{line[: _LINE - 1]}…"
