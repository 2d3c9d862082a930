"""What the process that looks into a dump is asked, and what it answers."""

from pathlib import Path

from pydantic import Field

from kgym.api.steps import DumpPart, MinimizeArtifact, Strict
from kgym.trace.minimal_trace import LIMIT

TRACE = MinimizeArtifact.TRACE
MINIMAL = MinimizeArtifact.MINIMAL
DMESG = MinimizeArtifact.DMESG
STACK = MinimizeArtifact.STACK
LOCKS = MinimizeArtifact.LOCKS
# Names of the files with what is found.
PARTS = frozenset(MinimizeArtifact)
ANSWER = "answer.json"


class Minimize(Strict):
    """How to cut the trace down."""

    files: list[str] = []
    limit: int = LIMIT
    past_repeats: bool = False


class Request(Strict):
    """What to look into: a dump with its vmlinux, or a trace; what is found goes to `out`."""

    source: Path
    vmlinux: Path | None = None
    report: str | None = Field(None, description="text of a crash report")
    minimize: Minimize | None = None
    out: Path


class Answer(Strict):
    """What was done, part by part, and how long it took; written anew after each part."""

    parts: list[DumpPart] = []
    seconds: dict[str, float] = {}
    records: int = 0
    lost: int = 0
    notes: list[str] = []
    peak_rss_mb: float = 0
