"""Results of steps, as tests give them: whatever is not named is empty."""

from datetime import UTC, datetime
from typing import Any

from kgym.api.jobs import JobView, StepView
from kgym.api.outcomes import UNDER_WAY, Outcome
from kgym.api.states import State
from kgym.api.steps import (
    BuildResult,
    CheckResult,
    Control,
    ControlName,
    ControlOutcome,
    Evidence,
    InstanceOutcome,
    InstanceResult,
    PatchCheck,
    ReproduceResult,
    Verdict,
)
from kgym.bugs.conclusion import conclusion

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_TREE = {
    "source_identity": "",
    "kernel_release": "6.1.0",
    "compiler_version": "",
    "tree": "",
    "tree_cached": True,
}


def built(**fields: Any) -> BuildResult:
    """Return what a build comes to."""
    empty: dict[str, Any] = {
        **_TREE,
        "backports": [],
        "dropped_symbols": [],
        "objects_compiled": 1,
        "warnings": [],
        "seconds": {},
    }
    return BuildResult.model_validate({**empty, **fields})


def ran(
    verdict: Verdict = Verdict.NO_CRASH, title: str | None = None, **fields: Any
) -> ReproduceResult:
    """Return what two runs come to."""
    empty: dict[str, Any] = {
        "verdict": verdict,
        "reason": f"it was {verdict}",
        "title": title,
        "crashed": int(title is not None),
        "completed": 2,
        "requested": 2,
        "unseen_chance": None,
        "accelerator": "tcg",
        "instances": [],
        "seconds": {},
    }
    return ReproduceResult.model_validate({**empty, **fields})


def checked(patches: list[PatchCheck], **fields: Any) -> CheckResult:
    """Return the result of a check of these patches."""
    return CheckResult.model_validate({**_TREE, "patches": patches, "seconds": {}, **fields})


def panicked(outcome: ControlOutcome) -> Evidence:
    """Return the evidence of a run whose panic control ended in this way."""
    return Evidence(controls=[Control(name=ControlName.PANIC, outcome=outcome)])


GOOD, SILENT = panicked(ControlOutcome.REPORTED), panicked(ControlOutcome.SILENT)


def crash(title: str | None, number: int = 0, run_seconds: float | None = 2) -> InstanceResult:
    """Return the result of an instance that crashed."""
    outcome = InstanceOutcome.CRASH
    return InstanceResult(number=number, outcome=outcome, title=title, run_seconds=run_seconds)


def job_view(steps: list[dict[str, Any]]) -> JobView:
    """Return a job that ended in the state of its first step. Each step has a name and a kind."""
    views = [
        StepView.model_validate(
            {
                "number": number,
                "state": State.SUCCEEDED,
                "attempt": 1,
                **dict.fromkeys(("worker", "progress", "result", "failure")),
                "artifacts": [],
                **dict.fromkeys(("queued_at", "started_at", "finished_at"), NOW),
                **step,
            }
        )
        for number, step in enumerate(steps)
    ]
    state = views[0].state
    job = JobView(
        id=7,
        state=state,
        outcome=UNDER_WAY.get(state, Outcome.INCONCLUSIVE),
        tags=[],
        priority=0,
        submitter="local",
        created_at=NOW,
        updated_at=NOW,
        steps=views,
    )
    concluded = conclusion(job)
    return job.model_copy(update={"outcome": concluded.outcome, "reason": concluded.reason})
