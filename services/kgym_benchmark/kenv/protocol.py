"""What agents are told of a bug and of a kernel run, in the words of Live-kBench's kEnv. Pure.

Sources: ARiSE-Lab/live-kbench, docs/kEnv.md, kenv/initialize, kenv/run_kernel and
kGym/kclient/KBDr/kclient/agentic.py (commit 8849209).
"""

import re
from dataclasses import dataclass
from typing import Literal

from kgym.bugs.kernel_run import KernelRun
from kgym.bugs.kernel_run_text import run_text
from kgym.bugs.sweep_rows import Outcome

# Files of /root that an answer writes; the last is ours, and says all that is known.
REPORT, BUILD_LOG, MORE = "report.txt", "LinuxBuildStderr.txt", "run_kernel.txt"
NO_REPRODUCER = "No reproducer available."
CommitFrom = Literal["parent", "crash"]
_SYZBOT = re.compile(r"^(//|#) .*(syzkaller|goo\.gl)")
_NO_CRASH = "does not crash, but this is no fix"


@dataclass(frozen=True, slots=True)
class Case:
    """A bug as an agent is shown it."""

    bug: str
    """Its id."""
    report: str
    program: str
    """Its reproducer."""
    repository: str = ""
    """Where the kernel's Git repository is, and the commit: for containers without a tree."""
    commit: str = ""

    @property
    def task(self) -> str:
        """The words that agents get: two blocks."""
        return (
            f"<crashReport>\n{self.report}\n</crashReport>\n"
            f"<reproducer>\n{self.reproducer}\n</reproducer>\n"
        )

    @property
    def reproducer(self) -> str:
        """The program without syzbot's head, which links to the page of the bug, and its fix."""
        if not self.program:
            return NO_REPRODUCER
        lines = self.program.splitlines()
        while lines and _SYZBOT.match(lines[0]):
            lines.pop(0)
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Observation:
    """What `run_kernel` prints, and the files of /root that it writes; None removes one."""

    text: str
    files: dict[str, str | None]


def observation(run: KernelRun) -> Observation:
    """Return what an agent is told of its patch: one of three answers, or an error."""
    more = {MORE: run_text(run) + "\n"}
    if run.outcome is Outcome.DOES_NOT_COMPILE:
        log = (
            run.output
            or "\n".join(diagnostic.message for diagnostic in run.diagnostics)
            or run.reason
        )
        text = f"Compilation error, builder's log at: `/root/{BUILD_LOG}`"
        return Observation(text, {**more, BUILD_LOG: log})
    if run.outcome is Outcome.RESOLVED or run.answer == _NO_CRASH:
        return Observation("No crash reproduced.", {**more, BUILD_LOG: None, REPORT: None})
    if run.title is not None or run.outcome is Outcome.NOT_COMPILED:
        title = run.title or run.reason
        text = f'Crash reproduced: "{title}"'
        if run.report is None:
            return Observation(text, dict(more))
        with_report = f"{text}\nCheck crash report at `/root/{REPORT}`."
        return Observation(with_report, {**more, REPORT: run.report})
    return failed(run.answer, run.reason)


def failed(*why: str) -> Observation:
    """Return what an agent is told where there is no answer."""
    return Observation("kGym error: " + ", ".join(why) + ".", {})


def without_binaries(diff: str) -> str:
    """Return a diff of Git's without the files that are no text: no patch may hold them."""
    parts = re.split(r"(?m)^(?=diff --git )", diff)
    binary = re.compile(r"(?m)^(Binary files .* differ|GIT binary patch)$")
    return "".join(part for part in parts if not binary.search(part))
