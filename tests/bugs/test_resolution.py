"""When a fix resolves its bug, and what stands in the way when it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.patch_rows import Check
from kgym.api.steps import (
    Call,
    Control,
    ControlName,
    ControlOutcome,
    Evidence,
    Finding,
    KernelTestRun,
    Loss,
    Reached,
    ReproduceResult,
    Severity,
    VariantRun,
    Verdict,
    Work,
)
from kgym.bugs.checklist import checklist, line
from kgym.bugs.resolution import Resolution, resolution
from tests.results import ran


def result(verdict: Verdict, evidence: Evidence | None = None) -> ReproduceResult:
    return ran(verdict, completed=1, requested=1, evidence=evidence)


def finding(severity: Severity, reason: str = "sanitizer_removed") -> Finding:
    return Finding(check="detector", severity=severity, reason=reason, message="it is gone")


def control(outcome: ControlOutcome, name: ControlName = ControlName.WARNING) -> Control:
    return Control(name=name, outcome=outcome)


GOOD = Evidence(controls=[control(ControlOutcome.REPORTED)])
CRASHED, FINE = Verdict.SAME_CRASH, result(Verdict.NO_CRASH, GOOD)


def reasons(trial: Resolution) -> list[str]:
    return [obstacle.reason for obstacle in trial.obstacles]


def test_two_right_verdicts_with_evidence_and_without_findings_resolve() -> None:
    assert resolution(CRASHED, FINE, [], asked=True).resolved
    assert resolution(CRASHED, result(Verdict.NO_CRASH), [], asked=False).resolved


def test_notes_stand_in_nobodys_way() -> None:
    assert resolution(CRASHED, FINE, [finding(Severity.NOTE)], asked=True).resolved


@pytest.mark.parametrize(
    "accepted", [["sanitizer_removed"], ["other", "sanitizer_removed"], ["all"]]
)
def test_a_blocking_finding_does_unless_it_is_accepted(accepted: list[str]) -> None:
    trial = resolution(CRASHED, FINE, [finding(Severity.BLOCKING)], asked=True)
    assert (trial.resolved, trial.verdicts, reasons(trial)) == (False, True, ["sanitizer_removed"])
    blocking = [finding(Severity.BLOCKING)]
    assert resolution(CRASHED, FINE, blocking, asked=True, accepted=accepted).resolved
    assert not resolution(CRASHED, FINE, blocking, asked=True, accepted=["other"]).resolved


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (None, "no_evidence"),
        (Evidence(missing=["the instance was lost"]), "no_evidence"),
        (Evidence(controls=[control(ControlOutcome.SILENT)]), "control_silent"),
        (Evidence(controls=[control(ControlOutcome.NOT_TRIED)]), "control_not_tried"),
    ],
)
def test_evidence_that_was_asked_for_and_is_lacking_stands_in_the_way(
    evidence: Evidence | None, reason: str
) -> None:
    trial = resolution(CRASHED, result(Verdict.NO_CRASH, evidence), [], asked=True)
    assert (trial.resolved, reasons(trial)) == (False, [reason])


@given(st.sampled_from([None, *Verdict]), st.sampled_from([None, *Verdict]), st.booleans())
@pytest.mark.thorough
def test_nothing_that_is_accepted_makes_up_for_a_verdict(
    before: Verdict | None, after: Verdict | None, asked: bool
) -> None:
    trial = resolution(before, after and result(after, GOOD), [], asked=asked, accepted=["all"])
    assert trial.resolved == ((before, after) == (Verdict.SAME_CRASH, Verdict.NO_CRASH))


def test_what_a_verdict_rests_on_is_told_in_one_line() -> None:
    before = Work(calls=[Call(name="ioctl", result="ok", count=9)])
    after = Work(
        calls=[Call(name="ioctl", result="EINVAL", count=9)],
        reached=[Reached(function="f", reached=True), Reached(function="g", reached=False)],
    )
    silent = control(ControlOutcome.SILENT, ControlName.PANIC)
    absent = control(ControlOutcome.NOT_CONFIGURED, ControlName.UBSAN)
    evidence = Evidence(controls=[*GOOD.controls, silent, absent], work=after, missing=["ends"])
    items = checklist(before, result(Verdict.NO_CRASH, evidence), [finding(Severity.BLOCKING)])
    assert line(items) == (
        "1 of 2 controls reported; 0 of 1 kinds of calls as before; 1 of 2 functions reached;"
        " not known: ends; by the reproducer alone; 1 blocking finding"
    )
    variants = VariantRun(ran=15000, compared=60, same=58, losses=[])
    after = FINE.model_copy(update={"evidence": None, "variants": variants})
    assert line(checklist(None, after, [])) == (
        "15,000 variants are quiet; 58 of 60 behave as before; nothing leaks; no blocking finding"
    )


def test_leaks_are_not_known_without_the_losses_of_the_unpatched_kernel() -> None:
    loss = Loss(name="filp", per_run=1)
    for losses, leaked, met in ((None, [], None), ([], [], True), ([loss], [loss], False)):
        variants = VariantRun(ran=9, losses=losses, program_losses=[loss], leaked=leaked)
        after = FINE.model_copy(update={"variants": variants})
        items = {item.check: item.met for item in checklist(None, after, [])}
        assert items[Check.BALANCE] is met


def test_work_that_could_not_be_compared_is_not_known_to_be_as_before() -> None:
    work = Work(calls=[], reached=[Reached(function="f", reached=True)])
    after = result(Verdict.NO_CRASH, Evidence(controls=GOOD.controls, work=work))
    note = Finding(check="work", reason="work_not_compared", message="nothing is compared")
    for findings, met in (([], True), ([note], None)):
        items = {item.check: item.met for item in checklist(None, after, findings)}
        assert items[Check.WORK] is met


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        (KernelTestRun(passed=14, left_out=["a: it is skipped"]), "14 kernel tests pass"),
        (KernelTestRun(), "0 kernel tests pass"),
        (KernelTestRun(passed=13, failed=["futex_wait"]), "1 of 14 kernel tests fail"),
        (KernelTestRun(left_out=["x.c: no tests"]), "no kernel tests: x.c: no tests"),
    ],
)
def test_the_kernels_own_tests_are_counted(tests: KernelTestRun, words: str) -> None:
    after = FINE.model_copy(update={"evidence": None, "kernel_tests": tests})
    expected = f"by the reproducer alone; {words}; no blocking finding"
    assert line(checklist(None, after, [])) == expected
