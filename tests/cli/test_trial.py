"""What came of a calibration, from the job to the answer."""

from datetime import UTC, datetime
from pathlib import Path

from kgym.api.jobs import JobView, StepView
from kgym.api.states import State
from kgym.api.steps import (
    Failure,
    InstanceOutcome,
    InstanceResult,
    ReproduceResult,
    StepKind,
    Verdict,
)
from kgym.bugs import bundle
from kgym.errors import Cause
from kgym_cli import trial
from kgym_cli.embedded_platform import Platform
from kgym_cli.output import Exit
from tests.cli.conftest import Kgym
from tests.cli.worked import working
from tests.results import built, ran

BUG = bundle.load("watch-queue-filter")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def instance(
    outcome: InstanceOutcome, seconds: float | None = None, title: str = ""
) -> InstanceResult:
    return InstanceResult(number=0, outcome=outcome, run_seconds=seconds, title=title or None)


def crash(seconds: float) -> InstanceResult:
    return instance(InstanceOutcome.CRASH, seconds, BUG.file.title)


def measured(*instances: InstanceResult) -> ReproduceResult:
    return ran(
        Verdict.SAME_CRASH,
        completed=0,
        requested=len(instances),
        time=20,
        instances=list(instances),
    )


def job(*instances: InstanceResult, cause: Cause | None = None) -> JobView:
    result = measured(*instances)
    failure = Failure(cause=cause, reason="broke", message="it broke") if cause else None
    steps = [
        StepView(
            number=number,
            name=name,
            kind=kind,
            state=State.FAILED if failure else State.SUCCEEDED,
            attempt=1,
            worker=None,
            progress=None,
            result=result if kind is StepKind.REPRODUCE and not failure else None,
            failure=failure,
            artifacts=[],
            queued_at=NOW,
            started_at=NOW,
            finished_at=NOW,
        )
        for number, (name, kind) in enumerate(
            ((bundle.BUILD_BEFORE, StepKind.BUILD), (bundle.BEFORE, StepKind.REPRODUCE))
        )
    ]
    return JobView(
        id=7,
        state=steps[0].state,
        tags=[],
        priority=0,
        submitter="local",
        created_at=NOW,
        updated_at=NOW,
        steps=steps,
    )


def test_a_calibration_tells_rate_times_and_what_a_fix_has_to_survive() -> None:
    done = job(crash(1), crash(4), crash(2), crash(3), crash(5))
    outcome = trial.calibrated(BUG, done)
    assert (outcome["runs"], outcome["crashed"], outcome["rate"]) == (5, 5, 1)
    assert 0.54 < outcome["rate_at_least"] < 0.55
    assert outcome["seconds_to_crash"] == {"min": 1, "median": 3, "p90": 5, "max": 5}
    assert outcome["recommended"] == [
        {"confidence": 0.95, "instances": 2, "time": 7.5},
        {"confidence": 0.99, "instances": 4, "time": 7.5},
    ]
    assert trial.calibration_status(done, outcome) is Exit.OK


def test_a_bug_that_did_not_show_is_told_so() -> None:
    done = job(*[instance(InstanceOutcome.SURVIVED, 20)] * 3)
    outcome = trial.calibrated(BUG, done)
    assert (outcome["runs"], outcome["crashed"], outcome["recommended"]) == (3, 0, [])
    assert trial.calibration_status(done, outcome) is Exit.NEGATIVE


def test_runs_that_did_not_count_are_named() -> None:
    done = job(instance(InstanceOutcome.BOOT_FAILED), instance(InstanceOutcome.SSH_LOST, 4))
    outcome = trial.calibrated(BUG, done)
    assert outcome["outcomes"] == {"boot_failed": 1, "ssh_lost": 1}
    assert (outcome["runs"], outcome["rate"]) == (0, None)
    assert trial.calibration_status(done, outcome) is Exit.INFRASTRUCTURE


def test_a_job_that_failed_says_why() -> None:
    done = job(cause="user")
    outcome = trial.calibrated(BUG, done)
    assert "it broke" in outcome["reason"]
    assert trial.calibration_status(done, outcome) is Exit.USER


def test_a_short_calibration_does_not_take_the_place_of_a_better_one(
    kgym: Kgym, data: Path
) -> None:
    survived = instance(InstanceOutcome.SURVIVED, 20)
    answers = iter(
        [
            measured(*[crash(2)] * 10, survived),
            measured(crash(1)),
            ran(Verdict.SAME_CRASH, BUG.file.title),
            ran(Verdict.NO_CRASH),
        ]
    )
    given = {StepKind.BUILD: lambda _: built(), StepKind.REPRODUCE: lambda _: next(answers)}
    with Platform(data, work=False) as idle, working(idle, data, given):
        for runs in (11, 1):
            shown = kgym("--server", idle.url, "bug", "calibrate", BUG.name, "--runs", runs)
        done = kgym("--server", idle.url, "bug", "reproduce", BUG.name)
    assert "1 of 1 runs showed the bug" in shown.out
    assert "with what was measured before: 11 of 12 runs showed the bug" in shown.out
    assert "for 99% confidence in a fix: 3 instances x 20 s" in shown.out
    assert "calibrated: 11 of 12 runs showed the bug; 2 x 20 s" in done.err
