"""Visits to syzbot: updates the records of its bugs in a folder, and makes a dataset of them.

The folder contains pages (`pages/`), a record per bug (`bugs/ID.json`), discussions (`threads/`)
and datasets (`datasets/`). A record is only replaced, atomically, by a later one. A killed visit
continues where it was: recently fetched pages are not requested again.
"""

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email import message_from_bytes
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from pydantic import AwareDatetime, Field, ValidationError

from kgym.api.steps import Strict
from kgym.atomic_files import locked, replace_file
from kgym.bench.attempt_record import TEXT
from kgym.bench.bug_record import BugRecord, FoundText, Status
from kgym.bench.dataset import MOST, About, Dataset
from kgym.errors import Conflict, InfrastructureError, KgymError, NotFound, UserError, file_errors
from kgym.source import patch_mails
from kgym_benchmark.crawler import fix_commits, syzbot_pages
from kgym_benchmark.crawler.fetcher import Fetcher
from kgym_benchmark.crawler.fix_commits import GitSites
from kgym_benchmark.crawler.syzbot_pages import Listed

STATUSES: tuple[Status, ...] = ("fixed", "open", "invalid")
# After this many unreadable bugs in succession, the layout must have changed.
FAILURES = 5
_MOST_WHY = 100
_RECORD = 64 << 20
_NETWORK = {"site_unreachable"}
LORE = "lore.kernel.org"
# Maximum bytes of a thread.
BOX = 16 << 20
MAILS = 2000
_BEGIN = re.compile(rb"(?m)^From (?:mboxrd@z|\S+) [^\n]{0,100}\n")
_SENDER = re.compile(r"\bsyzbot(?:\+([0-9a-f]{20}))?[^\s<>]{0,100}@")


