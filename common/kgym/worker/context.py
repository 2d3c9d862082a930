"""One attempt at a step, as its handler sees it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from kgym.api.jobs import Artifact, Progress
from kgym.api.steps import StepResult
from kgym.api.worker_calls import LOG, Assignment, WorkerCalls
from kgym.transport.artifact_storage import Storage


@dataclass(slots=True)
class StepContext:
    """One attempt as its handler sees it."""

    assignment: Assignment
    folder: Path
    storage: Storage
    dispatch: WorkerCalls | None = None
    artifacts: list[Artifact] = field(default_factory=list)
    _unsent: list[str] = field(default_factory=list)
    _progress: Progress | None = None

    def log(self, text: str) -> None:
        """Add a line to the step's log."""
        self._unsent.append(text.rstrip("\n") + "\n")
        with (self.folder / "step.log").open("a") as file:
            file.write(self._unsent[-1])

    def progress(
        self, stage: str, done: float = 0, total: float | None = None, unit: str = ""
    ) -> None:
        """Say how far the step is; the latest word counts."""
        self._progress = Progress(stage=stage, done=done, total=total, unit=unit)

    async def keep(self, path: Path, name: str | None = None, *, move: bool = False) -> None:
        """Store the file as an artifact of the step; with `move`, it may be gone afterwards."""
        key = self.key(name or path.name)
        self.artifacts.append(await self.storage.put(key, path, move=move))

    def key(self, name: str) -> str:
        """Return where an artifact of the step is stored."""
        return f"steps/{self.assignment.step_id}/{self.assignment.lease.hex}/{name}"

    async def hold(self, name: str) -> bool:
        """Hold a name until the attempt ends; False while another attempt holds it."""
        return self.dispatch is None or await self.dispatch.hold(self.assignment.lease, name)

    def take_news(self) -> tuple[str, Progress | None]:
        """Return log and progress since the last call; of a long log, so much as a report takes."""
        log, progress = "".join(self._unsent), self._progress
        self._unsent = [log[LOG:]] if len(log) > LOG else []
        self._progress = None
        return log[:LOG], progress

    def return_news(self, log: str, progress: Progress | None) -> None:
        """Take back news that could not be delivered; newer progress stands."""
        self._unsent.insert(0, log)
        self._progress = self._progress or progress


Handler = Callable[[StepContext], Awaitable[StepResult]]
