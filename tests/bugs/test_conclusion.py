"""What a trial came to: the evidence, what stands in the way, the answer."""

from collections.abc import Sequence
from typing import Any

import pytest

from kgym.api.jobs import JobView
from kgym.api.outcomes import UNDER_WAY, Outcome
from kgym.api.patch_rows import Check
from kgym.api.states import State
from kgym.api.steps import (
    Ahead,
    ControlOutcome,
    Diagnostic,
    Evidence,
    Failure,
    FileCheck,
    FileOutcome,
    Finding,
    PatchCheck,
    PatchOutcome,
    Severity,
    StepKind,
    StepRef,
    StepResult,
    StepSpec,
    UsedRoot,
    Verdict,
)
from kgym.bugs import bundle, sweep_rows, tracing_job
from kgym.bugs.bug import BEFORE, BUILD_AFTER, BUILD_BEFORE, BUILD_REFERENCE
from kgym.bugs.calibration import Effort
from kgym.bugs.conclusion import ANSWERS, Answer, conclusion, resolution_of
from kgym.bugs.kernel_run import KernelRun
from kgym.bugs.kernel_run_text import run_text
from kgym.bugs.sweep_rows import Pair
from kgym.bugs.trial_result import TrialResult, judged
from kgym.bugs.trial_sides import other_root
from tests.results import GOOD, built, checked, job_view, panicked, ran

BUG = bundle.load("watch-queue-filter")
GONE = Finding(
    check="detector", severity=Severity.BLOCKING, reason="flags_weaker", message="no KASAN"
)
NOTE = Finding(check="scope", reason="outside_files", message="elsewhere")


def job_of(done: Sequence[tuple[StepSpec, StepResult]]) -> JobView:
    """Return a job whose steps have succeeded with these results."""
    return job_view(
        [
            {"name": spec.name, "kind": spec.kind, "result": result, "spec": spec}
            for spec, result in done
        ]
    )


def trial(*results: StepResult) -> JobView:
    """Return the job that shows the bug and tries its fix."""
    return job_of(list(zip(BUG.job(BUG.fix).steps, results, strict=True)))


def as_listed(job: JobView, listed: bool) -> JobView:
    """Return the job as lists have it, which leave the specs out."""
    steps = [step.model_copy(update={"spec": None}) for step in job.steps]
    return job.model_copy(update={"steps": steps}) if listed else job


def tried(*findings: Finding, controls: ControlOutcome = ControlOutcome.REPORTED) -> JobView:
    """Return the job of a trial whose verdicts are right."""
    results: list[StepResult] = [
        built(),
        ran(Verdict.SAME_CRASH, evidence=Evidence()),
        built(findings=list(findings)),
        ran(evidence=panicked(controls)),
    ]
    return trial(*results)


def test_a_trial_with_evidence_and_only_notes_is_resolved() -> None:
    job = tried(NOTE)
    outcome = TrialResult.of(BUG.name, job)
    assert (outcome.resolved, outcome.obstacles) == (True, [])
    assert outcome.after is not None
    assert outcome.after.evidence_line == (
        "1 of 1 controls reported; by the reproducer alone; no blocking finding"
    )
    assert outcome.after.evidence is not None
    assert outcome.after.evidence.controls[0].outcome == "reported"
    assert outcome.before.evidence_line is None
    assert conclusion(job).answer is Answer.YES


@pytest.mark.parametrize(
    ("job", "reason"),
    [(tried(GONE), "flags_weaker"), (tried(controls=ControlOutcome.SILENT), "control_silent")],
)
def test_what_stands_in_the_way_is_told_and_can_be_accepted(job: JobView, reason: str) -> None:
    outcome = TrialResult.of(BUG.name, job)
    assert outcome.resolved is False
    assert [obstacle.reason for obstacle in outcome.obstacles] == [reason]
    assert conclusion(job).answer is Answer.NO
    for accepted in ([reason], ["all"]):
        outcome = TrialResult.of(BUG.name, job, accepted)
        assert (outcome.resolved, outcome.obstacles) == (True, [])
        assert outcome.after is not None
        assert all(finding.accepted for finding in outcome.after.findings)
        assert conclusion(job, accepted).answer is Answer.YES


