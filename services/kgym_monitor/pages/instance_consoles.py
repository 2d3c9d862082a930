"""Instances of a reproduce step, and the choice of consoles shown side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from kgym.api.jobs import JobView, StepView
from kgym.api.steps import InstanceArtifact, InstanceOutcome, InstanceResult, ReproduceResult
from kgym.client.download import check_kept
from kgym.errors import NotFound, UserError

# Most consoles side by side: each is loaded completely.
MOST = 6


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance, and the names of its output artifacts, if they exist."""

    about: InstanceResult
    console: str | None
    program: str | None


def instances(step: StepView) -> list[Instance]:
    """Return the instances of a finished reproduce step; none for other steps."""
    if not isinstance(step.result, ReproduceResult):
        return []
    left = {artifact.name for artifact in step.artifacts}
    shown = []
    for instance in step.result.instances:
        console = InstanceArtifact.CONSOLE.of(instance.number)
        program = InstanceArtifact.PROGRAM.of(instance.number)
        shown.append(
            Instance(
                instance, console if console in left else None, program if program in left else None
            )
        )
    return shown


def chosen(job: JobView, step: StepView, numbers: Sequence[int]) -> list[Instance]:
    """Return the instances with these numbers; by default, one that crashed and one that did not.

    Raises:
        NotFound: No such console (`artifact_not_found`).
        Gone: Removed by retention (`artifact_gone`).
        UserError: Too many (`bad_comparison`).
    """
    shown = {
        instance.about.number: instance
        for instance in instances(step)
        if instance.console is not None
    }
    wanted = sorted(set(numbers)) or _telling(list(shown.values()))
    if len(wanted) > MOST:
        message = f"at most {MOST} consoles fit side by side, not {len(wanted)}"
        raise UserError("bad_comparison", message)
    if missing := [number for number in wanted if number not in shown] or not wanted:
        of = f"of instance {missing[0]}" if isinstance(missing, list) else ""
        message = f"step {step.number} of job {job.id} has no console {of}".rstrip()
        raise NotFound("artifact_not_found", message)
    for artifact in step.artifacts:
        check_kept(step, artifact)
    return [shown[number] for number in wanted]


def _telling(shown: Sequence[Instance]) -> list[int]:
    """Return the first crashed and the first other instance, or else the first two."""
    crashed = [instance for instance in shown if instance.about.outcome is InstanceOutcome.CRASH]
    others = [instance for instance in shown if instance.about.outcome is not InstanceOutcome.CRASH]
    two = [*crashed[:1], *others[:1]] if crashed and others else shown[:2]
    return sorted(instance.about.number for instance in two)
