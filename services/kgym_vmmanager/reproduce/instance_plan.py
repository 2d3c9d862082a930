"""The plan that all instances of a step share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kgym.api.steps import VmShape, Work
from kgym.bugs.detectors import Detectors
from kgym.bugs.run_ends import CONVENTION, CompletedRuns
from kgym_vmmanager.dump.guest_memory import Method
from kgym_vmmanager.guest.guest_image import GuestImage
from kgym_vmmanager.root.root_disk import RootDisk

# A guest that hangs at boot holds its cores until the limit, and other steps wait. A boot may still
# be much slower than the measured ones: those may have had the host for themselves.
_TIMES_SLOWEST = 10.0
_LEAST_SECONDS = 30.0
# Boots of other kernels are weaker evidence: a kernel with KASAN takes several times as long.
_LEAST_SECONDS_ELSEWHERE = 60.0
_TRIES = 2


class Boots:
    """Measured boots of one kernel's guests, and the time limit that follows for the next.

    `known` are the seconds of earlier boots: of this kernel, or of its unpatched twin.
    `slowest_elsewhere` is the slowest boot of any kernel on this host, if one was measured.
    """

    def __init__(self, known: Iterable[float] = ()) -> None:
        self.slowest_elsewhere: float | None = None
        self._seconds = list(known)
        self._hung = 0

    def limit(self, most: float) -> float:
        """Return the limit of a boot in seconds; `most` if no boot has been measured."""
        if self._seconds:
            return min(most, max(_LEAST_SECONDS, _TIMES_SLOWEST * max(self._seconds)))
        if self.slowest_elsewhere is not None:
            elsewhere = _TIMES_SLOWEST * self.slowest_elsewhere
            return min(most, max(_LEAST_SECONDS_ELSEWHERE, elsewhere))
        return most

    def booted(self, seconds: float) -> None:
        """Record the seconds of a boot."""
        self._seconds.append(seconds)
        self._hung = 0

    def hung(self) -> None:
        """Record a boot that exceeded its limit."""
        self._hung += 1

    def begin_anew(self) -> None:
        """Forget all boots: the next guests use another accelerator."""
        self._hung, self._seconds, self.slowest_elsewhere = 0, [], None

    @property
    def hopeless(self) -> bool:
        """Whether two boots in a row hung: then no further guest is started."""
        return self._hung >= _TRIES


@dataclass(slots=True)
class RunTime:
    """Seconds for which each instance runs the program; shorter once the bug is measured."""

    seconds: float

    def cut(self, seconds: float) -> None:
        """Shorten the time of all instances, running ones included."""
        self.seconds = min(self.seconds, seconds)


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """What the instances boot and run.

    Each of `initrds` is the guest image with another program at PROGRAM; instances take them in
    turn. `smoke` is that of the smoke test, if one is to run. `texts` are the programs as
    syzkaller's text, None for C, in the order of `initrds`. `words` are added to the kernel's
    command line. `method` takes dumps; with `leaks`, those of the boot are cleared first.
    `completed` decides which runs did their work. If `profiled`, the first instance that survives
    traces the program, which must still do some of the work that it did `before`; `way` holds the
    crash's functions with their addresses. `detectors` are what the kernel must report when faults
    are raised on purpose. `mutator` makes variants of the first program, if that is syzkaller's.
    """

    folder: Path
    image: GuestImage
    kernel: Path
    initrds: tuple[Path, ...]
    smoke: Path | None
    shape: VmShape
    time: RunTime
    boots: Boots = field(default_factory=Boots)
    method: Method | None = None
    words: str = ""
    leaks: bool = False
    texts: tuple[str | None, ...] = ()
    detectors: Detectors | None = None
    completed: CompletedRuns = CONVENTION
    profiled: bool = False
    before: Work | None = None
    way: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    disk: RootDisk | None = None
    mutator: Path | None = None