@pytest.mark.attack
@pytest.mark.parametrize("before", [Verdict.SAME_CRASH, Verdict.INCONCLUSIVE])
@pytest.mark.parametrize("after", [Verdict.INCONCLUSIVE, Verdict.NO_CRASH, Verdict.OTHER_CRASH])
def test_what_the_patch_itself_shows_decides_whatever_the_vms_show(
    before: Verdict, after: Verdict
) -> None:
    """Findings of the run decide only with the verdicts: the run may have failed in other ways."""
    title = "BUG: other" if after is Verdict.OTHER_CRASH else None
    text = GONE.model_copy(update={"check": "amputation", "reason": "early_return"})
    job = trial(built(), ran(before), built(findings=[text]), ran(after, title, evidence=GOOD))
    row = sweep_rows.tried(Pair(BUG.name, "p"), job, [])
    assert (conclusion(job).answer, row.outcome) == (Answer.NO, Outcome.NOT_RESOLVED)
    assert [each.reason for each in row.obstacles] == ([] if title else ["early_return"])
    assert row.reason == "no KASAN"
    undecided = Verdict.INCONCLUSIVE in (before, after)
    accepted = conclusion(job, ["early_return"]).answer
    assert (accepted is Answer.INFRASTRUCTURE) == undecided
    by_run = trial(built(), ran(before), built(), ran(after, title, findings=[text]))
    assert (conclusion(by_run).answer is Answer.INFRASTRUCTURE) == undecided


@pytest.mark.parametrize("accepted", [False, True])
def test_a_finding_is_called_accepted_only_if_it_was(accepted: bool) -> None:
    run = KernelRun(
        bug="b",
        answer="crash reproduced",
        outcome=Outcome.NOT_RESOLVED,
        reason="it crashes",
        findings=judged([GONE], ["flags_weaker"] if accepted else []),
    )
    mark = "note: accepted: " if accepted else "blocking: "
    assert f"\n{mark}detector: no KASAN" in run_text(run)


BUILT, SHOWN, _, FIXED = BUG.job(BUG.fix).steps
UNNAMED = SHOWN.model_copy(update={"name": None})
ELSEWHERE = FIXED.model_copy(
    update={"name": None, "build": StepRef(step=0), "baseline": StepRef(job=6, step="before")}
)
CRASHED = ran(Verdict.SAME_CRASH)


def test_runs_that_are_no_trial_are_looked_at_one_by_one() -> None:
    """Two that show a bug each; a third one that does not is not passed over."""
    two = [(BUILT, built()), (UNNAMED, CRASHED), (UNNAMED, CRASHED)]
    summary = conclusion(job_of(two))
    assert (summary.trial, summary.outcome) == (None, Outcome.REPRODUCED)
    for odd in (ran(Verdict.NO_CRASH), ran(Verdict.OTHER_CRASH)):
        summary = conclusion(job_of([*two, (UNNAMED, odd)]))
        assert (summary.trial, summary.outcome) == (None, Outcome.NOT_REPRODUCED)


def test_a_fix_tried_alone_is_not_as_wanted_with_a_blocking_finding_of_its_build() -> None:
    quiet = ran(evidence=GOOD, baseline=Verdict.SAME_CRASH)
    alone = job_of([(BUILT, built(findings=[GONE])), (ELSEWHERE, quiet)])
    assert conclusion(alone).answer is Answer.NO
    assert conclusion(alone, [GONE.reason]).answer is Answer.YES
    noted = job_of([(BUILT, built(findings=[NOTE])), (ELSEWHERE, quiet)])
    assert conclusion(noted).answer is Answer.YES


@pytest.mark.parametrize("listed", [False, True])
def test_a_fix_whose_kernel_another_job_has_built_is_not_resolved_by_its_run_alone(
    listed: bool,
) -> None:
    """That build may have found what blocks; a build of this job with the same name is not it."""
    run = ran(evidence=GOOD, baseline=Verdict.SAME_CRASH)
    elsewhere = ELSEWHERE.model_copy(update={"build": StepRef(job=6, step=0)})
    clean: list[tuple[StepSpec, StepResult]] = [] if listed else [(BUILT, built())]
    job = as_listed(job_of([*clean, (elsewhere, run)]), listed)
    summary = conclusion(job)
    assert (summary.outcome, summary.answer) == (Outcome.NOT_RESOLVED, Answer.NO)
    assert summary.reason is not None
    assert summary.reason.startswith("another job built the kernel; ")
    assert conclusion(job, ["build_unknown"]).outcome is Outcome.RESOLVED


