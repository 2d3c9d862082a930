"""What came of a calibration, from the job to the answer."""

from kgym.api import steps
from kgym.api.jobs import JobView
from kgym.api.states import State
from kgym.bugs import bundle
from kgym.bugs.bug import BEFORE, BUILD_BEFORE
from kgym.bugs.calibration import Effort
from kgym.bugs.conclusion import Answer
from kgym.bugs.trial_result import CalibrationResult
from kgym.errors import Cause
from tests.results import job_view, ran

BUG = bundle.load("watch-queue-filter")


def instance(
    outcome: steps.InstanceOutcome, seconds: float | None = None, title: str = ""
) -> steps.InstanceResult:
    return steps.InstanceResult(number=0, outcome=outcome, run_seconds=seconds, title=title or None)


def crash(seconds: float) -> steps.InstanceResult:
    return instance(steps.InstanceOutcome.CRASH, seconds, BUG.file.title)


def measured(*instances: steps.InstanceResult) -> steps.ReproduceResult:
    wanted = len(instances)
    return ran(
        steps.Verdict.SAME_CRASH, completed=0, requested=wanted, time=20, instances=list(instances)
    )


def job(*instances: steps.InstanceResult, cause: Cause | None = None) -> JobView:
    result = measured(*instances)
    failure = steps.Failure(cause=cause, reason="broke", message="it broke") if cause else None
    ended = {"failure": failure, "state": State.FAILED if failure else State.SUCCEEDED}
    build = {"name": BUILD_BEFORE, "kind": steps.StepKind.BUILD, **ended}
    run = {"name": BEFORE, "kind": steps.StepKind.REPRODUCE, **ended}
    return job_view([build, run | {"result": None if failure else result}])


def test_a_calibration_tells_rate_times_and_what_a_fix_has_to_survive() -> None:
    done = job(crash(1), crash(4), crash(2), crash(3), crash(5))
    outcome = CalibrationResult.of(BUG, done)
    assert (outcome.runs, outcome.crashed, outcome.rate) == (5, 5, 1)
    assert 0.54 < outcome.rate_at_least < 0.55
    assert outcome.seconds_to_crash == {"min": 1, "median": 3, "p90": 5, "max": 5}
    assert outcome.recommended == [
        Effort(confidence=0.95, instances=2, time=7.5),
        Effort(confidence=0.99, instances=4, time=7.5),
    ]
    assert outcome.answer(done) is Answer.YES


def test_a_bug_that_did_not_show_is_told_so() -> None:
    done = job(*[instance(steps.InstanceOutcome.SURVIVED, 20)] * 3)
    outcome = CalibrationResult.of(BUG, done)
    assert (outcome.runs, outcome.crashed, outcome.recommended) == (3, 0, [])
    assert outcome.answer(done) is Answer.NO


def test_runs_that_did_not_count_are_named() -> None:
    done = job(
        instance(steps.InstanceOutcome.BOOT_FAILED), instance(steps.InstanceOutcome.SSH_LOST, 4)
    )
    outcome = CalibrationResult.of(BUG, done)
    assert outcome.outcomes == {"boot_failed": 1, "ssh_lost": 1}
    assert (outcome.runs, outcome.rate) == (0, None)
    assert outcome.answer(done) is Answer.INFRASTRUCTURE


def test_a_job_that_failed_says_why() -> None:
    done = job(cause="user")
    outcome = CalibrationResult.of(BUG, done)
    assert outcome.reason is not None
    assert "it broke" in outcome.reason
    assert outcome.answer(done) is Answer.USER
