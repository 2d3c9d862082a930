"""Tags that say what a job is, and can be believed: each is computed from the job's own steps.

`request=HASH` finds a job of the same steps again, `calibration=HASH` one that measured a
bug. Nobody can give a job a mark that is not true of it (`JobRequest`, and `JobStore.tag`).
"""

from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from itertools import takewhile

from pydantic import BaseModel

from kgym.api.steps import (
    BuildSpec,
    Reproducer,
    ReproduceSpec,
    StepSpec,
    SyzkallerSpec,
    VmShape,
)

# Of a kernel: another kernel does not come of it.
_PACE = ("jobs", "make_seconds")
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
    return REQUEST + _hash(map(_text, steps))


def calibration(
    build: BuildSpec,
    programs: Collection[Reproducer],
    vm: VmShape,
    syzkallers: Sequence[SyzkallerSpec] = (),
) -> str:
    """Return the mark of jobs that measure how often these programs crash this kernel.

    `syzkallers` are what runs those of the kind `syz`: other binaries might do other things.
    """
    kernel = build.model_copy(update={"name": None, "ahead": None, **dict.fromkeys(_PACE)})
    return CALIBRATION + _hash(map(_text, (kernel, *programs, vm, *syzkallers)))


def _calibration(steps: Sequence[StepSpec]) -> str | None:
    """Return the mark of a job that builds, and runs that so as to measure the bug.

    Before the build, there are only the steps for syzkaller's programs, all used by their names.
    """
    before = list(takewhile(lambda one: isinstance(one, SyzkallerSpec), steps))
    match steps[len(before) :]:
        case [BuildSpec() as build, ReproduceSpec() as runs, *_]:
            measures = not runs.stop_at_first_crash or runs.measure is not None
            own = runs.build.job is None and all(one.job is None for one in runs.syzkaller)
            used = {one.step for one in runs.syzkaller} == {one.name for one in before}
            if measures and own and used:
                syzkallers = [one for one in before if isinstance(one, SyzkallerSpec)]
                return calibration(build, (runs.reproducer, *runs.others), runs.vm, syzkallers)
    return None


def _text(one: BaseModel) -> str:
    """Return it as JSON, without what says how fast to build, unless that is asked for.

    So marks from before there was such a thing stay true.
    """
    return one.model_dump_json(exclude={name for name in _PACE if getattr(one, name, None) is None})


def _hash(parts: Iterable[str]) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()[:32]
