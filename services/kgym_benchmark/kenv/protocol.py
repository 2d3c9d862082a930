"""The texts that agents get about a bug and a kernel run, worded as in Live-kBench's kEnv. Pure.

Sources: ARiSE-Lab/live-kbench, docs/kEnv.md, kenv/initialize, kenv/run_kernel and
kGym/kclient/KBDr/kclient/agentic.py (commit 8849209).
"""

import re
from dataclasses import dataclass
from typing import Literal

from kgym.api.outcomes import Outcome
from kgym.bugs.kernel_run import KernelRun
from kgym.bugs.kernel_run_text import run_text

# Files of /root written by an answer; the last one is ours, with all details.
REPORT, BUILD_LOG, MORE = "report.txt", "LinuxBuildStderr.txt", "run_kernel.txt"
NO_REPRODUCER = "No reproducer available."
CommitFrom = Literal["parent", "crash"]
_SYZBOT = re.compile(r"^(//|#) .*(syzkaller|goo\.gl)")
_NO_CRASH = "does not crash, but this is no fix"


@dataclass(frozen=True, slots=True)
class Case:
    """A bug as shown to an agent."""

    bug: str
    """Its id."""
    report: str
    program: str
    """Its reproducer."""
    repository: str = ""
    """URL of the kernel's Git repository, with the commit: for containers without a tree."""
    commit: str = ""

    @property
    def task(self) -> str:
        """The agent's task: two blocks, for the report and the reproducer."""
        return (
            f"<crashReport>\n{self.report}\n</crashReport>\n"
            f"<reproducer>\n{self.reproducer}\n</reproducer>\n"
        )

    @property
    def reproducer(self) -> str:
        """The program without syzbot's header, which links to the bug's page, and so to its fix."""
        if not self.program:
            return NO_REPRODUCER
        lines = self.program.splitlines()
        while lines and _SYZBOT.match(lines[0]):
            lines.pop(0)
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Observation:
    """The output of `run_kernel`, and the files of /root that it writes; None removes a file."""

    text: str
    files: dict[str, str | None]


def observation(run: KernelRun) -> Observation:
    """Return the agent's observation of its patch: one of three answers, or an error."""
    more = {MORE: run_text(run) + "\n"}
    if run.outcome is Outcome.DOES_NOT_COMPILE:
        log = (
            run.output
            or "\n".join(diagnostic.message for diagnostic in run.diagnostics)
            or run.reason
        )
        text = f"Compilation error, builder's log at: `/root/{BUILD_LOG}`"
        return Observation(text, {**more, BUILD_LOG: log})
    # As in Live-kBench: a kernel that does not crash is all that an agent learns.
    if run.outcome is Outcome.RESOLVED or run.answer == _NO_CRASH:
        return Observation("No crash reproduced.", {**more, BUILD_LOG: None, REPORT: None})
    if run.title is not None or run.outcome is Outcome.NOT_BUILT:
        title = run.title or run.reason
        text = f'Crash reproduced: "{title}"'
        if run.report is None:
            return Observation(text, dict(more))
        with_report = f"{text}\nCheck crash report at `/root/{REPORT}`."
        return Observation(with_report, {**more, REPORT: run.report})
    return failed(run.answer, run.reason)


def failed(*why: str) -> Observation:
    """Return the observation of a failed call."""
    return Observation("kGym error: " + ", ".join(why) + ".", {})