@dataclass(frozen=True, slots=True)
class Sites:
    """The sites of bugs, discussions and commits."""

    syzbot: str
    namespace: str
    lore: str
    git: GitSites

    @property
    def all(self) -> tuple[str, ...]:
        """The sites that may be requested."""
        return (self.syzbot, self.lore, self.git.site)


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The options of a visit."""

    statuses: Sequence[Status] = STATUSES
    most: int | None = None
    """Number of bugs of each list, from its start; None is all."""
    threads: int = 3
    """Number of discussions fetched per bug."""


class Visit(Strict):
    """The result of a visit."""

    began: AwareDatetime
    listed: int = Field(description="bugs in the lists")
    new: int
    changed: int
    unchanged: int
    duplicates: int = Field(description="of other bugs; they are left out")
    failed: dict[str, str] = Field(description="first unreadable bugs, with reasons")
    requests: int
    dataset: About | None = Field(description="all bugs known now")
    folder: Path | None = Field(description="of the dataset")


Tell = Callable[[str], None]


def visit(
    folder: Path, sites: Sites, fetcher: Fetcher, options: WatchOptions, tell: Tell = lambda _: None
) -> Visit:
    """Read all bugs of the lists; return what has changed.

    Raises Conflict `watch_running` if another visit is in progress; InfrastructureError
    `syzbot_layout`, and as `Fetcher.get` does. After an error, everything read so far is kept.
    """
    message = f"another `kgym bench watch` is running in {folder}"
    with locked(folder, Conflict("watch_running", message)):
        return _Visit(folder, sites, fetcher, options, tell).go()


class _Visit:
    def __init__(
        self, folder: Path, sites: Sites, fetcher: Fetcher, options: WatchOptions, tell: Tell
    ) -> None:
        self.folder = folder
        self.sites = sites
        self.fetcher = fetcher
        self.options = options
        self.tell = tell
        self.counts = {"new": 0, "changed": 0, "unchanged": 0, "duplicates": 0}
        self.failed: dict[str, str] = {}
        self.in_succession = 0

    def go(self) -> Visit:
        """Read the lists, then their bugs."""
        began = datetime.now(UTC)
        lists = {status: self._list(status) for status in self.options.statuses}
        total = sum(len(bugs) for bugs, _ in lists.values())
        self.tell(f"{total} bugs are listed")
        done = 0
        for bugs, dates in lists.values():
            for listed in bugs:
                done += 1
                self._bug(listed, dates.get(listed.value))
                if done % 100 == 0:
                    self.tell(f"{done} of {total} bugs")
        about, place = self._dataset(began)
        return Visit(
            began=began,
            listed=total,
            failed=dict(list(self.failed.items())[:_MOST_WHY]),
            requests=self.fetcher.traffic.requests,
            dataset=about,
            folder=place,
            **self.counts,
        )

    def _list(self, status: Status) -> tuple[list[Listed], dict[str, datetime]]:
        path = f"/{self.sites.namespace}{syzbot_pages.LISTS[status]}"
        page = self.fetcher.get(f"{self._base}{path}?json=1")
        bugs = syzbot_pages.listed(page.body, page.url)
        shown = self.fetcher.get(f"{self._base}{path}")
        dates = syzbot_pages.reported(shown.body, shown.fetched, shown.url)
        if bugs and not dates:
            raise syzbot_pages.changed_layout(shown.url, "no bug has a report date")
        return bugs[: self.options.most], dates

    def _bug(self, listed: Listed, reported: datetime | None) -> None:
        """Read a bug; note an unreadable one, and continue with the others."""
        try:
            kind = self._read(listed, reported)
            self.counts[kind] += 1
            self.in_succession = 0
        except KgymError as error:
            if error.reason in _NETWORK:
                raise
            self.tell(f"{listed.value}: {error.message}")
            self.failed[listed.value] = f"{error.reason}: {error.message}"[:1000]
            self.in_succession += 1
            if error.reason == "syzbot_layout" and self.in_succession >= FAILURES:
                raise

    def _read(self, listed: Listed, reported: datetime | None) -> str:
        url = f"{self._base}{listed.path}"
        page = self.fetcher.get(f"{url}&json=1")
        known: dict[str, Any] = {"extid": listed.value} if listed.key == "extid" else {}
        record = syzbot_pages.bug(page.body, page.url, **known)
        if record is None:
            return "duplicates"
        before = self._before(record.id)
        if record.extid is None:
            # The list uses its other id; the HTML page has the address of its mails.
            record = record.model_copy(
                update={"extid": syzbot_pages.extid(self.fetcher.get(url).body)}
            )
        record = self._with_texts(record)
        record = self._with_thread(record, reported, before)
        if record.patch is not None:
            patch = fix_commits.fixed(record.patch, self.sites.git, self.fetcher)
            record = record.model_copy(update={"patch": patch})
        if before is not None:
            record = _kept(record, before)
        if record == before:
            return "unchanged"
        _write(self._place(record.id), record.model_dump_json(exclude_none=True).encode())
        return "new" if before is None else "changed"

    def _with_texts(self, record: BugRecord) -> BugRecord:
        """Return the record with the linked texts; missing pages remain links."""
        crashes = list(record.crashes)
        for number, name, link in syzbot_pages.texts(record):
            try:
                page = self.fetcher.get(urljoin(f"{self._base}/", link), TEXT)
            except NotFound:
                continue
            text = FoundText(text=page.body.decode(errors="replace"), link=link)
            crashes[number] = crashes[number].model_copy(update={name: text})
        return record.model_copy(update={"crashes": crashes})

    def _with_thread(
        self, record: BugRecord, reported: datetime | None, before: BugRecord | None
    ) -> BugRecord:
        """Return the record with report time and id from its discussions, which are stored too."""
        # syzbot's first mail gives the report time to the second, its list only to the day.
        known: dict[str, Any] = {}
        boxes = [mailbox_address(link, self.sites.lore) for link in record.discussions]
        wanted = [box for box in boxes if box is not None][: self.options.threads]
        for number, url in enumerate(wanted):
            try:
                thread = read_thread(self.fetcher.get(url, BOX).body)
            except NotFound:
                continue
            if thread is None:
                continue
            _write(self.folder / "threads" / record.id / f"{number}.mbox", thread.mails)
            if thread.reported is not None:
                known["reported"] = min(thread.reported, known.get("reported", thread.reported))
            known["extid"] = known.get("extid") or record.extid or thread.extid
        if "reported" not in known:
            # The page gives an age in days, relative to now: keep the first date computed from it.
            first_report = before.reported if before is not None and before.reported else reported
            known["reported"] = first_report
        return record.model_copy(update=known)

    def _dataset(self, began: datetime) -> tuple[About | None, Path | None]:
        """Make a dataset of all records, unless the same one exists."""
        bugs = [record for record in map(self._record, self._places()) if record is not None]
        if not bugs:
            return None, None
        name = f"syzbot-{self.sites.namespace}-{began:%Y-%m-%d}"
        dataset = Dataset.of(name, bugs, source=f"{self._base}/{self.sites.namespace}")
        digest = dataset.about.sha256
        there = sorted((self.folder / "datasets").glob(f"*-{digest[:12]}"))
        place = there[0] if there else self.folder / "datasets" / f"{name}-{digest[:12]}"
        return (dataset.about if there else dataset.save(place)), place

    @property
    def _base(self) -> str:
        return self.sites.syzbot.rstrip("/")

    def _places(self) -> list[Path]:
        return sorted((self.folder / "bugs").glob("*.json"))[:MOST]

    def _place(self, bug: str) -> Path:
        return self.folder / "bugs" / f"{bug}.json"

    def _before(self, bug: str) -> BugRecord | None:
        place = self._place(bug)
        return self._record(place) if place.is_file() else None

    def _record(self, place: Path) -> BugRecord | None:
        """Return a record of the folder; report an unreadable one, which will be fetched again."""
        try:
            if place.stat().st_size > _RECORD:
                raise UserError("bad_dataset", f"{place} is too large")
            return BugRecord.model_validate_json(place.read_bytes())
        except (ValidationError, UserError, OSError) as error:
            self.tell(f"{place} is left out: {error}")
            return None


def _kept(record: BugRecord, before: BugRecord) -> BugRecord:
    """Return the record, completed by data that was known before and is no longer available."""
    known: dict[str, Any] = {}
    if record.extid is None:
        known["extid"] = before.extid
    # Only if it is the same fix: syzbot may have learned of another one since.
    if record.patch is not None and before.patch is not None and record.patch.diff is None:
        same = {commit.id for commit in record.patch.commits} & {
            commit.id for commit in before.patch.commits
        }
        if same - {None}:
            known["patch"] = before.patch
    crashes = list(record.crashes)
    for number, (now, then) in enumerate(zip(record.crashes, before.crashes, strict=False)):
        lost = {
            name: getattr(then, name)
            for name in ("report", "config", "c_reproducer", "syz_reproducer")
            if getattr(now, name).text is None
            and getattr(now, name).link == getattr(then, name).link
        }
        crashes[number] = now.model_copy(update=lost)
    return record.model_copy(update=known | {"crashes": crashes})


def _write(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably, unless it is unchanged."""
    if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
        return
    with file_errors(path, "cannot_write", InfrastructureError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data, durable=True)


