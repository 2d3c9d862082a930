"""Request and answer of the process that reads a dump."""

from pathlib import Path

from pydantic import Field

from kgym.api.steps import DumpPart, MinimizeArtifact, Strict
from kgym.trace.minimal_trace import LIMIT

TRACE = MinimizeArtifact.TRACE
MINIMAL = MinimizeArtifact.MINIMAL
DMESG = MinimizeArtifact.DMESG
STACK = MinimizeArtifact.STACK
LOCKS = MinimizeArtifact.LOCKS
# Names of the result files.
PARTS = frozenset(MinimizeArtifact)
ANSWER = "answer.json"


class Minimize(Strict):
    """Options of the minimization."""

    files: list[str] = []
    limit: int = LIMIT
    past_repeats: bool = False


class Request(Strict):
    """A dump with its vmlinux, or a trace; results go to `out`."""

    source: Path
    vmlinux: Path | None = None
    report: str | None = Field(None, description="text of a crash report")
    minimize: Minimize | None = None
    out: Path


class Answer(Strict):
    """Completed parts and their times; rewritten after each part."""

    parts: list[DumpPart] = []
    seconds: dict[str, float] = {}
    records: int = 0
    lost: int = 0
    notes: list[str] = []
    peak_rss_mb: float = 0
