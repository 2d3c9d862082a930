"""The texts that agents get about a bug and a kernel run, worded as in Live-kBench's kEnv. Pure.

Sources: ARiSE-Lab/live-kbench, docs/kEnv.md, kenv/initialize, kenv/run_kernel and
kGym/kclient/KBDr/kclient/agentic.py (commit 8849209).
"""

from dataclasses import dataclass
from typing import Literal

from kgym.api.outcomes import Outcome
from kgym.bugs.kernel_run import KernelRun
from kgym.bugs.kernel_run_text import run_text
from kgym.source.comments import bare_program

# Files of /root written by an answer; the last one is ours, with all details.
REPORT, BUILD_LOG, MORE = "report.txt", "LinuxBuildStderr.txt", "run_kernel.txt"
NO_REPRODUCER = "No reproducer available."
CommitFrom = Literal["parent", "crash"]
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
    has_oracle: bool = False
    """Whether the agent is told which files the developers' fix changes."""

    @property
    def task(self) -> str:
        """The agent's task: two blocks, for the report and the reproducer."""
        return (
            f"<crashReport>\n{self.report}\n</crashReport>\n"
            f"<reproducer>\n{self.reproducer}\n</reproducer>\n"
        )

    @property
    def reproducer(self) -> str:
        """The program without its comments."""
        return bare_program(self.program) or NO_REPRODUCER


@dataclass(frozen=True, slots=True)
class Observation:
    """The output of `run_kernel`, and the files of /root that it writes; None removes a file."""

    text: str
    files: dict[str, str | None]


def observation(run: KernelRun) -> Observation:
    """Return the agent's observation of its patch: one of three answers, or an error."""
    # Numbers of jobs and their seconds would show what others have tried before.
    alone = {"job": None, "shown_by": None, "checked_by": None}
    more = {MORE: run_text(run.model_copy(update=alone)) + "\n"}
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


STILL_RUNNING = Observation(
    "The kernel is still running. Call run_kernel again, with the same changes.", {}
)


def instructions(kernels: int, *, oracle: bool = False) -> str:
    """Return what an agent is to do, for adapters: Live-kBench's task says nothing about that."""
    text = (
        "The source of a Linux kernel with this bug is in /linux. Find the cause of the crash, and"
        " mend it by changing files there: the difference is your patch. Keep what the code is"
        " for, and do not silence what reports the crash.\n"
    )
    if oracle:
        text += "The developers' fix changes the files that /KBDr/oracle-files.txt lists.\n"
    if kernels:
        text += (
            "`/KBDr/run_kernel` builds the kernel with your changes, and runs the program that"
            f" crashed it; at most {kernels} times. It takes minutes. If it answers that the kernel"
            " is still running, call it again.\n"
        )
    return text
