"""What a trace is: records of function entries as columns, and the functions they name."""

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
    """A function of the kernel; `file` is its path in the source tree, None where unknown."""

    file: str | None
    name: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Records in order of time; `function` indexes `functions`.

    `time` is in nanoseconds of the trace clock. `counter` is the per-file count
    that the instrumentation writes, 0 for other tracers. `lost` counts records
    that the kernel is known to have overwritten or dropped. `tasks` names
    processes by PID.
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
        """Return the records at these places, or where a mask is true."""
        columns = {name: getattr(self, name)[index] for name, _ in self.COLUMNS}
        return replace(self, **columns)

    @classmethod
    def of(
        cls,
        records: Sequence[tuple[int, int, int, int, int]],
        functions: Sequence[Function],
        **rest: Any,
    ) -> Self:
        """Make a trace of few records: (time, CPU, PID, function's number, counter)."""
        columns = list(zip(*records, strict=True)) or [()] * len(cls.COLUMNS)
        named: dict[str, Any] = {
            name: np.array(column, dtype)
            for (name, dtype), column in zip(cls.COLUMNS, columns, strict=True)
        }
        return cls(**named, functions=tuple(functions), **rest)


def canonical(name: str) -> str:
    """Return the name in the source of what the compiler or a macro named otherwise.

    `foo.isra.0` is `foo`; the parts of a system call, `__x64_sys_x` among them, are `sys_x`.
    """
    return _SYSCALL.sub("", _SUFFIX.split(name, maxsplit=1)[0], count=1)


def in_files(path: str | None, files: Collection[str]) -> bool:
    """Return whether a function of the file `path` counts as one of these files.

    No files mean all. Where the tracer did not say which file it was, it counts.
    """
    if not files or path is None:
        return True
    path = path.removeprefix("./")
    return any(path == file or path.endswith(f"/{file}") for file in files)
