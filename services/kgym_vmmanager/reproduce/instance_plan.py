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
    """For how many seconds each instance runs the program: less, once the bug is measured."""

    seconds: float

    def cut(self, seconds: float) -> None:
        """Let no instance run for longer from now on, whatever it was to."""
        self.seconds = min(self.seconds, seconds)


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """Boot `kernel` with the guest image and run a program for its `time`, files in `folder`.

    `initrds` hold the image, each with another of the programs at PROGRAM; the
    instances take them in turn. `smoke` holds the smoke test, if one is to run;
    `method` takes the dumps, if there are to be any; `words` are added to the
    kernel's command line; with `leaks`, those of the boot are cleared;
    `texts` are syzkaller's programs, None for those in C, in the order of `initrds`;
    `completed` says which runs did their work;
    where `profiled`, the program is traced afterwards on the first instance that
    survives, and has to do some of the work that it did `before`; `way` are the
    functions on the way to the crash, with their addresses; `disk` is the root disk, if guests
    have one; `detectors` says what
    the kernel has to report when faults are raised on purpose, if they are; `boots` knows how
    long its guests take to boot.
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
