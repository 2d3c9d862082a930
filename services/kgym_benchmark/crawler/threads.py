"""Discussions of bugs on lore.kernel.org, as mailboxes (public-inbox's `t.mbox.gz`)."""

import re
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from email import message_from_bytes
from email.utils import parsedate_to_datetime
from urllib.parse import quote, unquote, urlsplit

LORE = "lore.kernel.org"
BOX = 16 << 20
"""Bytes of a thread at most."""
MAILS = 2000
_BEGIN = re.compile(rb"(?m)^From (?:mboxrd@z|\S+) [^\n]{0,100}\n")
_SENDER = re.compile(r"\bsyzbot(?:\+([0-9a-f]{20}))?[^\s<>]{0,100}@")


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread: its mails as they are, and what syzbot's first one says."""

    mails: bytes
    reported: datetime | None
    extid: str | None


def address(link: str, lore: str) -> str | None:
    """Return the address of the mailbox of a thread; None for a link to elsewhere."""
    try:
        parts = urlsplit(link)
    except ValueError:
        return None
    words = [unquote(one) for one in parts.path.split("/") if one]
    if parts.hostname != LORE or len(words) < 2 or "@" not in words[1]:
        return None
    return f"{lore.rstrip('/')}/{quote(words[0], safe='')}/{quote(words[1], safe='@')}/t.mbox.gz"


def read(packed: bytes) -> Thread | None:
    """Return a thread; None for what is no mailbox. Of one that is too long, the first mails."""
    mails = _unpacked(packed)
    begins = [one.end() for one in _BEGIN.finditer(mails)][:MAILS]
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
        date = _date(str(mail.get("Date", ""))[:200])
        if date is not None and (reported is None or date < reported):
            reported = date
    return Thread(mails, reported, extid)


def _unpacked(packed: bytes) -> bytes:
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(packed, BOX)
    except zlib.error:
        return b""


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
