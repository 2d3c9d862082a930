"""The bugs of a campaign: runnable bundles, with their records of a dataset."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kgym.api import faults
from kgym.api.steps import GitSource
from kgym.bench import dataset as datasets
from kgym.bench.bug_bundles import developer_patch
from kgym.bench.bug_record import BugRecord, Crash, FoundText
from kgym.bench.campaign import Campaign
from kgym.bench.dataset import Dataset
from kgym.bench.dataset_files import parsed_json, read_bounded
from kgym.bench.tried_bug import Base, tried_bug
from kgym.bugs import bundle as bundles
from kgym.bugs.bug import Bug
from kgym.errors import NotFound, UserError
from kgym.toml_text import parse_toml

_UNNAMED = re.compile(r"[^\w.:-]")
_SYZBOT = "syzbot "
# Maximum bytes of the file with the options of results.
_OPTIONS = 1 << 20


@dataclass(frozen=True, slots=True)
class Subject:
    """A bug of a campaign; `id` is its id in results."""

    id: str
    name: str
    """By which its bundle is loaded."""
    bug: Bug
    record: BugRecord


@dataclass(frozen=True, slots=True)
class Subjects:
    """The bugs of a campaign; `unbundled` counts those of its dataset that cannot be tried."""

    bugs: tuple[Subject, ...]
    unbundled: int = 0

    def dataset(self, name: str) -> Dataset:
        """Return them as a dataset."""
        return Dataset.of(name, [bug.record for bug in self.bugs], source="a campaign's bugs")


def load(campaign: Campaign, home: Path) -> Subjects:
    """Load the bugs of a campaign; paths are relative to `home`, the folder of its description.

    Raises UserError `no_bugs`, and as bundles and datasets do.
    """
    bugs = [_named(name, home) for name in campaign.bugs]
    bugs += _within(campaign.bundles, home)
    unbundled = 0
    if campaign.dataset is not None:
        wanted = campaign.choice.of(datasets.load(home / campaign.dataset), campaign.name)
        by_id: dict[str, tuple[str, Bug]] = {}
        for name, bug in bugs:
            by_id |= dict.fromkeys(_ids(bug), (name, bug))
        every = [_of_dataset(record, by_id, campaign) for record in wanted.bugs]
        subjects = [subject for subject in every if subject is not None]
        unbundled = len(every) - len(subjects)
    else:
        subjects = [bundled(name, bug) for name, bug in bugs]
    if not subjects:
        lacking = f": {unbundled} bugs of its dataset cannot be tried" if unbundled else ""
        raise UserError("no_bugs", f"the campaign {campaign.name} has no bug to run{lacking}")
    ids = [subject.id for subject in subjects]
    if twice := {bug_id for bug_id in ids if ids.count(bug_id) > 1}:
        raise UserError("bug_twice", f"several bugs have the id {', '.join(sorted(twice)[:5])}")
    return Subjects(tuple(subjects), unbundled)


def of_ids(
    ids: Iterable[str], known: Dataset | None, base: Base = "parent"
) -> tuple[Subjects, dict[str, str]]:
    """Return bugs by the ids that results use, and why others cannot be tried.

    A shipped bug is loaded from its bundle, and any other one made from its record in `known`.
    """
    subjects: list[Subject] = []
    left_out: dict[str, str] = {}
    records = {record.id: record for record in known.bugs} if known is not None else {}
    for bug_id in dict.fromkeys(ids):
        # Ids have no `@`, which names a kernel of a shipped bug.
        name, record = bug_id.replace(":", "@"), records.get(bug_id)
        try:
            if bundles.is_shipped(name):
                of_bundle = bundled(name, bundles.load(name))
                subjects.append(replace(of_bundle, record=record or of_bundle.record))
            elif record is None:
                left_out[bug_id] = "it is neither shipped nor in the dataset"
            else:
                subjects.append(Subject(bug_id, bug_id, tried_bug(record, base), record))
        except UserError as error:
            left_out[bug_id] = error.message
    return Subjects(tuple(subjects)), left_out


def _named(name: str, home: Path) -> tuple[str, Bug]:
    place = name if bundles.is_shipped(name) else str((home / name).resolve())
    return place, bundles.load(place)


def _within(places: Sequence[str], home: Path) -> Iterable[tuple[str, Bug]]:
    for place in places:
        folder = (home / place).resolve()
        tables = sorted([*folder.glob("*/bug.toml"), *folder.glob("*/*/bug.toml")])
        if not tables:
            raise UserError("no_bugs", f"{folder} holds no folder with a bug.toml")
        for table in tables:
            yield str(table.parent), bundles.load(str(table.parent))


def _of_dataset(
    record: BugRecord, bundled_: dict[str, tuple[str, Bug]], campaign: Campaign
) -> Subject | None:
    """Return a bug of a dataset: from its bundle, or else from its record if that suffices."""
    if record.id in bundled_:
        name, bug = bundled_[record.id]
        return Subject(record.id, name, bug, record)
    try:
        bug = tried_bug(record, campaign.commit_from)
    except UserError as error:
        if error.reason != "not_triable":
            raise
        return None
    return Subject(record.id, record.bundle or record.id, bug, record)


def _ids(bug: Bug) -> list[str]:
    """Return the ids that datasets may use for a bundle: that of its name, and syzbot's."""
    syzbot_ids = [
        reference.removeprefix(_SYZBOT)
        for reference in bug.file.references
        if reference.startswith(_SYZBOT)
    ]
    return [_id(bug.name), *syzbot_ids]


def _id(name: str) -> str:
    return _UNNAMED.sub(":", name)


def bundled(name: str, bug: Bug) -> Subject:
    """Return a bundle, with a record made from the bundle itself."""
    kernel = getattr(bug.file.kernel, "use", "")
    bug_id = _id(bug.name)
    # `kgym bug port` writes a folder of bundles for each kernel: the same bug may be in several.
    if kernel and not bundles.is_shipped(name) and Path(name).parent.name == kernel:
        bug_id = f"{bug_id}:{_id(kernel)}"
    source = bug.build.source
    git = source if isinstance(source, GitSource) else None
    program = bug.reproducers[0]
    text = FoundText(text=program.text)
    crash = Crash(
        title=bug.file.title,
        repository=git.url if git else None,
        compiler=bug.build.compiler,
        c_reproducer=text if program.kind == "c" else FoundText(),
        syz_reproducer=text if program.kind == "syz" else FoundText(),
    )
    record = BugRecord(
        id=bug_id, title=bug.file.title, status="fixed", crashes=[crash], patch=developer_patch(bug)
    )
    return Subject(bug_id, name, bug, record)


def read_options(folder: Path) -> Campaign:
    """Return the options of results (`Campaign.how`); raise UserError `bad_campaign`."""
    path = folder / "campaign.json"
    try:
        # A campaign needs agents, which the options of its results do not name.
        agents = [{"name": "unknown", "command": ["false"]}]
        given: Any = parsed_json(read_bounded(path, _OPTIONS), path)
        return Campaign.model_validate({"agents": agents, **given})
    except (NotFound, UserError, ValueError, TypeError) as error:
        raise UserError("bad_campaign", f"{path}: {error}") from error


def read(path: Path) -> Campaign:
    """Read a campaign's description; raise UserError `bad_campaign` naming the wrong fields."""
    try:
        return Campaign.model_validate(parse_toml(path.read_text()))
    except ValidationError as error:
        raise UserError("bad_campaign", f"{path}: {faults.in_words(error, Campaign)}") from error
    except (OSError, ValueError) as error:
        raise UserError("bad_campaign", f"{path}: {error}") from error
