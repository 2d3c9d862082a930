"""Patches in mails: MIME, an mbox with a series, a thread of a mailing list. Pure.

A mail is hostile: the number and the nesting of its parts are bounded before they are parsed.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from email.parser import Parser
from email.utils import parsedate_to_datetime
from itertools import chain, count
from typing import Any, TypeAlias

from kgym.errors import UserError
from kgym.source import diff_text

MOST_MAILS = 1000
_MOST_PARTS = 100
# Parts of a mail that contain others: each costs Python's parser a level of its stack.
_MOST_NESTED = 10
# Characters of a header with parameters: Python takes quadratic time to parse them.
_LONGEST = 2000
_MAIL = re.compile(r"(?m)^(?>From [^\n]{1,300}?\d\d:\d\d[^\n]*\n)(?=[A-Za-z][\w-]{0,60}:)")
_HEADER = re.compile(r"[A-Za-z][\w-]*:")
_MAIL_HEADER = re.compile(r"(?i)(?:subject|mime-version|content-[\w-]+|message-id):")
_PARAMETERS = re.compile(r"(?im)^content-(?:type|disposition):[^\n]*+(?:\n[ \t][^\n]*+)*+")
_DIFF = re.compile(r"(?m)^(?:diff -|--- \S[^\n]*\n\+\+\+ |@@+ -\d|Index: |\x1b\[[\d;]{0,20}mdiff )")
_TAG = re.compile(r"\[([^][\n]{0,200})\]\s{0,9}")
_NUMBERS = re.compile(r"\b(\d{1,4})/(\d{1,4})\b")
_VERSION = re.compile(r"(?i)\bv(\d{1,4})\b")
_REPLY = re.compile(r"(?i)(?:(?:re|aw|fwd?):\s{0,9}){1,9}")
_SCISSORS = re.compile(r"(?m)^(?= {0,40}-)[- ]{1,41}+(?:>8|8<|>%|%<)[-><8% ]{1,80}$")
_TRAILER = re.compile(r"(?m)^(?:Reviewed|Acked|Tested)-by: [^\n<]{1,200}<[^\n>]{1,200}>")
# Codecs of mails. Python has others, of which some take quadratic time.
_CHARSET = re.compile(
    r"(?i)utf-?(8|16|32)|(us-)?ascii|iso-?(8859|2022)|windows-|cp\d|koi8|gb|big5|euc"
)
# Charsets that cannot encode all characters.
_NATIONAL = re.compile(r"(?i)(?!utf|us-|ascii).")
_PATCH_FILE = re.compile(r"(?i).*\.(?:patch|diff|txt)$")
_PATCH_TYPES = {"application/octet-stream", "application/x-patch", "application/mbox"}
_Message: TypeAlias = "Message[str, str]"


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail's text and subject: patch `number` of `count`; `number` is None outside of a series.

    `charset` is the encoding of patched files that are not UTF-8. `sent` is the header that `date`
    parses.
    """

    title: str
    text: str
    version: int = 1
    number: int | None = None
    count: int = 1
    reply: bool = False
    author: str = ""
    charset: str = diff_text.BYTES
    sent: str = ""


def read(text: str, name: str) -> list[Mail]:
    """Return the mails of a text; a text that is not a mail becomes a mail without a title.

    Raises UserError `patch_too_large`.
    """
    mails = split(text)
    if len(mails) > MOST_MAILS:
        raise UserError("patch_too_large", f"{name} holds over {MOST_MAILS} mails; split it")
    return [_mail(mail, name) for mail in mails] or [Mail("", text)]


def split(text: str) -> list[str]:
    """Split a text into its mails, which `read` parses; return none if it is not a mail."""
    starts = [match.start() for match in _MAIL.finditer(text)]
    head = text.lstrip().partition("\n\n")[0].split("\n", 200)[:200]
    if not starts and _HEADER.match(head[0]) and any(map(_MAIL_HEADER.match, head)):
        starts = [len(text) - len(text.lstrip())]
    return [text[begin:end] for begin, end in zip(starts, [*starts[1:], len(text)], strict=False)]


def series(mails: Sequence[Mail]) -> tuple[list[Mail], list[str]]:
    """Return the mails with patches in the order of their series, and remarks.

    Patches with a newer version are left out, and so are replies, unless there is nothing else.
    """
    patches = [mail for mail in mails if _DIFF.search(mail.text)]
    patches = [mail for mail in patches if not mail.reply] or patches
    newest = {mail.title: mail.version for mail in sorted(patches, key=lambda mail: mail.version)}
    last = max((mail.version for mail in patches if mail.number is not None), default=1)
    kept = [
        mail
        for mail in patches
        if mail.version == newest[mail.title] and (mail.number is None or mail.version == last)
    ]
    remarks = [f"left out: {mail.title}, v{mail.version}" for mail in patches if mail not in kept]
    numbers = [mail.number for mail in kept if mail.number is not None]
    if len(set(numbers)) == len(kept):
        kept.sort(key=lambda mail: mail.number or 0)
        total = max((mail.count for mail in kept), default=0)
        missing = sorted({*range(1, total + 1)} - {*numbers})
        remarks += [f"patch {number} of the series is not here" for number in missing[:10]]
    trailers = (_TRAILER.findall(mail.text) for mail in mails if mail.reply)
    return kept, list(dict.fromkeys([*remarks, *chain.from_iterable(trailers)]))


