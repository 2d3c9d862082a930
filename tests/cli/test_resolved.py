"""What `bug reproduce` prints of a trial: the evidence, what stands in the way, the status."""

from datetime import UTC, datetime

import pytest

from kgym import bug
from kgym.jobs import JobView, StepView
from kgym.states import State
from kgym.steps import (
    Ahead,
    BuildResult,
    Control,
    ControlName,
    ControlOutcome,
    Evidence,
    Finding,
    ReproduceResult,
    Severity,
    StepResult,
    Verdict,
)
from kgym_cli import trial
from kgym_cli.conclusion import conclusion
from kgym_cli.output import Exit

BUG = bug.load("watch-queue-filter")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
GONE = Finding(
    check="detector", severity=Severity.BLOCKING, reason="flags_weaker", message="no KASAN"
)
NOTE = Finding(check="scope", reason="outside_files", message="elsewhere")


def built(*findings: Finding) -> BuildResult:
    return BuildResult(
        source_identity="",
        kernel_release="",
        compiler_version="",
        tree="",
        tree_cached=True,
        backports=[],
        dropped_symbols=[],
        objects_compiled=1,
        warnings=[],
        findings=list(findings),
        seconds={},
    )


def ran(verdict: Verdict, evidence: Evidence | None = None) -> ReproduceResult:
    return ReproduceResult(
        verdict=verdict,
        reason="",
        title=None,
        crashed=0,
        completed=2,
        requested=2,
        unseen_chance=None,
        accelerator="tcg",
        instances=[],
        evidence=evidence,
        seconds={},
    )


def tried(*findings: Finding, controls: ControlOutcome = ControlOutcome.REPORTED) -> JobView:
    """Return the job of a trial whose verdicts are right."""
    request = BUG.job(BUG.fix)
    evidence = Evidence(controls=[Control(name=ControlName.PANIC, outcome=controls)])
    results: list[StepResult] = [
        built(),
        ran(Verdict.SAME_CRASH, Evidence()),
        built(*findings),
        ran(Verdict.NO_CRASH, evidence),
    ]
    steps = [
        StepView(
            number=number,
            name=spec.name,
            kind=spec.kind,
            state=State.SUCCEEDED,
            attempt=1,
            worker=None,
            progress=None,
            result=result,
            failure=None,
            artifacts=[],
            queued_at=NOW,
            started_at=NOW,
            finished_at=NOW,
            spec=spec,
        )
        for number, (spec, result) in enumerate(zip(request.steps, results, strict=True))
    ]
    return JobView(
        id=7,
        state=State.SUCCEEDED,
        tags=[],
        priority=0,
        submitter="local",
        created_at=NOW,
        updated_at=NOW,
        steps=steps,
    )


def test_a_trial_with_evidence_and_only_notes_is_resolved() -> None:
    job = tried(NOTE)
    outcome = trial.summary(BUG, job)
    assert (outcome["resolved"], outcome["obstacles"]) == (True, [])
    assert outcome["after"]["told"] == "1 of 1 controls reported; no blocking finding"
    assert outcome["after"]["evidence"]["controls"][0]["outcome"] == "reported"
    assert outcome["before"]["told"] is None
    assert conclusion(job).status is Exit.OK


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (tried(GONE), "flags_weaker"),
        (tried(controls=ControlOutcome.SILENT), "control_silent"),
    ],
)
def test_what_stands_in_the_way_is_told_and_can_be_accepted(job: JobView, reason: str) -> None:
    outcome = trial.summary(BUG, job)
    assert outcome["resolved"] is False
    assert [one["reason"] for one in outcome["obstacles"]] == [reason]
    assert conclusion(job).status is Exit.NEGATIVE
    for accepted in ([reason], ["all"]):
        outcome = trial.summary(BUG, job, accepted)
        assert (outcome["resolved"], outcome["obstacles"]) == (True, [])
        assert all(one["accepted"] for one in outcome["after"]["findings"])
        assert conclusion(job, accepted).status is Exit.OK


def test_every_trial_of_a_fix_asks_for_static_evidence() -> None:
    assert BUG.fix is not None
    before, _, after, _ = BUG.job(BUG.fix).steps
    ahead = Ahead(patches=[BUG.fix], programs=[*BUG.reproducers])
    assert before == BUG.build.model_copy(update={"name": bug.BUILD_BEFORE, "ahead": ahead})
    assert after == BUG.build.model_copy(
        update={
            "name": bug.BUILD_AFTER,
            "patches": [*BUG.build.patches, BUG.fix],
            "review": [BUG.fix.name],
            "files": BUG.file.files,
        }
    )
