"""Selection of bugs of a dataset: by their attributes, and by a model's knowledge cutoff."""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from kgym.api.steps import Strict
from kgym.bench.attempt_record import Words
from kgym.bench.bug_record import BugFacts, BugRecord, Status
from kgym.bench.dataset import Dataset

Some = Annotated[list[Words], Field(max_length=1000)]


class BugChoice(Strict):
    """A filter: bugs that meet all given conditions; of a list, one matching entry is enough.

    A condition on an attribute that is unknown for a bug excludes the bug. Times: from `..._from`
    (inclusive) to `..._before` (exclusive).
    """

    ids: Some = []
    status: Status | None = None
    subsystems: Some = Field([], description="names of syzbot's: `net`, `ext4`")
    types: Some = Field(
        [], description="beginnings of syzkaller's types of titles: `KASAN-READ`, `KASAN`"
    )
    classes: Some = Field([], description="beginnings of titles: `KASAN use-after-free`")
    text: Words | None = Field(None, description="part of a title, case-insensitive")
    compiler: Words | None = Field(
        None, description="part of the compiler's version, case-insensitive"
    )
    reproducer: Literal["c", "syz", "both", "none"] | None = None
    has_cause: bool | None = Field(None, description="whether the introducing commit is known")
    racy: bool | None = Field(None, description="whether it showed in some of its runs only")
    reported_from: AwareDatetime | None = None
    reported_before: AwareDatetime | None = None
    fixed_from: AwareDatetime | None = None
    fixed_before: AwareDatetime | None = None
    days_open_from: float | None = Field(None, ge=0, le=1e6, description="days from report to fix")
    days_open_to: float | None = Field(None, ge=0, le=1e6)
    lines_from: int | None = Field(None, ge=0, description="lines that the fix changes")
    lines_to: int | None = Field(None, ge=0)
    files_to: int | None = Field(None, ge=0, description="files that the fix changes")
    touches: Words | None = Field(None, description="the fix changes a file below this path")

    def takes(self, bug: BugRecord | BugFacts) -> bool:
        """Return whether the filter selects this bug."""
        return all(self._conditions(bug if isinstance(bug, BugFacts) else bug.facts))

    def of(self, dataset: Dataset, name: str) -> Dataset:
        """Return the selected bugs as a new dataset."""
        return Dataset.of(
            name,
            filter(self.takes, dataset.bugs),
            description=dataset.description,
            source=f"{dataset.name} {dataset.about.sha256[:12]}: "
            + self.model_dump_json(exclude_defaults=True),
        )

    def _conditions(self, bug: BugFacts) -> Iterator[bool]:
        yield not self.ids or bug.id in self.ids
        yield self.status in {None, bug.status}
        yield not self.subsystems or not set(self.subsystems).isdisjoint(bug.subsystems or ())
        yield not self.types or bug.type.startswith(tuple(self.types))
        yield not self.classes or bug.crash_class.startswith(tuple(self.classes))
        yield self.text is None or any(_within(self.text, title) for title in bug.titles)
        yield self.compiler is None or any(
            _within(self.compiler, compiler) for compiler in bug.compilers
        )
        yield self.reproducer in {None, bug.reproducer}
        yield self.has_cause in {None, bug.has_cause}
        yield self.racy in {None, bug.racy}
        yield _between(bug.reported, self.reported_from, self.reported_before)
        yield _between(bug.fixed, self.fixed_from, self.fixed_before)
        yield _fits(bug.days_open, self.days_open_from, self.days_open_to)
        yield _fits(bug.lines, self.lines_from, self.lines_to)
        yield _fits(None if bug.files is None else len(bug.files), None, self.files_to)
        yield self.touches is None or any(_below(self.touches, file) for file in bug.files or ())


def split(dataset: Dataset, cutoff: datetime) -> tuple[Dataset, Dataset]:
    """Return the bugs fixed up to a model's knowledge cutoff, and those fixed after it.

    Bugs whose fix has no known date are in neither (Live-kBench section 5.2).
    """
    # A model may have seen a fix that was committed before its cutoff.
    known = [(bug, bug.fixed) for bug in dataset.bugs if bug.fixed is not None]
    day = cutoff.date().isoformat()
    before = [bug for bug, fixed in known if fixed <= cutoff]
    after = [bug for bug, fixed in known if fixed > cutoff]
    return (
        Dataset.of(f"{dataset.name}-to-{day}", before, source=dataset.name),
        Dataset.of(f"{dataset.name}-after-{day}", after, source=dataset.name),
    )


def _within(part: str, text: str) -> bool:
    return part.casefold() in text.casefold()


def _between(time: datetime | None, begin: datetime | None, end: datetime | None) -> bool:
    if begin is None and end is None:
        return True
    return time is not None and (begin is None or begin <= time) and (end is None or time < end)


def _fits(number: float | None, least: float | None, most: float | None) -> bool:
    if least is None and most is None:
        return True
    return (
        number is not None
        and (least is None or least <= number)
        and (most is None or number <= most)
    )


def _below(folder: str, file: str) -> bool:
    return file == folder or file.startswith(folder.rstrip("/") + "/")
