"""A dataset: a named, immutable set of bugs, in a folder of two files.

`bugs.jsonl` holds a record per line, ordered by id; `dataset.json` holds its name and the SHA-256
of that file. So equal hashes mean equal datasets, and a modified folder is refused.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from kgym.api.faults import refused_at
from kgym.api.steps import Sha256, Strict
from kgym.atomic_files import replace_file
from kgym.bench.attempt_record import Words
from kgym.bench.bug_record import BugRecord
from kgym.errors import NotFound, UserError, file_errors

ABOUT, BUGS = "dataset.json", "bugs.jsonl"
# Maximum bytes of one record.
LINE = 64 << 20
# Maximum number of bugs in a dataset.
MOST = 100_000
Name = Annotated[str, Field(pattern=r"^[\w][\w.-]{0,99}$")]


class About(Strict):
    """The content of `dataset.json`; `sha256` is that of the records."""

    name: Name
    description: Words = ""
    source: Words | None = Field(None, description="where it comes from")
    bugs: int = Field(ge=0, le=MOST)
    sha256: Sha256


class Dataset(Strict):
    """Bugs ordered by id, without repeats."""

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
        """Make a dataset of bugs; raise UserError `bug_twice`, `too_many_bugs`, `bad_dataset`."""
        by_id: dict[str, BugRecord] = {}
        for bug in bugs:
            if bug.id in by_id and by_id[bug.id] != bug:
                raise UserError("bug_twice", f"there are two different bugs with the id {bug.id}")
            by_id[bug.id] = bug
            if len(by_id) > MOST:
                raise UserError("too_many_bugs", f"a dataset has at most {MOST:,} bugs")
        with refused_at(name, "bad_dataset"):
            return cls(
                name=name,
                description=description,
                source=source,
                bugs=tuple(by_id[bug_id] for bug_id in sorted(by_id)),
            )

    def __len__(self) -> int:
        return len(self.bugs)

    @property
    def about(self) -> About:
        """The content of its folder's `dataset.json`."""
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
        """Return a bug by its id or a unique prefix of it; raise NotFound `no_such_bug`."""
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
        """Write it to a new folder; raise UserError `dataset_exists` if that holds another one."""
        about = self.about
        # Results name their dataset by hash: it must never change.
        if (folder / ABOUT).exists():
            if (there := read_about(folder)) == about:
                return there
            raise UserError(
                "dataset_exists",
                f"{folder} holds the dataset {there.name} ({there.sha256[:12]}), which never"
                " changes: give the new one another folder",
            )
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / BUGS, self._lines(), durable=True)
        # Written last: a folder without it is no dataset.
        replace_file(folder / ABOUT, about.model_dump_json(indent=2) + "\n")
        return about

    def _lines(self) -> Iterator[bytes]:
        for bug in self.bugs:
            fields = bug.model_dump(mode="json", exclude_none=True)
            # Sorted keys and no spaces: equal records must have equal hashes.
            yield json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def read_about(folder: Path) -> About:
    """Read a folder's `dataset.json`; raise NotFound `no_dataset`, UserError `bad_dataset`."""
    path = folder / ABOUT
    with file_errors(path, "no_dataset", NotFound), refused_at(str(path), "bad_dataset"):
        return About.model_validate_json(path.read_bytes())


def load(folder: Path) -> Dataset:
    """Read a dataset; raise NotFound `no_dataset`, UserError `bad_dataset`, `dataset_changed`."""
    about = read_about(folder)
    digest, bugs = hashlib.sha256(), []
    with file_errors(folder / BUGS, "no_dataset", NotFound), (folder / BUGS).open("rb") as file:
        # Bounded lines and counts: the folder may come from anywhere.
        for number, line in enumerate(iter(lambda: file.readline(LINE), b""), start=1):
            digest.update(line)
            if number > about.bugs:
                break
            with refused_at(f"{folder / BUGS}:{number}", "bad_dataset"):
                bugs.append(BugRecord.model_validate_json(line))
    if digest.hexdigest() != about.sha256:
        raise UserError(
            "dataset_changed",
            f"{folder / BUGS} does not have the SHA-256 in {ABOUT}: fetch it again, or make a"
            " dataset with another name of it",
        )
    return Dataset.of(about.name, bugs, description=about.description, source=about.source)