@pytest.mark.parametrize("listed", [False, True])
def test_a_fix_that_another_compiler_has_built_than_the_bug_proves_nothing(listed: bool) -> None:
    assert BUG.fix is not None
    runs = CRASHED, ran(evidence=GOOD)
    for compilers in (("gcc 12.2.0", "gcc 12.2.0"), ("gcc 12.2.0", "gcc 14.2.0")):
        builds = [built(compiler_version=compiler) for compiler in compilers]
        job = as_listed(trial(builds[0], runs[0], builds[1], runs[1]), listed)
        summary = conclusion(job)
        same = len(set(compilers)) == 1
        assert (summary.outcome is Outcome.RESOLVED) == same, summary.reason
        assert {item.check: item.met for item in summary.evidence}[Check.FINDINGS] is same
        assert same or "the kernel with the bug was built by" in str(summary.reason)
        assert conclusion(job, ["other_compiler"]).outcome is Outcome.RESOLVED


INITRAMFS = UsedRoot()
DISK = UsedRoot(kind="disk", format="raw", sha256="a" * 64, system="Debian 12")
OTHER_DISK = DISK.model_copy(update={"sha256": "b" * 64})


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    ("roots", "same"),
    [
        ((INITRAMFS, INITRAMFS), True),
        ((DISK, DISK), True),
        ((DISK, DISK.model_copy(update={"kind": "image", "system": ""})), True),
        ((DISK, OTHER_DISK), False),
        ((DISK, DISK.model_copy(update={"format": "qcow2"})), False),
        ((INITRAMFS, DISK), False),
        ((DISK, INITRAMFS), False),
    ],
)
def test_a_fix_that_ran_on_another_root_than_the_bug_proves_nothing(
    roots: tuple[UsedRoot, UsedRoot], same: bool, listed: bool
) -> None:
    assert BUG.fix is not None
    before = CRASHED.model_copy(update={"root": roots[0]})
    own = [] if listed else list(other_root(*roots))  # as the run itself has found it
    after = ran(evidence=GOOD, root=roots[1], findings=own, baseline=Verdict.SAME_CRASH)
    job = as_listed(trial(built(), before, built(), after), listed)
    decision = resolution_of(job)
    assert decision is not None
    assert decision.resolved is same
    assert [obstacle.reason for obstacle in decision.obstacles] == ([] if same else ["other_root"])
    assert conclusion(job, ["other_root"]).outcome is Outcome.RESOLVED


def test_a_fix_tried_on_another_root_than_that_of_another_job_is_not_resolved() -> None:
    for roots in ((DISK, DISK), (DISK, OTHER_DISK)):
        differences = list(other_root(*roots))
        run = ran(evidence=GOOD, baseline=Verdict.SAME_CRASH, findings=differences)
        summary = conclusion(job_of([(BUILT, built()), (ELSEWHERE, run)]))
        same = len(set(map(repr, roots))) == 1
        assert (summary.outcome is Outcome.RESOLVED) == same, summary.reason


def test_a_crash_shown_on_the_kernel_of_another_job_is_as_wanted() -> None:
    shown = UNNAMED.model_copy(update={"build": StepRef(job=6, step=0)})
    assert conclusion(job_of([(shown, CRASHED)])).answer is Answer.YES


def test_every_trial_of_a_fix_asks_for_static_evidence() -> None:
    assert BUG.fix is not None
    before, _, after, _ = BUG.job(BUG.fix).steps
    ahead = Ahead(patches=[BUG.fix], programs=[*BUG.reproducers])
    assert before == BUG.build.model_copy(update={"name": BUILD_BEFORE, "ahead": ahead})
    assert after == BUG.build.model_copy(
        update={
            "name": BUILD_AFTER,
            "patches": [*BUG.build.patches, BUG.fix],
            "review": [BUG.fix.name],
            "files": BUG.file.files,
        }
    )


