"""Tapes: recorded answers of models, for replay.

The first line describes the recorded run. Each further line is an answer as JSON, with a key over
the question and its debug cycle, and an occurrence, which distinguishes equal questions. If
occurrences differ because work was done in another order, equal questions get the remaining
answers, or one again if none remains. Text that every kernel or compiler words anew (reports,
traces, diagnostics, tools' results) is not part of the key, so that a run can be replayed on a
real platform. A tape contains no secrets.

The file of a stored run (`runs/NUMBER/events.gz` in the data folder) is a tape, too.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from kgym.api.agent.conversation import Reply
from kgym.api.agent.strategy import Strategy
from kgym.api.steps import Strict
from kgym.errors import UserError
from kgym_crashfixer import event_file
from kgym_crashfixer.models.model import Call, Model, ModelError

# Bytes of a tape: a run of a thousand cycles has a tenth of that.
_LONGEST = 1 << 28


class Recorded(Strict):
    """A line of a tape."""

    key: str
    occurrence: str = ""
    purpose: str
    reply: Reply


def key(call: Call) -> str:
    """Return the key of a question."""
    parts = {
        "system": call.prompt.system,
        "text": call.prompt.identity or call.prompt.text,
        "turns": [turn.model_dump(mode="json", exclude={"results"}) for turn in call.turns],
        "tools": [tool.model_dump(mode="json") for tool in call.tools],
        "temperature": call.temperature,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Head(Strict):
    """The recorded run."""

    bug: str
    strategy: Strategy
    files: list[str] = Field([], description="candidate files that the caller named")
    trace: bool = True
    window: int | None = Field(None, description="tokens of a question and its answer")


class _First(Strict):
    head: Head


def begin(path: Path, head: Head) -> None:
    """Begin a tape; an existing tape is continued."""
    if not path.exists() or not path.stat().st_size:
        path.write_text(_First(head=head).model_dump_json() + "\n")


def head(path: Path) -> Head | None:
    """Return the recorded run, or None if the tape lacks it. Raises UserError `bad_tape`."""
    lines = _lines(path)
    try:
        return _First.model_validate_json(lines[0]).head if lines else None
    except ValidationError:
        return None


def _head_of_run(first: dict[str, Any]) -> dict[str, Any]:
    request = first["request"]
    return {name: request[name] for name in ("bug", "strategy", "files", "trace", "window")}


def _lines_of_run(path: Path) -> Iterator[str]:
    """Yield the entries of a stored run as lines of a tape; raise UserError `bad_tape`."""
    sent: dict[str, dict[str, str]] = {}
    try:
        for number, (_, _, entry) in enumerate(event_file.entries(path)):
            if number == 0:
                yield json.dumps({"head": _head_of_run(entry)})
            for question in entry.get("sent", []):
                sent[question["name"]] = {
                    "key": question["tape_key"],
                    "occurrence": question["occurrence"],
                    "purpose": question["purpose"],
                }
            for answered in entry.get("answered", []):
                if answered["reply"] is not None:
                    yield json.dumps({**sent[answered["name"]], "reply": answered["reply"]})
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError("bad_tape", f"{path} is no tape, and no stored run") from error


class Recorder:
    """A model that records its answers on a tape."""

    def __init__(self, model: Model, path: Path) -> None:
        self.name, self._model, self._path = model.name, model, path
        if path.exists():  # drop a partial line, left by a writer that was killed
            written = path.read_bytes()
            path.write_bytes(written[: written.rfind(b"\n") + 1])

    async def ask(self, call: Call) -> Reply:
        """Ask the model, append its reply to the tape, and return it."""
        reply = await self._model.ask(call)
        line = Recorded(
            key=key(call),
            # Trees ask equal questions and get different answers.
            occurrence=call.occurrence,
            purpose=call.prompt.purpose,
            reply=reply,
        )
        with self._path.open("a") as file:
            file.write(line.model_dump_json() + "\n")
        return reply

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()


class Replay:
    """A model that replays a tape, with the recorded tokens, prices and times."""

    def __init__(self, path: Path) -> None:
        self.name, self._path = f"replay:{path}", path
        self._replies = _read(path)
        # Recorded occurrences that were given, by key and requested occurrence.
        self._given: dict[tuple[str, str], str] = {}

    async def ask(self, call: Call) -> Reply:
        """Return the recorded answer; raise ModelError `not_on_tape`."""
        asked = key(call)
        answers = self._replies.get(asked, {})
        occurrence = self._given.get((asked, call.occurrence), call.occurrence)
        if occurrence not in answers:
            taken = {other for (question, _), other in self._given.items() if question == asked}
            # All are taken if an earlier run of this model did its work in another order.
            left = [name for name in answers if name not in taken] or list(answers)
            occurrence = left[0] if left else ""
        if occurrence not in answers:
            raise ModelError(
                "not_on_tape",
                f"{self._path} has no answer to this {call.prompt.purpose} question: it was"
                " recorded with other prompts, another kernel or another strategy; record it again",
                fatal=True,
            )
        self._given[asked, call.occurrence] = occurrence
        return answers[occurrence]

    async def close(self) -> None:
        """Do nothing: it holds no resources."""


def _read(path: Path) -> dict[str, dict[str, Reply]]:
    """Return the answers by key and occurrence."""
    replies: dict[str, dict[str, Reply]] = {}
    lines = _lines(path)
    for number, line in enumerate(lines, 1):
        if number == 1 and head(path) is not None:
            continue
        try:
            recorded = Recorded.model_validate_json(line)
        except ValidationError as error:
            if number == len(lines):  # its writer was killed
                break
            raise UserError("bad_tape", f"{path}: line {number} is none of a tape") from error
        replies.setdefault(recorded.key, {})[recorded.occurrence] = recorded.reply
    return replies


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > _LONGEST:
            raise UserError("bad_tape", f"{path} has over {_LONGEST} bytes")
        with path.open("rb") as file:
            is_run = file.read(len(event_file.MAGIC)) == event_file.MAGIC
        return list(_lines_of_run(path)) if is_run else path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("bad_tape", f"{path}: {error}") from error
