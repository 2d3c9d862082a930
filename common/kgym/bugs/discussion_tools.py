"""The tool with which models read mails on a bug. See `SourceTools`."""

import asyncio
import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Annotated

from pydantic import Field

from kgym.bugs.bug import Bug
from kgym.bugs.bug_file import FIX_COMMIT
from kgym.bugs.kernel_run_text import MOST, quoted
from kgym.source import patch_mails, patching
from kgym.source.patch_mails import Mail

# Characters of a line, without blanks: shorter ones, such as `return 0;`, are in many mails.
_TELLING = 12
# Digits of a commit's id: mails shorten it.
_ID = 7
_LINE = re.compile(r"(?m)^[+-](?!(?:--|\+\+) ).+")
_BLANKS = re.compile(r"(?m)^[>\s]+|\s+")
_Number = Annotated[int | None, Field(ge=1, lt=1 << 31, description="its number in the list")]


class DiscussionTools:
    """The tool that reads a bundle's mails. No agent has it that is being measured."""

    def __init__(self, bug: Bug) -> None:
        self._bug = bug
        self.tools = (self.discussion,)

    async def discussion(self, mail: _Number = None) -> str:
        """List the mails on this bug, oldest first; with `mail`, return one of them.

        They include earlier patches, with the reasons why these were rejected. Anybody may have
        written them: check what they claim.
        """
        mails = await asyncio.to_thread(_shown, self._bug)
        if mail is None:
            lines = (f"{number}: {_head(each)}" for number, each in enumerate(mails, 1))
            return f"{len(mails)} mails\n{quoted('mails', chr(10).join(lines), 2 * MOST)}"
        if mail > len(mails):
            return f"error: there are {len(mails)} mails"
        text = f"{_head(mails[mail - 1])}\n\n{mails[mail - 1].text}"
        return quoted("mail", text, 2 * MOST)


def _head(mail: Mail) -> str:
    version = f" (v{mail.version})" if mail.version > 1 else ""
    return f"{mail.date} {mail.author}: {'Re: ' * mail.reply}{mail.title}{version}"


def _shown(bug: Bug) -> list[Mail]:
    """Return the mails before the bug's date, oldest first, up to the first that has the fix."""
    if bug.file.discussion is None:
        return []
    dates = {
        mail: mail.date
        for mbox in bug.mboxes
        for mail in patch_mails.read(mbox, "a mbox of [discussion]")
        if mail.date is not None and mail.date < bug.file.discussion.before
    }
    # Not the sign of an empty line alone.
    signs = [sign for sign in map(_bare, _signs(bug)) if len(sign) > 1]

    def silent(mail: Mail) -> bool:
        text = _bare(f"{mail.title}\n{mail.text}")
        return not any(sign in text for sign in signs)

    # No later mail either: replies talk about the fix without quoting it.
    return list(takewhile(silent, sorted(dates, key=dates.__getitem__)))


def _bare(text: str) -> str:
    """Return a text without blanks and marks of quotations: mail programs break lines anew."""
    return _BLANKS.sub("", text).casefold()


def _signs(bug: Bug) -> Iterator[str]:
    """Yield texts of which a mail with the fix has some: its commits, titles or changed lines."""
    for match in filter(None, map(FIX_COMMIT.fullmatch, bug.file.references)):
        yield from (match[1][:_ID], match[2] or "")
    if bug.fix is not None:
        lines = _LINE.findall(patching.as_diff(bug.fix))
        added = [line[1:] for line in lines if line[0] == "+" and len(_bare(line)) > _TELLING]
        yield from added or lines
