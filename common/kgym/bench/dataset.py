"""A dataset: named bugs that never change, in a folder of two files.

`bugs.jsonl` holds a record a line, ordered by id; `dataset.json` its name, and the SHA-256 of that
file. So two datasets are the same if their hashes are, and a folder that was changed is refused.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from kgym.api.steps import Sha256, Strict
from kgym.bench.attempt_record import Words
from kgym.bench.bug_record import BugRecord
from kgym.errors import NotFound, UserError

ABOUT, BUGS = "dataset.json", "bugs.jsonl"
# Bytes of one record at most.
LINE = 64 << 20
# Bugs of a dataset at most.
MOST = 100_000
Name = Annotated[str, Field(pattern=r"^[\w][\w.-]{0,99}$")]


class About(Strict):
    """What a dataset is: `sha256` is that of its records."""

    name: Name
    description: Words = ""
    source: Words | None = Field(None, description="what it was made from")
    bugs: int = Field(ge=0, le=MOST)
    sha256: Sha256


class Dataset(Strict):
    """Bugs by id, in order; none twice."""

    name: Name
    description: Words = ""
    source: Words | None = None
    bugs: tuple[BugRecord, ...]

    @classmethod
    def of(
        cls,
        name: str,
        bugs: Iterable[BugRecord],
        *,
        description: str = "",
        source: str | None = None,
    ) -> "Dataset":
        """Return a dataset of these bugs; UserError `bug_twice`, `too_many_bugs`, `bad_dataset`."""
        by_id: dict[str, BugRecord] = {}
        for bug in bugs:
            if bug.id in by_id and by_id[bug.id] != bug:
                raise UserError("bug_twice", f"there are two different bugs with the id {bug.id}")
            by_id[bug.id] = bug
            if len(by_id) > MOST:
                raise UserError("too_many_bugs", f"a dataset has at most {MOST:,} bugs")
        try:
            return cls(
                name=name,
                description=description,
                source=source,
                bugs=tuple(by_id[bug_id] for bug_id in sorted(by_id)),
            )
        except ValidationError as error:
            raise UserError("bad_dataset", _first(error)) from error

    def __len__(self) -> int:
        return len(self.bugs)

    @property
    def about(self) -> About:
        """What its folder's `dataset.json` says."""
        digest = hashlib.sha256()
        for line in self._lines():
            digest.update(line)
        return About(
            name=self.name,
            description=self.description,
            source=self.source,
            bugs=len(self.bugs),
            sha256=digest.hexdigest(),
        )

    def get(self, bug: str) -> BugRecord:
        """Return a bug by its id, or by how it alone begins; else NotFound."""
        matching = [record for record in self.bugs if record.id == bug] or [
            record for record in self.bugs if record.id.startswith(bug)
        ]
        if len(matching) != 1:
            many = (
                f"{len(matching)} bugs whose ids begin with" if matching else "no bug with the id"
            )
            raise NotFound("no_such_bug", f"{self.name} has {many} {bug!r}")
        return matching[0]

    def save(self, folder: Path) -> About:
        """Write it to a new folder; UserError `dataset_exists` where another one is in it."""
        about = self.about
        if (folder / ABOUT).exists():
            if (there := read_about(folder)) == about:
                return there
            raise UserError(
                "dataset_exists",
                f"{folder} holds the dataset {there.name} ({there.sha256[:12]}), which never"
                " changes: give the new one another folder",
            )
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f".{BUGS}").open("wb") as file:
            file.writelines(self._lines())
            file.flush()
            os.fsync(file.fileno())
        (folder / f".{BUGS}").replace(folder / BUGS)
        # Written last: a folder without it is no dataset.
        (folder / f".{ABOUT}").write_text(about.model_dump_json(indent=2) + "\n")
        (folder / f".{ABOUT}").replace(folder / ABOUT)
        return about

    def _lines(self) -> Iterator[bytes]:
        for bug in self.bugs:
            fields = bug.model_dump(mode="json", exclude_none=True)
            yield json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def read_about(folder: Path) -> About:
    """Return what a folder's dataset is; NotFound `no_dataset`, UserError `bad_dataset`."""
    try:
        return About.model_validate_json((folder / ABOUT).read_bytes())
    except OSError as error:
        raise NotFound("no_dataset", f"{folder} holds no dataset: {error.strerror}") from error
    except ValidationError as error:
        raise UserError("bad_dataset", f"{folder / ABOUT}: {_first(error)}") from error


def load(folder: Path) -> Dataset:
    """Read a dataset; raises NotFound `no_dataset`, UserError `bad_dataset`, `dataset_changed`."""
    about = read_about(folder)
    digest, bugs = hashlib.sha256(), []
    try:
        with (folder / BUGS).open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LINE), b""), start=1):
                digest.update(line)
                if number > about.bugs:
                    break
                bugs.append(_bug(line, f"{folder / BUGS}:{number}"))
    except OSError as error:
        raise NotFound("no_dataset", f"{folder / BUGS}: {error.strerror}") from error
    if digest.hexdigest() != about.sha256:
        raise UserError(
            "dataset_changed",
            f"{folder / BUGS} is not what {ABOUT} says (its SHA-256 is another): fetch it again, or"
            " make a dataset with another name of it",
        )
    return Dataset.of(about.name, bugs, description=about.description, source=about.source)


def _bug(line: bytes, where: str) -> BugRecord:
    try:
        return BugRecord.model_validate_json(line)
    except ValidationError as error:
        raise UserError("bad_dataset", f"{where}: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