# --- discussions ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Thread:
    """A discussion: its mails, with the report time and id from syzbot's first one."""

    mails: bytes
    reported: datetime | None
    extid: str | None


def mailbox_address(link: str, lore: str) -> str | None:
    """Return the URL of a thread's mailbox (public-inbox's `t.mbox.gz`); None for other links."""
    try:
        parts = urlsplit(link)
    except ValueError:
        return None
    words = [unquote(word) for word in parts.path.split("/") if word]
    if parts.hostname != LORE or len(words) < 2 or "@" not in words[1]:
        return None
    return f"{lore.rstrip('/')}/{quote(words[0], safe='')}/{quote(words[1], safe='@')}/t.mbox.gz"


def read_thread(packed: bytes) -> Thread | None:
    """Parse the first MAILS mails of a mailbox; None if it is not one."""
    mails = _unpacked(packed)
    begins = [mail.end() for mail in _BEGIN.finditer(mails)][:MAILS]
    if not begins:
        return None
    reported: datetime | None = None
    extid: str | None = None
    for begin, end in zip(begins, [*begins[1:], len(mails)], strict=True):
        mail = message_from_bytes(mails[begin : min(end, begin + (64 << 10))])
        sender = _SENDER.search(str(mail.get("From", ""))[:1000])
        if sender is None:
            continue
        extid = extid or sender[1]
        date = patch_mails.date(str(mail.get("Date", "")))
        if date is not None and (reported is None or date < reported):
            reported = date
    return Thread(mails, reported, extid)


def _unpacked(packed: bytes) -> bytes:
    try:
        # 32: gzip or zlib. Bounded, as a small file may expand to gigabytes.
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(packed, BOX)
    except zlib.error:
        return b""
