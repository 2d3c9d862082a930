"""Steps whose results are given, done by a real worker: no kernel is built, no VM boots."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kgym.api.steps import StepKind, StepResult
from kgym.transport.artifact_storage import LocalStorage
from kgym.transport.bus import InProcessBus
from kgym.worker.context import Handler, StepContext
from kgym.worker.http_calls import HttpWorkerCalls
from kgym.worker.loop import Worker

# What a step answers; what it raises, the step fails by. It may put artifacts in its folder.
Answer = Callable[[StepContext], StepResult]


@contextmanager
def working(
    url: str,
    data: Path,
    answers: Mapping[StepKind, Answer],
    real: Mapping[StepKind, Handler] | None = None,
) -> Iterator[None]:
    """Let a worker do steps of these kinds for the scheduler at `url`, whose data is in `data`.

    Steps of the `real` kinds are done as these handlers do them. The platform does none itself.
    """
    started, loop = threading.Event(), asyncio.new_event_loop()
    serving: list[asyncio.Task[None]] = []

    async def serve() -> None:
        storage = LocalStorage(data / "artifacts")
        async with HttpWorkerCalls(url) as dispatch:
            given = {kind: _handler(answer) for kind, answer in answers.items()}
            # A worker each, as one of the platform's own runs a few kinds beside the others.
            for name, handlers in {"given": given, "real": real}.items():
                if not handlers:
                    continue
                folder = data / "work" / name
                worker = Worker(dispatch, InProcessBus(), storage, handlers, folder)
                serving.append(asyncio.create_task(worker.serve()))
            started.set()
            await asyncio.wait(serving)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert started.wait(10)
        yield
    finally:
        for task in serving:
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


def _handler(answer: Answer) -> Handler:
    async def handle(run: StepContext) -> StepResult:
        before = set(run.folder.iterdir())
        result = await asyncio.to_thread(answer, run)
        for path in sorted(set(run.folder.iterdir()) - before):
            await run.keep(path)
        return result

    return handle