def test_the_reason_is_what_decided_in_one_short_line() -> None:
    quiet = "1 of 1 controls reported; by the reproducer alone; no blocking finding"
    assert conclusion(tried()).reason == quiet
    assert conclusion(tried(NOTE)).reason == f"note: elsewhere; {quiet}"
    assert conclusion(tried(GONE)).reason == "no KASAN"
    assert conclusion(tried(GONE, GONE.model_copy(update={"message": "no UBSAN"}))).reason == (
        "no KASAN (and 1 more)"
    )
    long = ran(Verdict.SAME_CRASH, "KASAN: bad", reason="many\nwords " * 100)
    summary = conclusion(job_of([(BUILT, built()), (UNNAMED, long)]))
    assert (summary.title, summary.reason) == ("KASAN: bad", ("many words " * 100)[:299] + "…")


def test_a_job_that_has_not_ended_has_no_answer_yet() -> None:
    begun = job_of([(BUILT, built())]).model_copy(update={"state": State.RUNNING})
    summary = conclusion(begun)
    assert (summary.verdict, summary.answer, summary.outcome) == (None, None, Outcome.RUNNING)
    ended = conclusion(begun.model_copy(update={"state": State.ABORTED}))
    assert (ended.outcome, ended.reason) == (Outcome.ABORTED, None)


def test_an_aborted_job_comes_to_no_verdict_whatever_its_steps_had_shown() -> None:
    shown = job_of([(BUILT, built()), (UNNAMED, ran(Verdict.SAME_CRASH, "KASAN: bad"))])
    begun = shown.model_copy(update={"state": State.RUNNING})
    assert conclusion(begun).verdict is Verdict.SAME_CRASH
    ended = conclusion(begun.model_copy(update={"state": State.ABORTED}))
    assert (ended.verdict, ended.title, ended.trial) == (None, None, None)
    assert (ended.answer, ended.outcome) == (Answer.INFRASTRUCTURE, Outcome.ABORTED)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    ("before", "finding", "outcome"),
    [
        (Verdict.SAME_CRASH, NOTE, Outcome.RESOLVED),
        (Verdict.SAME_CRASH, GONE, Outcome.NOT_RESOLVED),
        (Verdict.OTHER_CRASH, GONE, Outcome.NOT_RESOLVED),
        (Verdict.OTHER_CRASH, NOTE, Outcome.NOT_REPRODUCED),
    ],
)
def test_a_fix_whose_bug_another_job_has_shown_is_tried_on_that_bug(
    before: Verdict, finding: Finding, outcome: Outcome, listed: bool
) -> None:
    assert BUG.fix is not None
    results: list[StepResult] = [built(findings=[finding]), ran(evidence=GOOD, baseline=before)]
    job = as_listed(job_of(list(zip(BUG.trial(BUG.fix, 3).steps, results, strict=True))), listed)
    assert conclusion(job).outcome is outcome
    accepted = conclusion(job, ["flags_weaker"]).outcome
    shown = before is Verdict.SAME_CRASH
    assert accepted is (Outcome.RESOLVED if shown else Outcome.NOT_REPRODUCED)


def test_a_trial_in_two_jobs_asks_what_one_in_one_job_asks() -> None:
    assert BUG.fix is not None
    whole, shown, apart = BUG.job(BUG.fix), BUG.shown(), BUG.trial(BUG.fix, 3)
    assert shown.steps[1] == whole.steps[1]
    assert apart.steps[0] == whole.steps[2]
    again = apart.steps[1].model_copy(update={"baseline": StepRef(step=BEFORE)})
    assert again == whole.steps[3]


def test_a_kernel_that_a_bisection_tried_is_no_fix_that_resolves_the_bug() -> None:
    request = BUG.on_source(BUG.build.source).sighting(5, Effort(0.95, 2, 5.0))
    results = {Verdict.SAME_CRASH: Outcome.REPRODUCED, Verdict.NO_CRASH: Outcome.NOT_REPRODUCED}
    for verdict, outcome in results.items():
        result = ran(verdict, evidence=Evidence(), baseline=Verdict.SAME_CRASH)
        summary = conclusion(job_of(list(zip(request.steps, [built(), result], strict=True))))
        assert (summary.verdict, summary.trial, summary.outcome) == (verdict, None, outcome)


