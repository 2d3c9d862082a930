"""Memos: answers that storage keeps for all jobs and workers.

A memo is a JSON document under a key made of everything that the answer depends on. It may name
artifacts; it is ignored once one of these is gone.
"""

import hashlib
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from kgym.api.jobs import Artifact
from kgym.api.steps import Strict
from kgym.transport.artifact_storage import ArtifactMissing
from kgym.worker.context import StepContext

R = TypeVar("R", bound=BaseModel)

# Raise it after fixing a bug that made answers wrong: old memos are then ignored.
VERSION = 3


class _Memo(Strict):
    answer: dict[str, object]
    artifacts: list[Artifact]


def key(kind: str, *parts: object) -> str:
    """Return the key of an answer that depends on these JSON values and models."""
    name = digest(kind, VERSION, *parts)
    return f"memo/{name[:2]}/{name}/{kind}.json"


def digest(*parts: object) -> str:
    """Return a hash of these parts, as 40 hexadecimal digits."""
    text = json.dumps(parts, sort_keys=True, default=BaseModel.model_dump)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


async def recall(run: StepContext, name: str, model: type[R]) -> R | None:
    """Return the answer under the key `name`, or None; copy its artifacts to this step."""
    memo = await _read(run, name)
    if memo is None:
        return None
    kept = []
    try:
        answer = model.model_validate(memo.answer)
        for artifact in memo.artifacts:
            key = await run.storage.copy(artifact.key, run.key(artifact.name))
            kept.append(artifact.model_copy(update={"key": key}))
    except (ValidationError, ArtifactMissing):  # written by another version, or removed
        return None
    if kept:
        # Named by this job from now on: retention may remove the first job's artifacts earlier.
        await remember(run, name, answer, kept)
    run.artifacts += kept
    return answer


async def remember(
    run: StepContext, name: str, answer: BaseModel, artifacts: Sequence[Artifact] = ()
) -> None:
    """Store an answer, and the artifacts that belong to it, under the key `name`."""
    memo = _Memo(answer=answer.model_dump(mode="json"), artifacts=list(artifacts))
    path = _scratch(run)
    path.write_text(memo.model_dump_json())
    await run.storage.put(name, path, move=True)


async def _read(run: StepContext, name: str) -> _Memo | None:
    path = _scratch(run)
    try:
        await run.storage.get(name, path)
        return _Memo.model_validate_json(path.read_bytes())
    except (ValidationError, ArtifactMissing):
        return None
    finally:
        path.unlink(missing_ok=True)


def _scratch(run: StepContext) -> Path:
    return run.folder / f"memo-{uuid.uuid4().hex}"
