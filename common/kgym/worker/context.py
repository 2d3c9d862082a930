"""The context of one attempt at a step, which its handler gets."""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from kgym.api.jobs import Artifact, Progress, VmProgress
from kgym.api.steps import StepResult, StepSpec, Strict
from kgym.api.worker_calls import LOG, Assignment, WorkerCalls, attempt_folder
from kgym.errors import InfrastructureError
from kgym.transport.artifact_storage import Storage

M = TypeVar("M", bound=Strict)


@dataclass(slots=True)
class StepContext:
    """One attempt: its inputs, its folder, its storage, its log and its artifacts.

    Locks and mounts are entered into `held`; it is closed when the attempt ends, before `folder`
    is removed.
    """

    assignment: Assignment
    folder: Path
    """Empty at first; removed after the attempt."""
    storage: Storage
    dispatch: WorkerCalls | None = None
    held: ExitStack = field(default_factory=ExitStack)
    artifacts: list[Artifact] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each stage."""
    _begin: float = field(default_factory=time.monotonic)
    _unsent: list[str] = field(default_factory=list)
    _progress: Progress | None = None

    def spec(self, kind: type[M]) -> M:
        """Return the step's specification; raise InfrastructureError unless of this type."""
        return _typed(self.assignment.spec, kind, "step")

    def input(self, name: str, kind: type[M]) -> M:
        """Return the result of the step that the input `name` refers to."""
        return _typed(self.assignment.inputs[name].result, kind, f"input `{name}`")

    def optional_input(self, name: str, kind: type[M]) -> M | None:
        """Return the result of an input; None if the step has no such input."""
        return self.input(name, kind) if name in self.assignment.inputs else None

    def input_artifacts(self, name: str) -> Sequence[Artifact]:
        """Return the artifacts of an input; none if the step has no such input."""
        named = self.assignment.inputs.get(name)
        return named.artifacts if named else []

    async def fetch(self, name: str, artifact: str, path: Path) -> None:
        """Write an artifact of an input to `path`."""
        await self.storage.get(self.assignment.inputs[name].artifact(artifact).key, path)

    @contextmanager
    def stage(self, name: str, seconds: dict[str, float] | None = None) -> Iterator[None]:
        """Report a stage as progress, and add its duration to `seconds`, or to the attempt's."""
        self.progress(name)
        kept = self.seconds if seconds is None else seconds
        begin = time.monotonic()
        try:
            yield
        finally:
            kept[name] = round(kept.get(name, 0.0) + time.monotonic() - begin, 3)

    @property
    def elapsed(self) -> float:
        """Seconds since the attempt began."""
        return round(time.monotonic() - self._begin, 3)

    def log(self, text: str) -> None:
        """Add a line to the step's log. Thread-safe."""
        line = text.rstrip("\n") + "\n"
        self._unsent.append(line)
        with (self.folder / "step.log").open("a") as file:
            file.write(line)

    def progress(
        self,
        stage: str,
        done: float = 0,
        total: float | None = None,
        unit: str = "",
        vms: Sequence[VmProgress] = (),
    ) -> None:
        """Set the step's progress; the next report sends the latest."""
        self._progress = Progress(stage=stage, done=done, total=total, unit=unit, vms=list(vms))

    async def keep(
        self, path: Path, name: str | None = None, *, move: bool = False, base: str | None = None
    ) -> None:
        """Store the file as an artifact of the step; with `move`, it may be moved away.

        `base` is the key of a similar stored file: only the difference is stored.
        """
        key = self.key(name or path.name)
        self.artifacts.append(await self.storage.put(key, path, move=move, base=base))

    def key(self, name: str) -> str:
        """Return the storage key of an artifact of the step."""
        return f"{attempt_folder(self.assignment.step_id, self.assignment.lease)}/{name}"

    async def hold(self, name: str) -> bool:
        """Lock a name until the attempt ends; return False if another attempt holds it."""
        return self.dispatch is None or await self.dispatch.hold(self.assignment.lease, name)

    def take_news(self) -> tuple[str, Progress | None]:
        """Return log and progress since the last call; at most LOG characters of the log."""
        unsent, self._unsent = self._unsent, []  # swapped first: a thread may add a line now
        log, progress = "".join(unsent), self._progress
        if len(log) > LOG:
            self._unsent.insert(0, log[LOG:])
        self._progress = None
        return log[:LOG], progress

    def return_news(self, log: str, progress: Progress | None) -> None:
        """Take back news that could not be delivered, unless there is newer progress."""
        self._unsent.insert(0, log)
        self._progress = self._progress or progress


def _typed(value: StepSpec | StepResult, kind: type[M], what: str) -> M:
    if not isinstance(value, kind):
        raise InfrastructureError(
            "wrong_kind", f"the {what} is a {type(value).__name__}, not a {kind.__name__}"
        )
    return value


Handler = Callable[[StepContext], Awaitable[StepResult]]
