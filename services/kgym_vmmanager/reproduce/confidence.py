"""How sure a `no_crash` is by what is known of the bug, and what being as sure as asked takes."""

from collections.abc import Sequence

from kgym.api.steps import (
    Calibration,
    InstanceResult,
    ReproduceResult,
    ReproduceSpec,
    Verdict,
)
from kgym.bugs import calibration
from kgym.bugs.verdict import Judgement
from kgym.worker.context import StepContext


def known_here(run: StepContext, spec: ReproduceSpec, accelerator: str) -> Calibration | None:
    """Return the bug's calibration on this accelerator: the earlier one or the baseline's.

    Times on other accelerators say nothing about this one.
    """
    calibrations = [spec.calibration]
    if baseline := run.optional_input("baseline", ReproduceResult):
        calibrations.append(calibration.measured(baseline, spec.titles))
    here = []
    for known in filter(None, calibrations):
        if known.accelerator == accelerator:
            here.append(known)
        else:
            run.log(f"the bug was calibrated under {known.accelerator}: not used here")
    # The one with more runs, never the one with the more convenient answer.
    return max(here, key=lambda known: known.runs, default=None)


def chosen(run: StepContext, spec: ReproduceSpec, accelerator: str) -> ReproduceSpec:
    """Return the spec with as many instances, for as long, as its confidence needs."""
    if spec.confidence is None:
        return spec
    known = known_here(run, spec, accelerator)
    wanted = calibration.planned(known, spec.confidence, spec.instances, spec.time)
    if wanted is None:
        run.log(f"too little is known of the bug: {spec.instances} x {spec.time:g} s, as asked")
        return spec
    run.log(f"{wanted.instances} x {wanted.time:g} s for {wanted.confidence:.0%}")
    return spec.model_copy(update={"instances": wanted.instances, "time": wanted.time})


def confidence(
    judgement: Judgement, results: Sequence[InstanceResult], known: Calibration | None
) -> float | None:
    """Return how sure the verdict is; None where nothing tells, or it is no `no_crash`."""
    if known is None or judgement.verdict is not Verdict.NO_CRASH:
        return None
    if min(result.run_seconds or 0 for result in results) < known.time:
        return 0.0
    return round(1 - calibration.unseen(known, judgement.completed), 4)


def how_sure(sure: float | None, known: Calibration | None) -> list[str]:
    """Return the words that tell how sure a `no_crash` is, and by what; none if it is unknown."""
    if sure is None or known is None:
        return []
    shown = f"{known.crashed} of {known.runs} runs without the fix showed the bug"
    if sure == 0:
        return [f"it proves nothing: {shown}, which took up to {known.time:g} s"]
    return [f"were the bug still there, the chance of that is at most {1 - sure:.2%}: {shown}"]
