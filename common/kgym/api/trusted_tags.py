"""Trusted tags ("marks"): hashes of what a job does, computed from its own steps.

`request=HASH` finds a job of the same steps again, `calibration=HASH` a job that measured a bug,
`reference=HASH` one that also ran the bug's variants on the kernel with this fix.
They are verified where a job or its tags are read (`JobRequest`, `JobStore.tag`), so that no false
mark is ever stored.
"""

from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from itertools import takewhile

from pydantic import BaseModel

from kgym.api.steps import (
    BuildSpec,
    Reproducer,
    ReproduceSpec,
    StepRef,
    StepSpec,
    SyzkallerSpec,
    VmShape,
)

# Fields of a kernel that change the speed of its build, but not the result.
_PACE = ("jobs", "make_seconds")
REQUEST = "request="
CALIBRATION = "calibration="
REFERENCE = "reference="


def marks(tags: Iterable[str]) -> list[str]:
    """Return those of the tags that are marks."""
    return [tag for tag in tags if tag.startswith((REQUEST, CALIBRATION, REFERENCE))]


def false(tags: Iterable[str], steps: Sequence[StepSpec]) -> list[str]:
    """Return the marks that do not match a job of these steps."""
    claimed = marks(tags)
    true = {request(steps), _calibration(steps), _reference(steps)} if claimed else set()
    return [mark for mark in claimed if mark not in true]


def request(steps: Sequence[StepSpec]) -> str:
    """Return the mark of jobs with these steps: `request=` and a hash."""
    return REQUEST + _hash(map(_text, steps))


def calibration(
    build: BuildSpec,
    programs: Collection[Reproducer],
    vm: VmShape,
    syzkallers: Sequence[SyzkallerSpec] = (),
) -> str:
    """Return the mark of jobs that measure how often these programs crash this kernel.

    `syzkallers` build the binaries for `syz` programs: other binaries may behave differently.
    """
    return CALIBRATION + _hash(map(_text, (_kernel(build), *programs, vm, *syzkallers)))


def reference(mark: str, fixed: BuildSpec) -> str:
    """Return the mark of jobs with a calibration's `mark` that ran variants on `fixed` as well."""
    return REFERENCE + _hash([mark, _text(_kernel(fixed))])


def _kernel(build: BuildSpec) -> BuildSpec:
    # A name, checks made ahead and analyses do not change the kernel.
    own: dict[str, object] = {"name": None, "ahead": None, "analyses": []}
    return build.model_copy(update={**own, **dict.fromkeys(_PACE)})


def _calibration(steps: Sequence[StepSpec]) -> str | None:
    """Return the mark of a job that builds a kernel and measures the bug on it.

    Only `syzkaller` steps may precede the build, and all of them must be used, by name.
    """
    before = list(takewhile(lambda step: isinstance(step, SyzkallerSpec), steps))
    match steps[len(before) :]:
        case [BuildSpec() as build, ReproduceSpec() as runs, *_]:
            measures = not runs.stop_at_first_crash or runs.measure is not None or runs.variants
            own = runs.build.job is None and all(ref.job is None for ref in runs.syzkaller)
            used = {ref.step for ref in runs.syzkaller} == {step.name for step in before}
            # Results that rest on another job's learned variants do not count.
            if measures and own and used and runs.learned is None:
                syzkallers = [step for step in before if isinstance(step, SyzkallerSpec)]
                return calibration(build, (runs.reproducer, *runs.others), runs.vm, syzkallers)
    return None


def _reference(steps: Sequence[StepSpec]) -> str | None:
    """Return the mark of a job that learns a bug's variants, and runs them with a fix."""
    mark, rest = _calibration(steps), [s for s in steps if not isinstance(s, SyzkallerSpec)]
    match rest[:4]:
        case [BuildSpec(), ReproduceSpec() as shows, BuildSpec() as fixed, ReproduceSpec() as runs]:
            learns = shows.variants and shows.name and runs.learned == StepRef(step=shows.name)
            own = fixed.name and runs.build == StepRef(step=fixed.name) and runs.baseline is None
            programs = (shows.reproducer, shows.others, shows.syzkaller, shows.vm)
            alike = programs == (runs.reproducer, runs.others, runs.syzkaller, runs.vm)
            if mark is not None and learns and own and alike and runs.variants:
                return reference(mark, fixed)
    return None


def _text(spec: BaseModel) -> str:
    # Unset, these are left out: marks from before these fields existed still match.
    unset = {name for name in (*_PACE, "analyses") if not getattr(spec, name, None)}
    return spec.model_dump_json(exclude=unset)


def _hash(parts: Iterable[str]) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()[:32]
