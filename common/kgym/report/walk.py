"""Finding the function to blame in a report's stack traces.

A `Walk` is a recipe: patterns to find one after the other (a pattern's group is a candidate
function) and `TRACE`, where every frame of the stack trace is a candidate. Candidates that every
kernel has in such a trace (the reporting code, locks, memory primitives) do not count.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgym.report.frames import FUNC, PC
from kgym.report.rust import demangle
from kgym.report.skip import NEVER_TO_BLAME

TRACE: Final = None
"""The step that reads a stack trace."""

Step = re.Pattern[str] | None
Pick = Callable[[Sequence[str]], Sequence[str]]


def pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern in which {FUNC} and {PC} stand for their parts of a frame."""
    return re.compile(text.replace("{FUNC}", FUNC).replace("{PC}", PC))


def first(functions: Sequence[str]) -> Sequence[str]:
    """Blame the topmost function."""
    return functions[:1]


@dataclass(frozen=True, slots=True)
class Walk:
    """How to find the function to blame.

    `otherwise` is tried where `steps` find nothing. `skip` are patterns of functions that are
    passed over in this kind of report. `pick` takes the candidates, top of the stack first, and
    returns the function to blame, best name first; empty where there is none.
    """

    steps: tuple[Step, ...]
    otherwise: tuple[Step, ...] = ()
    skip: tuple[str, ...] = ()
    pick: Pick = first
    skip_re: re.Pattern[str] | None = field(init=False)

    def __post_init__(self) -> None:
        skip = re.compile("|".join(self.skip)) if self.skip else None
        object.__setattr__(self, "skip_re", skip)

    def skips(self, function: str) -> bool:
        """Whether `function` is passed over."""
        if NEVER_TO_BLAME.search(function):
            return True
        return self.skip_re is not None and self.skip_re.search(function) is not None


_IN_FRAME = r"([a-zA-Z_][a-zA-Z0-9_]*)(?:\.[\w.$]*)?\+0x"
FRAMES = (
    re.compile(rf" *(?:<[A-Z#]+> +)?(?:{PC} ){{0,2}}{_IN_FRAME}"),
    re.compile(rf" *{PC} \([^)]*\) from {PC} \({_IN_FRAME}"),
    re.compile(rf" *[a-zA-Z_][\w.]* from {_IN_FRAME}"),
    re.compile(rf" *\(?{PC}\)? {_IN_FRAME}"),
)
"""Frames that count: those of the kernel's own trace, not what symbolisation adds."""

STARTS = tuple(
    re.compile(text)
    for text in (
        r"Call (?:T|t)race",
        r"Allocated:",
        r"Allocated by task [0-9]+:",
        r"Freed:",
        r"Freed by task [0-9]+:",
        # kmemleak prints "  backtrace:", lockdep "stack backtrace:" with a trace of its own.
        r"[^k] backtrace(?: \(crc [0-9a-f]+\))?:",
        r"Backtrace:",
        r"Uninit was stored to memory at",
    )
)
"""Lines after which a stack trace must follow."""

INTRUDERS = (
    # Fault injection prints its own trace, often in the middle of the report.
    re.compile(r" *(?:\[<?(?:0x)?[0-9a-f]+>?\])? ?should_fail(?:\.[a-z]+(?:\.[0-9]+)?)?\+0x"),
)
"""Lines of a trace that belongs to something else than the crash."""

# Wrappers of one system call share the call's name (SYSCALL_DEFINE, include/linux/syscalls.h).
_WRAPPERS = (
    "SYSC_",
    "SyS_",
    "compat_SYSC_",
    "compat_SyS_",
    "ksys_",
    "__se_",
    "sys_",
    "__x64_",
    "__ia32_",
    "__arm64_",
    "__riscv_",
    "__s390x_",
    "__powerpc_",
)


def canonical(function: str) -> list[str]:
    """Return the name to print and the other names that the function goes by."""
    names = [function]
    for prefix in _WRAPPERS:
        if names[0].startswith(prefix) and len(names[0]) > len(prefix):
            names.insert(0, names[0].removeprefix(prefix))
    return names


def blame(lines: Sequence[str], walk: Walk) -> list[str]:
    """Return the names of the function to blame, empty where the report does not tell."""
    for steps in (walk.steps, walk.otherwise):
        if not steps:
            continue
        functions = _candidates(lines, steps, walk)
        names = walk.pick(functions) if functions else ()
        if names:
            best = canonical(demangle(names[0]))
            return [*best, *names[1:]]
    return []


def _candidates(lines: Sequence[str], steps: tuple[Step, ...], walk: Walk) -> list[str]:
    """Follow the steps, up to where a foreign trace gets in the way."""
    found: list[str] = []
    step = 0
    for line in lines:
        if step == len(steps):
            break
        if any(intruder.match(line) for intruder in INTRUDERS):
            break
        wanted = steps[step]
        if wanted is not None:
            match = wanted.search(line)
            step += match is not None
        elif any(start.search(line) for start in STARTS):
            match, step = None, step + 1
        else:
            following = steps[step + 1] if step + 1 < len(steps) else None
            match = following.search(line) if following else None
            step += 2 if match else 0
            match = match or next((m for f in FRAMES if (m := f.match(line))), None)
        name = next((group for group in match.groups() if group), None) if match else None
        if name and not walk.skips(name):
            found.append(name)
    return found
