"""Tags that say what a job is, and can be believed: each is computed from the job's own steps.

`request=HASH` finds a job of the same steps again, `calibration=HASH` one that measured a
bug. Nobody can give a job a mark that is not true of it (`JobRequest`, and `JobStore.tag`).
"""

from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256

from kgym.api.steps import BuildSpec, Reproducer, ReproduceSpec, StepSpec, VmShape

REQUEST = "request="
CALIBRATION = "calibration="


def marks(tags: Iterable[str]) -> list[str]:
    """Return those of the tags that are marks: computed from steps, and believed by others."""
    return [tag for tag in tags if tag.startswith((REQUEST, CALIBRATION))]


def false(tags: Iterable[str], steps: Sequence[StepSpec]) -> list[str]:
    """Return the marks that are not true of a job of these steps."""
    claimed = marks(tags)
    true = {request(steps), _calibration(steps)} if claimed else set()
    return [mark for mark in claimed if mark not in true]


def request(steps: Sequence[StepSpec]) -> str:
    """Return the mark by which a job of the same steps is found again: `request=` and a hash."""
    return REQUEST + _hash(step.model_dump_json() for step in steps)


def calibration(build: BuildSpec, programs: Collection[Reproducer], vm: VmShape) -> str:
    """Return the mark of jobs that measure how often these programs crash this kernel."""
    parts = (build.model_copy(update={"name": None, "ahead": None}), *programs, vm)
    return CALIBRATION + _hash(one.model_dump_json() for one in parts)


def _calibration(steps: Sequence[StepSpec]) -> str | None:
    """Return the mark of a job that begins with a build, and runs it so as to measure the bug."""
    match steps:
        case [BuildSpec() as build, ReproduceSpec() as runs, *_]:
            measures = not runs.stop_at_first_crash or runs.measure is not None
            if measures and runs.build.job is None:  # and so the one step before it
                return calibration(build, (runs.reproducer, *runs.others), runs.vm)
    return None


def _hash(parts: Iterable[str]) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()[:32]