# --- the outcome ------------------------------------------------------------------------------

HIDES = GONE.model_copy(
    update={
        "message": "the patch hides code from KASAN",
        "file": "kernel/watch_queue.c",
        "line": 320,
    }
)
SAME, QUIET, OPEN = ran(Verdict.SAME_CRASH, "KASAN: bad"), ran(), ran(Verdict.INCONCLUSIVE)
PROVEN = ran(evidence=GOOD)


def sentence(job: JobView, accepted: Sequence[str] = ()) -> str:
    """Return the sentence that all places show."""
    came_to = conclusion(job, accepted)
    return came_to.outcome.sentence(came_to.reason)


def failed(job: JobView, number: int, **why: Any) -> JobView:
    """Return the job as it is if this step failed, and the later ones did not start."""
    parts = list(job.steps)
    failure = Failure.model_validate({"message": "it broke", **why})
    lost: dict[str, object] = {"state": State.FAILED, "failure": failure, "result": None}
    parts[number] = parts[number].model_copy(update=lost)
    skipped = {"state": State.SKIPPED, "result": None}
    parts[number + 1 :] = [part.model_copy(update=skipped) for part in parts[number + 1 :]]
    return job.model_copy(update={"state": State.FAILED, "steps": parts})


WHOLE = trial(built(), SAME, built(), PROVEN)
REFERENCE = BUILT.model_copy(update={"name": BUILD_REFERENCE})


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (
            trial(built(), SAME, built(findings=[NOTE, HIDES]), PROVEN),
            "Not resolved: the patch hides code from KASAN, kernel/watch_queue.c:320",
        ),
        (
            trial(built(), SAME, built(), ran(evidence=GOOD, findings=[HIDES])),
            "Not resolved: the patch hides code from KASAN, kernel/watch_queue.c:320",
        ),
        (
            trial(built(), SAME, built(findings=[HIDES]), SAME),
            "Not resolved: the patch hides code from KASAN, kernel/watch_queue.c:320",
        ),
        (
            trial(built(), SAME, built(), ran(Verdict.OTHER_CRASH, "BUG: odd", findings=[HIDES])),
            "Not resolved: it was other_crash",
        ),
        (trial(built(), SAME, built(), OPEN), "No answer: it was inconclusive"),
        (
            trial(built(), QUIET, built(), PROVEN),
            "Not reproduced: without the patch: it was no_crash",
        ),
        (
            trial(built(), SAME, built(), QUIET),
            "Not resolved: nothing shows that the kernel would report a crash",
        ),
        (failed(WHOLE, 2, cause="user", reason="does_not_compile"), "Does not compile: it broke"),
        (
            failed(WHOLE, 0, cause="user", reason="does_not_compile"),
            "Refused: step 0 (build) failed: it broke",
        ),
        (failed(WHOLE, 0, cause="user", reason="patch_does_not_apply"), "Does not apply: it broke"),
        (
            failed(job_of([(REFERENCE, built())]), 0, cause="user", reason="patch_does_not_apply"),
            "Refused: step 0 (build) failed: it broke",
        ),
        (
            failed(WHOLE, 3, cause="infrastructure", reason="disk_full"),
            "No answer: step 3 (reproduce) failed: it broke",
        ),
        (job_of([(BUILT, built()), (UNNAMED, SAME)]), "Reproduced: it was same_crash"),
        (
            job_of(list(zip(BUG.calibration(4).steps, [built(), SAME], strict=True))),
            "Calibrated: it was same_crash",
        ),
        (job_of([(BUILT, built())]), "Built: Linux 6.1.0, 1 object compiled"),
    ],
)
def test_the_sentence_names_what_decided(job: JobView, expected: str) -> None:
    assert sentence(job) == expected


def test_nothing_but_its_failure_stands_in_the_way_of_a_job_that_failed() -> None:
    job = failed(WHOLE, 2, cause="user", reason="does_not_compile")
    outcome = TrialResult.of(BUG.name, job)
    assert (outcome.outcome, outcome.obstacles) == (Outcome.DOES_NOT_COMPILE, [])


