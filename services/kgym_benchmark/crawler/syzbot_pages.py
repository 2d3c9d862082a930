"""The pages of syzbot's dashboard, and how to parse them.

Lists and bugs are requested as JSON (google/syzkaller, dashboard/api/api.go and
dashboard/app/public_json_api.go, read 2026-11): `/NAMESPACE[/fixed|/invalid]?json=1` and
`/bug?id=ID&json=1`. Dates of reports are only in the HTML tables of the same pages.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, Field, ValidationError

from kgym.api.faults import first_fault
from kgym.bench import syzbot_data
from kgym.bench.bug_record import BugRecord, Status
from kgym.bench.dataset import MOST
from kgym.errors import InfrastructureError, UserError
from kgym_benchmark.crawler import html_tables

LISTS: dict[Status, str] = {"open": "", "fixed": "/fixed", "invalid": "/invalid"}
_KEY = re.compile(r"[0-9a-f]{20,64}")
_EXTID = re.compile(r"\bsyzbot\+([0-9a-f]{20})@")
_LATENESS = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,2})h)?(?:(\d{1,2})m)?")
_BUG_KEYS = ("extid", "id")


@dataclass(frozen=True, slots=True)
class Listed:
    """A bug of a list, with the id by which the list links to its page."""

    key: str
    """`extid` or `id`."""
    value: str
    title: str
    updated: str | None = None

    @property
    def path(self) -> str:
        """The path of its page."""
        return f"/bug?{self.key}={self.value}"


class _ListedBug(BaseModel):
    title: str = ""
    link: str
    updated: Annotated[str | None, Field(validation_alias="last-updated")] = None


class _List(BaseModel):
    bugs: Annotated[list[_ListedBug] | None, Field(validation_alias="Bugs", max_length=MOST)]


def changed_layout(where: str, what: str) -> InfrastructureError:
    """Return the error for a page with an unexpected layout."""
    return InfrastructureError(
        "syzbot_layout",
        f"{where}: {what}. Its layout may have changed; nothing is lost, and everything read"
        " before is kept",
    )


def listed(body: bytes, where: str) -> list[Listed]:
    """Parse a list of bugs in JSON; raise InfrastructureError `syzbot_layout`."""
    try:
        page = _List.model_validate(_object(body, where))
    except ValidationError as error:
        raise changed_layout(where, first_fault(error)) from error
    bugs = []
    for bug in page.bugs or ():
        key = _key(bug.link)
        if key is None:
            raise changed_layout(where, f"{bug.link[:200]!r} is not a link to a bug")
        bugs.append(Listed(*key, bug.title[:1000], bug.updated))
    return bugs


def reported(body: bytes, fetched: datetime, where: str) -> dict[str, datetime]:
    """Return the report dates of the bugs on a list's page, by id.

    The page gives their age: in days, and for new ones in hours. Raises InfrastructureError
    `syzbot_layout` if there is no table of bugs.
    """
    dates: dict[str, datetime] = {}
    tables = html_tables.tables(body.decode(errors="replace"))
    lists = [table for table in tables if {"Title", "Reported"} <= set(table.headers)]
    # An empty list has no table, but says "(0)" in its heading.
    if not lists and b"(0)" not in body:
        raise changed_layout(where, "there is no table with the columns Title and Reported")
    for table in lists:
        for row in table.named("Title", "Reported"):
            age = _age(row["Reported"].text)
            for address, _ in row["Title"].links[:1]:
                if (key := _key(address)) is not None and age is not None:
                    dates[key[1]] = fetched - age
    return dates


def bug(body: bytes, where: str, **known: Any) -> BugRecord | None:
    """Return a bug's record; None for a duplicate of another bug.

    `known` are fields from other sources. Raises InfrastructureError `syzbot_layout`.
    """
    data = _object(body, where)
    if data.get("status") == "dup":
        return None
    try:
        return syzbot_data.read(data, where, **known)
    except UserError as error:
        raise changed_layout(where, error.message) from error


def extid(body: bytes) -> str | None:
    """Return the id in a bug's mails, from the reporter's address on its page."""
    match = _EXTID.search(body.decode(errors="replace"))
    return match[1] if match else None


def texts(record: BugRecord) -> Iterator[tuple[int, str, str]]:
    """Yield the linked texts that the record lacks: number of the crash, field, path."""
    for number, crash in enumerate(record.crashes):
        for name in ("report", "config", "c_reproducer", "syz_reproducer"):
            field = getattr(crash, name)
            if field.text is None and field.link is not None and field.link.startswith("/"):
                yield number, name, field.link


def _key(link: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(link)
        query = parse_qs(parts.query, max_num_fields=20)
    except ValueError:
        return None
    for name in _BUG_KEYS:
        for value in query.get(name, ())[:1]:
            if parts.path == "/bug" and _KEY.fullmatch(value):
                return name, value
    return None


def _age(text: str) -> timedelta | None:
    if text == "now":
        return timedelta()
    match = _LATENESS.fullmatch(text)
    if not text or match is None:
        return None
    days, hours, minutes = (int(number or 0) for number in match.groups())
    return timedelta(days=days, hours=hours, minutes=minutes)


def _object(body: bytes, where: str) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise changed_layout(where, f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise changed_layout(where, "not a JSON object")
    return value