def date(header: str) -> datetime | None:
    """Parse a mail's date header, of which 200 characters are read; None if it is invalid."""
    try:
        sent = parsedate_to_datetime(header[:200])
    except (OverflowError, TypeError, ValueError):  # a year or a zone of twenty digits overflows
        return None
    return sent if sent.tzinfo else sent.replace(tzinfo=UTC)


def _mail(text: str, name: str) -> Mail:
    message = _parsed(text, name)
    subject, author, sent = (_header(message, name) for name in ("Subject", "From", "Date"))
    tags = " ".join(_TAG.findall(subject))
    number, version = _NUMBERS.search(tags), _VERSION.search(tags)
    bodies = dict(pair for part in message.walk() if (pair := _body(part, name)) is not None)
    body = "\n".join(bodies)
    # Text above a scissors line is not part of the patch below it.
    if (cut := _SCISSORS.search(body)) and _DIFF.search(body, cut.end()):
        body = body[cut.end() :]
    return Mail(
        _TAG.sub("", _REPLY.sub("", subject, count=1)).strip()[:200],
        body,
        version=int(version[1]) if version else 1,
        number=int(number[1]) if number else None,
        count=int(number[2]) if number else 1,
        reply=_REPLY.match(subject) is not None,
        author=author,
        charset=next(filter(_NATIONAL.match, bodies.values()), diff_text.BYTES),
        sent=sent,
    )


def _header(message: _Message, name: str) -> str:
    """Return a header as one line."""
    header = str(message.get(name, ""))[:1000]
    with suppress(MessageError, LookupError, ValueError):  # it stays as it is
        header = str(make_header(decode_header(header)))
    return " ".join(header.split())


def _parsed(text: str, name: str) -> _Message:
    parts = count(1)

    def part(**settings: Any) -> _Message:
        if next(parts) > _MOST_PARTS:
            raise too_much
        return Message(**settings)

    too_much = UserError(
        "patch_too_large",
        f"{name}: a mail has over {_MOST_PARTS} parts, parts nested over {_MOST_NESTED} levels, or"
        f" a header over {_LONGEST} characters; give the patch itself",
    )
    headers = [match[0].lower() for match in _PARAMETERS.finditer(text)]
    nested = sum("multipart/" in header or "message/" in header for header in headers)
    if nested > _MOST_NESTED or any(len(header) > _LONGEST for header in headers):
        raise too_much
    return Parser(part).parsestr(text)


def _body(part: _Message, name: str) -> tuple[str, str] | None:
    """Return the text of a part, and its charset if it was decoded from bytes.

    None if the part has no text, or consists of other parts.
    """
    kind, text = part.get_content_type(), part.get_payload()
    plain = kind.startswith("text/") and kind != "text/html"
    patch = kind in _PATCH_TYPES or _PATCH_FILE.match(part.get_filename() or "")
    if not isinstance(text, str) or not (plain or patch):
        return None
    decoded = ""
    encoding = str(part.get("Content-Transfer-Encoding", "")).strip().lower()
    if encoding in {"base64", "quoted-printable", "x-uuencode", "uuencode"}:
        data, charset = part.get_payload(decode=True), str(part.get_content_charset("utf-8"))
        text, decoded = _decoded(data if isinstance(data, bytes) else b"", charset, name)
    if "flowed" in str(part.get_param("format", "")).lower():
        text = _unfolded(text, str(part.get_param("delsp", "")).lower() == "yes")
    return text, decoded


def _decoded(data: bytes, charset: str, name: str) -> tuple[str, str]:
    with suppress(LookupError, UnicodeDecodeError):  # an unknown charset, or a wrong one
        if _CHARSET.match(charset):
            return data.decode(charset), charset
    return diff_text.decode(data, name), ""


def _unfolded(text: str, delsp: bool) -> str:
    """Undo format=flowed (RFC 3676) as `git am` does, unless the text is evidently not flowed."""
    # Flowing would have put a second blank before every line that begins with a blank.
    if re.search(r"(?m)^ (?!From |>)[^ \r\n]", text):
        return text
    # A line that ends with a blank goes on in the next one, unless it begins the signature.
    return re.sub(r"(?m)(?<!^--) \n", "" if delsp else " ", re.sub(r"(?m)^ ", "", text))
