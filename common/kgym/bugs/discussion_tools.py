"""The tool with which models read mails on a bug. See `SourceTools`."""

import asyncio
import re
from collections.abc import Iterator
from datetime import datetime
from html import unescape
from typing import Annotated

from pydantic import Field

from kgym.bugs.bug import Bug
from kgym.bugs.bug_file import FIX_COMMIT
from kgym.bugs.kernel_run_text import MOST, quoted
from kgym.errors import UserError
from kgym.source import patch_mails, patching
from kgym.source.patch_mails import MOST_MAILS, Mail

# Bare characters of a line: shorter ones, such as `return -EINVAL;`, are in many mails.
_TELLING = 13
# Digits of a commit's id, and bare characters of its title: mails and lists shorten them.
_ID, _TITLE = 7, 40
_ADDED, _REMOVED = r"(?m)^\+(?!\+\+ ).+", r"(?m)^-(?!-- ).+"
_UNREADABLE = Mail("", "")
_NOT_BARE = re.compile(r"[^0-9A-Za-z-]+")
_Number = Annotated[int | None, Field(ge=1, lt=1 << 31, description="its number in the list")]


class DiscussionTools:
    """The tool that reads a bundle's mails. Agents that are being measured do not get it."""

    def __init__(self, bug: Bug) -> None:
        self._bug = bug
        self._shown: tuple[list[str], int] | None = None
        self._reading = asyncio.Lock()
        self.tools = (self.discussion,)

    async def discussion(self, mail: _Number = None) -> str:
        """List the mails on this bug, oldest first; with `mail`, return one of them.

        They include earlier patches and the reasons for rejecting them. Anybody may have written a
        mail: check its claims.
        """
        async with self._reading:
            if self._shown is None:
                self._shown = await asyncio.to_thread(_shown, self._bug)
        mails, unreadable = self._shown
        if mail is None:
            lines = (f"{number}: {text.splitlines()[0]}" for number, text in enumerate(mails, 1))
            note = f"; {unreadable} mails could not be read" if unreadable else ""
            return f"{len(mails)} mails{note}\n{quoted('mails', chr(10).join(lines), 2 * MOST)}"
        if mail > len(mails):
            return f"error: there are {len(mails)} mails"
        return quoted("mail", mails[mail - 1], 2 * MOST)


def _shown(bug: Bug) -> tuple[list[str], int]:
    """Return the mails before the bug's date and before its fix, oldest first.

    Also return the number of mails that cannot be read.
    """
    if bug.file.discussion is None:
        return [], 0
    signs, end, unreadable = [*_signs(bug)], bug.file.discussion.before, 0
    dates: dict[str, datetime | None] = {}
    for mbox in bug.mboxes:
        texts = patch_mails.split(mbox)
        # Reading a mail takes Python 0.1 ms, and a mailbox may have a mail every few bytes.
        mails = [*map(_read, texts[:MOST_MAILS]), *[_UNREADABLE] * (len(texts) - MOST_MAILS)]
        unreadable += mails.count(_UNREADABLE)
        fixed = [_has(signs, text, mail) for text, mail in zip(texts, mails, strict=True)]
        # If a thread contains the fix, a mail without text (HTML only) may hold it as well, and
        # replies discuss it without quoting it. So such a mail and all after it are left out.
        opaque = [*(not mail.text.strip() for mail in mails), True]
        first = min(fixed.index(True), opaque.index(True)) if any(fixed) else len(mails)
        sent = [patch_mails.date(mail.sent) for mail in mails]
        end = min([end, *filter(None, sent[first:])])
        dates.update(zip(map(_text, mails[:first]), sent, strict=False))
    kept = {text: date for text, date in dates.items() if date is not None and date < end}
    return sorted(kept, key=kept.__getitem__), unreadable


def _read(text: str) -> Mail:
    try:
        return patch_mails.read(text, "a mail")[0]
    # Python's parser of headers has faults that hostile mails reach.
    except (AttributeError, LookupError, TypeError, UserError, ValueError):
        return _UNREADABLE


def _text(mail: Mail) -> str:
    """Return a mail as a model sees it; the first line is its entry in the list."""
    version = f" (v{mail.version})" if mail.version > 1 else ""
    date, reply = patch_mails.date(mail.sent), "Re: " * mail.reply
    return f"{date} {mail.author}: {reply}{mail.title}{version}\n\n{mail.text}"


def _bare(text: str) -> str:
    """Return a text's letters, digits and dashes: mail programs quote, break and escape lines."""
    return _NOT_BARE.sub("", text).casefold()


def _has(signs: list[str], source: str, mail: Mail) -> bool:
    """Return whether a mail has the fix in its source or in anything that is shown of it."""
    text = f"{source}\n{_text(mail)}"
    # HTML entities are decoded twice, since some mail programs escape twice.
    texts = (_bare(text), _bare(unescape(unescape(text))))
    return any(sign in each for each in texts for sign in signs)


def _signs(bug: Bug) -> Iterator[str]:
    """Yield bare texts that reveal a mail with the fix: its commits, titles and changed lines.

    A fix without letters yields an empty text, which every mail contains.
    """
    for match in filter(None, map(FIX_COMMIT.fullmatch, bug.file.references)):
        yield match[1][:_ID]
        # A mail's title is shown without its tags in brackets.
        titles = (match[2] or "", re.sub(r"\[[^]]*\]", "", match[2] or ""))
        yield from filter(None, (_bare(title)[:_TITLE] for title in titles))
    if bug.fix is not None:
        diff = patching.as_diff(bug.fix)
        added, removed = (list(map(_bare, re.findall(kind, diff))) for kind in (_ADDED, _REMOVED))
        telling = ([line for line in lines if len(line) > _TELLING] for lines in (added, removed))
        yield from next(filter(None, telling), [max(added or removed, key=len, default="")])