def test_an_accepted_finding_is_named_where_the_bug_is_resolved() -> None:
    job = trial(built(), SAME, built(findings=[NOTE, HIDES]), PROVEN)
    begin = "Resolved: note: the patch hides code from KASAN, kernel/watch_queue.c:320 (and 1 more)"
    assert sentence(job, ["flags_weaker"]).startswith(f"{begin}; 1 of 1 controls reported; ")


def test_a_traced_bug_is_traced_and_a_traced_trial_is_a_trial() -> None:
    for fix, outcome in ((None, Outcome.TRACED), (BUG.fix, Outcome.RESOLVED)):
        request = tracing_job.traced(
            BUG.job(fix), tracing_job.tracing(BUG, ["kernel/a.c"], "hypervisor")
        )
        results = [built(), SAME, *([built(), PROVEN] if fix else [])]
        job = job_of(list(zip(request.steps[:-1], results, strict=True)))
        last = job.steps[0].model_copy(
            update={"number": len(results), "name": "minimize", "kind": StepKind.MINIMIZE}
        )
        traced = job.model_copy(update={"steps": [*job.steps, last]})
        assert conclusion(traced).outcome is outcome


def check(name: str, outcome: PatchOutcome, **more: Any) -> PatchCheck:
    return PatchCheck(name=name, outcome=outcome, seconds=1, **more)


BROKEN = check(
    "c",
    PatchOutcome.DOES_NOT_COMPILE,
    diagnostics=[Diagnostic(file="a.c", line=3, severity="error", message="expected ;")],
)
IDLE = check(
    "d",
    PatchOutcome.NOT_BUILT,
    files=[
        FileCheck(path="a.c", outcome=FileOutcome.COMPILES, objects=1, dependents=1),
        FileCheck(path="b.c", outcome=FileOutcome.NOT_BUILT, objects=0, dependents=0),
    ],
)
GOOD_PATCH = check("a", PatchOutcome.COMPILES)


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ([GOOD_PATCH], "Compiles: 1 of 1 patches compile"),
        ([BROKEN], "Does not compile: a.c:3: expected ;"),
        ([IDLE], "Not compiled: the config compiles nothing of b.c"),
        (
            [GOOD_PATCH, BROKEN, IDLE],
            "Does not compile: 1 of 3 patches compile; c: a.c:3: expected ;",
        ),
        (
            [check("e", PatchOutcome.REFUSED, reason="it is empty"), BROKEN],
            "Refused: 0 of 2 patches compile; e: it is empty",
        ),
        (
            [BROKEN, check("f", PatchOutcome.OVER_LIMIT, reason="it took too long")],
            "No answer: 0 of 2 patches compile; f: it took too long",
        ),
        # A worker that answers nothing has compiled nothing.
        ([], "No answer: the check has an answer for 0 of 1"),
    ],
)
def test_a_check_counts_its_patches_and_names_the_worst(
    checks: list[PatchCheck], expected: str
) -> None:
    assert BUG.fix is not None
    (spec,) = BUG.check([BUG.fix]).steps
    assert sentence(job_of([(spec, checked(checks))])) == expected


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_an_answer_once_its_job_has_ended(outcome: Outcome) -> None:
    assert (outcome in ANSWERS) == (outcome not in UNDER_WAY.values())
    assert outcome.words == outcome.words.lower()


def test_an_unfinished_job_says_at_which_step_it_is() -> None:
    parts = [
        step.model_copy(update={"state": state, "waiting": waiting})
        for step, state, waiting in zip(
            job_of([(BUILT, built()), (UNNAMED, SAME)]).steps,
            (State.SUCCEEDED, State.QUEUED),
            (None, "no worker has 64 cores"),
            strict=True,
        )
    ]
    waits = WHOLE.model_copy(update={"state": State.QUEUED, "steps": parts})
    assert sentence(waits) == "Waiting: step 1 (reproduce): no worker has 64 cores"
    parts[1] = parts[1].model_copy(update={"state": State.RUNNING, "waiting": None})
    runs = WHOLE.model_copy(update={"state": State.RUNNING, "steps": parts})
    assert sentence(runs) == "Running: step 1 (reproduce)"
    assert sentence(runs.model_copy(update={"state": State.ABORTED})) == "Aborted"
