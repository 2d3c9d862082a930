"""The function to blame in a report's stack traces (the one named in titles).

A `BlameRule` is a recipe: a list of patterns to be found in order (a pattern's group is a candidate
function), and of `TRACE`, where every frame of the stack trace is a candidate. Candidates that
every kernel has in such a trace (the reporting code, locks, memory primitives) do not count.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kgym.crash.report.frames import FUNC, PC
from kgym.crash.report.never_blamed import NEVER_TO_BLAME
from kgym.crash.report.rust_names import demangle

# A pattern that matches nothing.
NEVER: Final = "(?!)"
# The step that reads a stack trace.
TRACE: Final = None
Step = re.Pattern[str] | None
# compiled once: it takes longer than all other patterns together
_NEVER_TO_BLAME = re.compile(NEVER_TO_BLAME)


class Culprit(NamedTuple):
    """A function to blame: its name in titles, and its name in the trace."""

    name: str
    raw: str


# Used in titles if the function to blame was not found.
NOBODY: Final = Culprit("corrupted", "corrupted")


Pick = Callable[[Sequence[Culprit]], Culprit | None]


def pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern with placeholders {FUNC} and {PC} for these parts of a frame."""
    return re.compile(text.replace("{FUNC}", FUNC).replace("{PC}", PC))


def first(candidates: Sequence[Culprit]) -> Culprit:
    """Blame the topmost function."""
    return candidates[0]


@dataclass(frozen=True, slots=True)
class BlameRule:
    """A recipe for finding the functions to blame, one for each stack trace.

    `otherwise` is tried if `steps` fail. `skip` are patterns of functions to be skipped in this
    kind of report. `pick` gets the candidates of a trace, its top first, and returns the one to
    blame, or None.
    """

    steps: tuple[Step, ...]
    otherwise: tuple[Step, ...] = ()
    skip: tuple[str, ...] = ()
    pick: Pick = first
    skip_re: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "skip_re", re.compile("|".join(self.skip) or NEVER))

    def passes_over(self, function: str) -> bool:
        """Return whether the function is skipped."""
        return bool(_NEVER_TO_BLAME.search(function) or self.skip_re.search(function))


# Frames that count: those of the kernel's own trace, not what symbolisation adds.
FRAME = re.compile(
    rf" *(?:{PC} ){{0,2}}{FUNC}"
    # arm: the topmost function stands on the left only
    rf"| *{PC} \(([\w.]+)\) from {PC} \({FUNC}"
    rf"| *([\w.]+) from {FUNC}"
)

# Lines after which a stack trace must follow.
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
# riscv: the last line of show_regs(); the trace of a warning follows it without a heading.
HEADLESS = re.compile(r"status: [0-9a-f]{16} badaddr: [0-9a-f]{16} cause: [0-9a-f]{16}")
ANY_START = re.compile("|".join(start.pattern for start in (*STARTS, HEADLESS)))

# Fault injection prints its own trace, often in the middle of the report.
_INTRUDER = re.compile(r"(?: \[<?(?:0x)?[0-9a-f]+>?\])? should_fail(?:slab)?(?:\.[a-z0-9.]+)?\+0x")

# Wrappers of one system call share the call's name (SYSCALL_DEFINE, include/linux/syscalls.h).
WRAPPERS = (
    "SYSC_",
    "SyS_",
    "sys_",
    "__x64_",
    "__ia32_",
    "__arm64_",
    "____sys_",
    "___sys_",
    "__sys_",
    "__se_",
    "__se_sys_",
    "__do_sys_",
    "compat_SYSC_",
    "compat_SyS_",
    "ksys_",
)


def culprit(function: str) -> Culprit:
    """Return the function as titles name it."""
    raw = demangle(function)
    return Culprit(min((raw.removeprefix(wrapper) for wrapper in WRAPPERS), key=len), raw)


def blame(lines: Sequence[str], walk: BlameRule) -> tuple[list[Culprit], bool]:
    """Return the functions to blame, and whether the report matched the whole recipe.

    There is one culprit for each TRACE, named "corrupted" if none was found.
    """
    culprits, intact = _follow(lines, walk.steps, walk)
    if not intact and walk.otherwise:
        culprits, intact = _follow(lines, walk.otherwise, walk)
    return culprits, intact


def _follow(
    lines: Sequence[str], steps: tuple[Step, ...], walk: BlameRule
) -> tuple[list[Culprit], bool]:
    rest = iter(lines)
    culprits: list[Culprit] = []
    candidates: list[Culprit] = []
    intact = True
    in_trace = False

    def close() -> bool:
        best = walk.pick(candidates) if candidates else None
        culprits.append(best or NOBODY)
        candidates.clear()
        return best is not None

    step = 0
    while step < len(steps):
        wanted = steps[step]
        if wanted is TRACE:
            intact = (close() if in_trace else True) and intact
            in_trace = True
        following = steps[step + 1] if wanted is TRACE and step + 1 < len(steps) else None
        for line in rest:
            if _INTRUDER.match(line):
                intact = False
                break
            match, done = _look(line, wanted, following)
            for group in match.groups() if match else ():
                if group and not walk.passes_over(demangle(group)):
                    candidates.append(culprit(group))
            if done:
                step += done is following
                break
        step += 1
    return culprits, close() and intact


def _look(line: str, wanted: Step, following: Step) -> tuple[re.Match[str] | None, object]:
    """Return the match, and True if the line ends this step, `following` if also the next one."""
    if wanted is not None:
        match = wanted.search(line)
        return match, match is not None
    if ANY_START.search(line):
        return None, True
    match = following.search(line) if following else None
    if match:
        return match, following
    return FRAME.match(line), False
