"""The evidence for a verdict on a patched kernel: a checklist, and the same in one line. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kgym.api.patch_rows import Check
from kgym.api.steps import (
    Control,
    ControlOutcome,
    Evidence,
    Finding,
    KernelTestRun,
    ReproduceResult,
    Severity,
    VariantRun,
    Verdict,
    Work,
)
from kgym.bugs.resolution import placed

# Details of one item: a page shows them all.
_MOST_DETAILS = 50
_LEAKS = "leaks_objects"
_NOT_COMPARED = "work_not_compared"


@dataclass(frozen=True, slots=True)
class Item:
    """One check of a patched kernel."""

    check: Check
    met: bool | None
    """Whether it was passed; None if that is not known."""
    words: str
    """What was observed, in short."""
    details: tuple[str, ...] = ()


def checklist(
    before: Work | None, after: ReproduceResult | None, findings: Sequence[Finding]
) -> list[Item]:
    """Return all checks of a patched kernel, in the order of `Check`.

    Args:
        before: What the program did on the unpatched kernel, if that is known.
        after: The result of the patched kernel.
        findings: Those of its build and of its run.
    """
    evidence = after.evidence if after else None
    variants = after.variants if after else None
    blocking = [finding for finding in findings if finding.severity is Severity.BLOCKING]
    items = [
        _reproducer(after),
        _controls(evidence),
        _work(before, evidence, any(finding.reason == _NOT_COMPARED for finding in findings)),
        _variants(variants),
        _balance(variants),
        _kernel_tests(after.kernel_tests if after else None),
        _findings(findings, len(blocking)),
    ]
    against = {check for finding in blocking if (check := _check(finding)) is not None}
    return [
        Item(item.check, False if item.check in against else item.met, item.words, item.details)
        for item in items
    ]


def line(items: Iterable[Item]) -> str:
    """Return what was observed besides the verdict, in one line."""
    words = (item.words for item in items if item.check is not Check.REPRODUCER)
    return "; ".join(filter(None, words))


def _check(finding: Finding) -> Check | None:
    if finding.reason == _LEAKS:
        return Check.BALANCE
    checks = {"work": Check.WORK, "variants": Check.VARIANTS, "tests": Check.KERNEL_TESTS}
    return checks.get(finding.check)


def _item(check: Check, met: bool | None, words: Iterable[str], details: Iterable[str]) -> Item:
    return Item(check, met, "; ".join(words), tuple(details)[:_MOST_DETAILS])


def _reproducer(after: ReproduceResult | None) -> Item:
    if after is None or after.verdict is Verdict.INCONCLUSIVE:
        return _item(Check.REPRODUCER, None, ["no verdict"], [after.reason] if after else [])
    words = [f"{after.crashed} of {after.completed} runs crashed"]
    return _item(Check.REPRODUCER, after.verdict is Verdict.NO_CRASH, words, [after.reason])


def _controls(evidence: Evidence | None) -> Item:
    tried = [
        control
        for control in (evidence.controls if evidence else [])
        if control.outcome is not ControlOutcome.NOT_CONFIGURED
    ]
    reported = sum(control.outcome is ControlOutcome.REPORTED for control in tried)
    words = [f"{reported} of {len(tried)} controls reported"] if tried else []
    met = reported == len(tried) if tried else None
    return _item(Check.CONTROLS, met, words, map(_control, tried))


def _control(control: Control) -> str:
    more = control.title or control.detail
    outcome = control.outcome.replace("_", " ")
    return f"{control.name}: {outcome}{more and f', {more}'}"


def _work(before: Work | None, evidence: Evidence | None, not_compared: bool) -> Item:
    after = evidence.work if evidence else None
    missing = [f"not known: {reason}" for reason in (evidence.missing if evidence else [])]
    if after is None:
        return _item(Check.WORK, None, missing, [])
    words, details = [], []
    if before is not None and before.calls:
        known = {(call.name, call.result) for call in before.calls}
        same = known & {(call.name, call.result) for call in after.calls}
        words.append(f"{len(same)} of {len(known)} kinds of calls as before")
        details = [f"no longer: {name} returns {how}" for name, how in sorted(known - same)]
    if after.reached:
        reached = [function.function for function in after.reached if function.reached]
        words.append(f"{len(reached)} of {len(after.reached)} functions reached")
        details += [
            f"not reached: {function.function}"
            for function in after.reached
            if not function.reached
        ]
    # The findings decide whether a difference matters: a fix may refuse the crashing call.
    met = True if words and not not_compared else None
    return _item(Check.WORK, met, [*words, *missing], details)


def _variants(variants: VariantRun | None) -> Item:
    if variants is None:
        return _item(Check.VARIANTS, None, ["by the reproducer alone"], [])
    words, crashes = [], variants.crashes
    if not (variants.ran or crashes):
        words.append("by the reproducer alone")
    if variants.ran:
        words.append(f"{variants.ran - len(crashes):,} variants are quiet")
    if variants.compared:
        words.append(f"{variants.same} of {variants.compared} behave as before")
    if variants.missing:
        words.append(f"variants: {variants.missing}")
    details = [f"{crash.title}: {'; '.join(crash.changes)}" for crash in crashes]
    met = True if variants.ran else None
    return _item(Check.VARIANTS, met, words, [*details, *variants.examples])


def _balance(variants: VariantRun | None) -> Item:
    if variants is None or (variants.losses is None and not variants.leaked):
        return _item(Check.BALANCE, None, [], [])
    details = [f"{loss.name}: {loss.per_run:g} a run" for loss in variants.leaked]
    leaks = bool(variants.leaked)
    return _item(Check.BALANCE, not leaks, ["it leaks" if leaks else "nothing leaks"], details)


def _kernel_tests(tests: KernelTestRun | None) -> Item:
    if tests is None:
        return _item(Check.KERNEL_TESTS, None, [], [])
    met: bool | None = None
    if count := len(tests.failed):
        met, words = False, f"{count} of {count + tests.passed} kernel tests fail"
    elif tests.passed or not tests.left_out:
        met, words = bool(tests.passed) or None, f"{tests.passed} kernel tests pass"
    else:
        words = f"no kernel tests: {tests.left_out[0]}"
    return _item(Check.KERNEL_TESTS, met, [words], [*tests.failed, *tests.left_out])


def _findings(findings: Sequence[Finding], blocking: int) -> Item:
    words = f"{blocking or 'no'} blocking finding{'s' if blocking > 1 else ''}"
    return _item(Check.FINDINGS, not blocking, [words], _ordered(findings))


def _ordered(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in sorted(findings, key=lambda finding: finding.severity is not Severity.BLOCKING):
        yield f"{finding.severity}: {placed(finding)}"
