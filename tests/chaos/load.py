"""Jobs of the small make tree, and how each has to end."""

import asyncio
import random
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kgym.api.jobs import Artifact, JobRequest, JobView, StepView
from kgym.api.states import State
from kgym.api.steps import BuildSpec, Edit, Patch, StepSpec
from kgym.client import Client
from kgym.errors import InfrastructureError, UserError
from kgym_builder.build.build_step import Builder
from kgym_builder.suitecache.suitecache import SuiteCache
from tests.conftest import ANYWHERE, ROOT, attempt

KEPT = ("vmlinux", "System.map", "config")
GOOD = ("plain", "type_7", "type_70", "type_700")
BAD = ("rejected", "broken")


@dataclass(frozen=True)
class Outcome:
    """What a build comes to: the hashes of what it leaves, or why it is the user's fault."""

    hashes: tuple[str, ...] = ()
    reason: str = ""


def variants(build: BuildSpec) -> dict[str, BuildSpec]:
    """Builds by name: the good ones make different kernels, the bad ones none."""

    def patched(replacement: str, original: str = "type >= WATCH_TYPE__NR") -> BuildSpec:
        edit = Edit(file="kernel/watch_queue.c", original=original, replacement=replacement)
        return build.model_copy(update={"patches": [Patch(edits=[edit])]})

    # Each is done, not answered from the first of its kind.
    build = build.model_copy(update={"cache": "fresh"})
    return {
        "plain": build,
        **{name: patched(f"type >= {name[5:]}") for name in GOOD[1:]},
        "rejected": patched("int x;", original="this stands nowhere in the file"),
        "broken": patched("type >= no_such_name"),
    }


def expected(builds: dict[str, BuildSpec], folder: Path) -> dict[str, Outcome]:
    """Do each build here, once, without any platform."""
    builder = Builder(
        SuiteCache(folder / "cache", ROOT / "configs" / "backports", origins=ANYWHERE)
    )

    async def outcome(build: BuildSpec) -> Outcome:
        run = attempt(folder, build)
        try:
            await builder(run)
        except UserError as error:
            return Outcome(reason=error.reason)
        return Outcome(_hashes(run.artifacts))

    async def all_of_them() -> dict[str, Outcome]:
        return {name: await outcome(build) for name, build in builds.items()}

    return asyncio.run(all_of_them())


def plan(rng: random.Random, jobs: int) -> list[list[str]]:
    """The variants of each job's steps: one to three; of four jobs, one has a bad one."""
    return [
        [rng.choice(GOOD) for _ in range(rng.choice((0, 0, 0, 1)))]
        + [rng.choice(GOOD) if rng.random() < 0.75 else rng.choice(BAD)]
        + [rng.choice(GOOD) for _ in range(rng.choice((0, 0, 0, 1)))]
        for _ in range(jobs)
    ]


class Submitter(threading.Thread):
    """Submits the jobs over `seconds`, each until the scheduler has taken it."""

    def __init__(self, url: str, requests: Sequence[JobRequest], seconds: float) -> None:
        super().__init__(name="submitter", daemon=True)
        self.ids: list[int] = []
        self.repeats = 0
        self.stopped = threading.Event()
        self._url = url
        self._requests = requests
        self._pause = seconds / len(requests)

    def run(self) -> None:
        began = time.monotonic()
        with Client(self._url) as client:
            for number, request in enumerate(self._requests):
                self.stopped.wait(max(0, began + number * self._pause - time.monotonic()))
                self._submit(client, request)

    def _submit(self, client: Client, request: JobRequest) -> None:
        key = uuid.uuid4().hex
        while not self.stopped.is_set():
            try:
                self.ids.append(client.submit(request, key).id)
            except InfrastructureError:
                self.repeats += 1
                self.stopped.wait(0.3)
            else:
                return


def request(builds: dict[str, BuildSpec], names: list[str]) -> JobRequest:
    steps: list[StepSpec] = [builds[name] for name in names]
    return JobRequest(steps=steps)


def faults(job: JobView, names: list[str], outcomes: dict[str, Outcome]) -> list[str]:
    """What is wrong with how the job ended."""
    bad = next((number for number, name in enumerate(names) if outcomes[name].reason), len(names))
    wrong = []
    wanted_state = State.SUCCEEDED if bad == len(names) else State.FAILED
    if job.state is not wanted_state:
        wrong.append(f"job {job.id} has {job.state}, not {wanted_state}")
    for step, name in zip(job.steps, names, strict=True):
        if step.number > bad:
            right = step.state is State.SKIPPED
        else:
            right = _outcome(step) == outcomes[name]
        if not right:
            wrong.append(f"job {job.id} step {step.number} ({name}): {step.state} {step.failure}")
    return wrong


def _outcome(step: StepView) -> Outcome | None:
    if step.state is State.SUCCEEDED:
        return Outcome(_hashes(step.artifacts))
    if step.failure is not None and step.failure.cause == "user":
        return Outcome(reason=step.failure.reason)
    return None


def _hashes(artifacts: Sequence[Artifact]) -> tuple[str, ...]:
    hashes = {artifact.name: artifact.sha256 for artifact in artifacts}
    return tuple(hashes[name] for name in KEPT)
