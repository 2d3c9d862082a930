"""A trace: records of function entries as columns, and the functions they refer to."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_SUFFIX = re.compile(r"\.(?:isra|part|constprop|cold|llvm|lto_priv)(?:\.\d+)?")
# arch/x86/include/asm/syscall_wrapper.h, include/linux/syscalls.h, include/linux/compat.h
_SYSCALL = re.compile(
    r"(?:__do_|__se_|__x64_|__ia32_|__arm64_|__riscv_|__s390x?_)(?=(?:compat_)?sys_)"
)


class Function(NamedTuple):
    """A function of the kernel; `file` is its path in the source tree, if known."""

    file: str | None
    name: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Records in order of time; `function` is an index into `functions`.

    `time` is in nanoseconds of the trace clock. `counter` is the instrumentation's counter per
    file, 0 for other tracers. `lost` counts records that the kernel is known to have overwritten or
    dropped. `tasks` maps PIDs to task names.
    """

    time: NDArray[np.uint64]
    cpu: NDArray[np.int16]
    pid: NDArray[np.int32]
    function: NDArray[np.int32]
    counter: NDArray[np.uint32]
    functions: tuple[Function, ...]
    tasks: Mapping[int, str] = field(default_factory=dict)
    lost: int = 0
    notes: tuple[str, ...] = ()

    COLUMNS = (
        ("time", np.uint64),
        ("cpu", np.int16),
        ("pid", np.int32),
        ("function", np.int32),
        ("counter", np.uint32),
    )

    def __len__(self) -> int:
        return len(self.time)

    def take(self, index: Array | slice) -> Self:
        """Return the records at these indexes, or those selected by a mask."""
        return replace(self, **{name: getattr(self, name)[index] for name, _ in self.COLUMNS})

    @classmethod
    def of(
        cls,
        records: Sequence[tuple[int, int, int, int, int]],
        functions: Sequence[Function],
        **rest: Any,
    ) -> Self:
        """Make a trace of a few records: (time, CPU, PID, function's index, counter)."""
        columns = list(zip(*records, strict=True)) or [()] * len(cls.COLUMNS)
        named: dict[str, Any] = {
            name: np.array(column, dtype)
            for (name, dtype), column in zip(cls.COLUMNS, columns, strict=True)
        }
        return cls(**named, functions=tuple(functions), **rest)


def canonical(name: str) -> str:
    """Return the source name of a function that the compiler or a macro has renamed.

    `foo.isra.0` becomes `foo`; the wrappers of a system call, such as `__x64_sys_x`, become
    `sys_x`.
    """
    return _SYSCALL.sub("", _SUFFIX.split(name, maxsplit=1)[0], count=1)


def in_files(path: str | None, files: Collection[str]) -> bool:
    """Return whether a function in the file `path` belongs to one of these files.

    An empty list selects all files. A function whose file is unknown always counts.
    """
    if not files or path is None:
        return True
    path = path.removeprefix("./")
    return any(path == file or path.endswith(f"/{file}") for file in files)
