"""Files of attempts, and other records: JSON Lines, one a line (`attempts.jsonl`)."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from kgym.api.faults import first_fault
from kgym.api.steps import Strict
from kgym.atomic_files import replace_file
from kgym.bench.attempt_record import AttemptRecord, FailedAttempt
from kgym.errors import NotFound, UserError, file_errors

NAME = "attempts.jsonl"
FAILED = "failed.jsonl"
# Maximum bytes of one attempt.
LINE = 16 << 20
# Maximum number of attempts in a file.
MOST = 2_000_000
Record = TypeVar("Record", bound=Strict)


def read(path: Path) -> Iterator[AttemptRecord]:
    """Yield the attempts of a file; raise NotFound `no_attempts_file`, UserError `bad_attempts`.

    An incomplete last line is skipped: its attempt will be made again.
    """
    return records(path, AttemptRecord)


def read_failed(folder: Path) -> list[FailedAttempt]:
    """Return the failed tries at attempts of a campaign; raise UserError `bad_attempts`."""
    path = folder / FAILED
    return list(records(path, FailedAttempt)) if path.exists() else []


def records(path: Path, model: type[Record]) -> Iterator[Record]:
    """Yield the records of a file, as `read` does attempts."""
    with file_errors(path, "no_attempts_file", NotFound), path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE), b""), start=1):
            if number > MOST:
                raise UserError("bad_attempts", f"{path} has more than {MOST:,} records")
            try:
                record = model.model_validate_json(line)
            except ValidationError as error:
                if not line.endswith(b"\n") and len(line) < LINE:
                    return
                raise UserError("bad_attempts", f"{path}:{number}: {first_fault(error)}") from error
            yield record


def write(path: Path, attempts: Iterable[AttemptRecord | FailedAttempt]) -> None:
    """Write a new file atomically; raise UserError `cannot_write`."""
    lines = (attempt.model_dump_json(exclude_none=True).encode() + b"\n" for attempt in attempts)
    with file_errors(path, "cannot_write"):
        replace_file(path, lines)


def append(path: Path, attempt: AttemptRecord | FailedAttempt) -> None:
    """Append an attempt; it is durable when this returns."""
    with path.open("ab") as file:
        file.write(attempt.model_dump_json(exclude_none=True).encode() + b"\n")
        file.flush()
        # An attempt costs dollars and hours: it must survive a crash of the machine.
        os.fsync(file.fileno())


def mend(path: Path) -> None:
    """Remove an incomplete last line, which a killed process has left."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        whole = 0
        for line in iter(lambda: file.readline(LINE), b""):
            whole += len(line) if line.endswith(b"\n") else 0
        file.truncate(whole)
