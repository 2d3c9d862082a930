"""A patch as its maintainers want it: a mail for `git am` and b4, a note for its sender. Pure.

Nothing is ever sent. A message may be a model's, and recipients come from a script of the tree:
both may repeat an attacker's words. `git am` recognises the end of a message, and further headers,
at the beginning of a line, so no line of a message may begin like one.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime, formataddr, parseaddr
from hashlib import sha256
from pathlib import Path

from kgym.api.agent.nodes import CauseCommit
from kgym.api.steps.check import Blamed, Upstream
from kgym.bugs.bug_file import BugFile
from kgym.errors import UserError
from kgym.source import patch_mails, unified_diff
from kgym.source.patch_mails import Mail
from kgym.source.subsystem import subsystem

WIDTH = 72
# Characters of a subject (Documentation/process/submitting-patches.rst: 70 to 75).
SUBJECT = 75
# Lines of a patch for stable kernels, with context (Documentation/process/stable-kernel-rules.rst).
_STABLE_LINES = 100
_PARAGRAPHS = re.compile(r"\n\s*\n")
# Lines at which `git am` ends a message.
_MESSAGE_END = re.compile(r"(?m)^(?:---(?: \S|[^\S\n]*$)|diff -|Index: )")
_TAG = re.compile(r"[A-Z][A-Za-z-]{1,40}: \S")
_MAIL = Path(__file__).with_name("patch_mail.txt").read_text()
_SYZBOT = re.compile(r"\bextid=([0-9a-f]{10,40})\b|syzbot\+([0-9a-f]{10,40})@")
_REPORT = re.compile(r"Reported-by: [^<>\n]{1,200} <[^<>@\s]+@[^<>@\s]+>|Closes: https?://\S+")
_VERSION = re.compile(r"\d{1,3}\.\d{1,4}")
# Beginnings of lines that `git am` interprets, or that look like trailers.
_TAKEN = re.compile(r"^(?=diff -|---|\+\+\+|Index: |>?From |@@|[A-Za-z][\w-]*\s?:)")
# Scripts for stable kernels accept indented tags, too.
_FORGED = re.compile(r"(?i)^(\s*)(?=(?:fixes|closes|link|cc|[a-z-]+-by)\s?:)")
# The lookahead is needed: lines of a hunk may look like the first two.
_HEADERS = re.compile(r"(?m)^--- a/(.*)\n\+\+\+ b/(.*)$(?=\n@@ )")
# Also characters that hide or reorder text, and surrogates, which UTF-8 cannot encode.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_ADDRESS = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}@[\w.-]{1,255}", re.ASCII)
# Tags and a subsystem at the beginning of a subject: the mail adds its own.
_BEGINS = re.compile(r"(?:\[[^\]\n]{0,50}\] ?)*(?:[\w/.,+-]+: )*")
_DETECTOR = re.compile(
    r"(?:KASAN|KCSAN|KMSAN|UBSAN|BUG|WARNING|INFO): (?=.)|unable to handle (?:kernel )?"
)


@dataclass(frozen=True, slots=True)
class PatchKit:
    """A patch that resolves a bug, and what is known about it.

    `message` is subject, empty line and body; a missing subject is made from the crash's title. If
    `crash` is empty, the patch's author wrote the message, which stays unchanged; `trailers` are
    its tags. `notes` are for readers of the mail.
    """

    bug: BugFile
    crash: str
    diff: str
    author: str
    date: datetime
    message: str = ""
    trailers: Sequence[str] = ()
    notes: str = ""
    upstream: Upstream | None = None
    cause: CauseCommit | None = None

    @property
    def subject(self) -> str:
        """The subject: the subsystem, and what the patch does, in 75 characters."""
        first = line(self.message.partition("\n")[0]).replace("`", "").rstrip(".")
        if not self.crash and ": " in first:
            return first
        does = _BEGINS.sub("", first, count=1) or f"fix {_DETECTOR.sub('', line(self.crash))}"
        path = re.search(r"(?m)^\+\+\+ b/(\S+)", self.diff)
        area = subsystem((), path[1] if path else "kernel", "")
        named = f"{line(self.upstream.prefix) if self.upstream else area}: {does}"
        return textwrap.shorten(named, SUBJECT, placeholder="...")

    @property
    def mail(self) -> str:
        """The mail; raises as `author_of`."""
        diff = self.upstream.diff if self.upstream else ""
        # A worker's diff names functions and counts lines; its changes must be the same as ours.
        changed = _changes(diff)
        diff = diff if changed and changed == _changes(self.diff) else self.diff
        git = diff.removesuffix("\n")
        if not git.startswith("diff --git "):
            git = _HEADERS.sub(r"diff --git a/\1 b/\2\n\g<0>", git)
        # The template's first line has the fixed date by which tools recognise git format-patch.
        return _MAIL.format(
            author=author_of(self.author),
            recipients="".join(f"{header}\n" for header in self._recipients),
            date=format_datetime(self.date),
            subject=self.subject,
            ident=sha256(f"{self.subject}\n{diff}".encode()).hexdigest()[:20],
            body="\n".join(self._body),
            notes="\n".join(_wrapped(self.notes, "")),
            diff=git,
        )

    @property
    def fixes(self) -> Blamed | None:
        """The commit that introduced the bug, if it wrote lines that the patch changes."""
        blame = self.upstream.blame if self.upstream else []
        if self.cause is not None and self.cause.commit:
            # The commit found by bisection counts, and no other commit replaces it.
            known = (each for each in blame if each.commit.startswith(self.cause.commit[:40]))
            return next(known, None) if len(self.cause.commit) >= 12 else None
        removed = [each for each in blame if each.removed]
        return removed[0] if len(removed) == 1 else None

    @property
    def tags(self) -> list[str]:
        """The tags that follow from facts, in the order of submitting-patches.rst."""
        tags = [line(text) for text in self.bug.references if _REPORT.fullmatch(text)]
        known = next(filter(None, map(_SYZBOT.search, self.bug.references)), None)
        if known:
            ident = known[1] or known[2]
            tags.append(f"Reported-by: syzbot+{ident}@syzkaller.appspotmail.com")
            tags.append(f"Closes: https://syzkaller.appspot.com/bug?extid={ident}")
        if self.fixes:
            tags.insert(0, f'Fixes: {self.fixes.commit[:12]} ("{line(self.fixes.title)}")')
        # A tag of the author's own takes the place of ours.
        named = {text.partition(":")[0] for text in self.trailers}
        own = [text for text in tags if text.partition(":")[0] not in named]
        return [*own, *map(line, self.trailers), *self._stable]

    @property
    def _stable(self) -> list[str]:
        """The tag for stable kernels: short patches of bugs that a released kernel has."""
        release = _VERSION.match(self.upstream.release) if self.upstream else None
        long, tagged = self.diff.count("\n") > _STABLE_LINES, "stable@" in str(self.trailers)
        # No release has a bug that a patch put back.
        if release is None or long or tagged or self.bug.regress is not None:
            return []
        # A bug of a release candidate is in a release only if an older version already has the
        # commit in `Fixes:`.
        tag = self.fixes.tag if self.fixes else ""
        older = tag and not tag.startswith(f"v{release[0]}-")
        if re.search("-rc|-next", release.string) and not older:
            return []
        return ["Cc: stable@vger.kernel.org" + ("" if self.fixes else f" # {release[0]}.x")]

    @property
    def note(self) -> str:
        """What the sender has to know and to do, as Markdown."""
        lines = ["## Before you send it", "", "Nothing was sent. Review it, and sign it off."]
        facts: dict[str, Sequence[str]] = {}
        if (known := self.upstream) is not None:
            facts["Recipients, by the tree's get_maintainer.pl"] = known.recipients
            facts["Findings of checkpatch, sparse and clang-format"] = [
                f"{each.check}: {f'line {each.line}: ' if each.line else ''}{each.message}"
                for each in known.findings
            ]
            if not known.blame:
                facts["Fixes: is not known"] = ["no history of these lines is at hand"]
        for head, texts in facts.items():
            lines += ["", f"{head}:", "", *(f"- {line(text)}" for text in texts or ["none"])]
        return "\n".join([*lines, ""])

    @property
    def _recipients(self) -> list[str]:
        """The headers To, of maintainers, and Cc, of reviewers and lists."""
        named: dict[str, list[str]] = {}
        for text in self.upstream.recipients if self.upstream else ():
            who, _, role = text.partition(" (")
            kind = "To" if role.startswith(("maintainer", "supporter")) else "Cc"
            named.setdefault(kind, []).extend(filter(None, [_mailbox(who)]))
        kinds = sorted((kind for kind, who in named.items() if who), reverse=True)
        return [f"{kind}: " + ",\n ".join(named[kind]) for kind in kinds]

    @property
    def _body(self) -> list[str]:
        """The lines of the message below its subject."""
        if not self.crash:
            # Quoted as in an mbox: `git am` would take such a line for the next mail.
            own = [re.sub("^(?=From )", ">", text) for text in self.message.split("\n")[2:]]
            return [*own, *([""] if own else []), *self.tags]
        text = self.message.partition("\n\n")[2].strip()
        tags = self.tags
        who = "syzbot" if "Reported-by: syzbot" in "".join(tags) else "kGymSuite"
        lines = [f"{who} reports:", "", *_wrapped(self.crash, "  "), ""]
        lines += [*prose(text.replace("`", "")), ""] if text else []
        return [*lines, *tags, *([""] if tags else [])][: None if tags else -1]


def authored(mails: Sequence[Mail]) -> tuple[str, list[str], str]:
    """Return the message of the only patch in some mails, its tags, and its author.

    All are empty if the patch has no message. Raises UserError `several_patches`.
    """
    patches, _ = patch_mails.series(mails)
    if len(patches) != 1:
        raise UserError("several_patches", f"there are {len(patches)} patches: give a single one")
    mail = patches[0]
    *body, last = _PARAGRAPHS.split(_MESSAGE_END.split(mail.text, maxsplit=1)[0].strip())
    tags = last.split("\n") if all(map(_TAG.match, last.split("\n"))) else []
    body = body if tags else [*body, last]
    return "\n\n".join([mail.title, *body]) if mail.title else "", tags, mail.author


def files(mail: str, note: str) -> dict[str, str]:
    """Return the files of a kit by name: the mail, as git format-patch names it, and the note."""
    subject = re.search(r"(?m)^Subject: \[PATCH\] (.*)$", mail)
    name = re.sub(r"[^A-Za-z0-9._]+", "-", subject[1] if subject else "fix").strip("-.")[:52]
    return {f"0001-{name}.patch": mail, "cover-note.md": note}


def prose(text: str) -> list[str]:
    """Wrap a text of a model; keep paragraphs and list items separate."""
    lines: list[str] = []
    for paragraph in _PARAGRAPHS.split(text.replace("\r\n", "\n")):
        items = re.split(r"\n(?=\s*(?:[-*]|\d+[.)]) )", paragraph.strip("\n"))
        wrapped = [part for item in items for part in _wrapped(item, "")]
        if wrapped:
            lines += [*([""] if lines else []), *wrapped]
    return lines


def _wrapped(text: str, indent: str) -> list[str]:
    words = " ".join(_CONTROLS.sub(" ", text).split())
    hang = "  " if re.match(r"(?:[-*]|\d+[.)]) ", words) else ""
    lines = textwrap.wrap(
        words,
        WIDTH - 1,
        initial_indent=indent,
        subsequent_indent=indent + hang,
        # A split path or symbol could not be searched for.
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [_TAKEN.sub(" ", _FORGED.sub(r"\1> ", text)) for text in lines]


def _changes(diff: str) -> Counter[tuple[str, str]] | None:
    """Return the lines that a diff removes and adds, each with its file; None if unreadable."""
    try:
        files = unified_diff.parse(diff, "the patch")
    except UserError:
        return None
    return Counter(
        (file.paths[0], text)
        for file in files
        for hunk in file.hunks
        for text in hunk.readings[0]
        if text[0] in "-+"
    )


def line(text: str) -> str:
    """Return a text as one line without control characters."""
    return " ".join(_CONTROLS.sub(" ", text).split())


def author_of(author: str) -> str:
    """Return a header's value; raise UserError `bad_author`."""
    if mailbox := _mailbox(author):
        return mailbox
    what = f"the author {author!r} is not `Name <name@example.org>`: give --author"
    raise UserError("bad_author", what)


def _mailbox(text: str) -> str:
    """Return a name and address for a header; empty if the address is not plain ASCII."""
    name, address = parseaddr(line(text))
    return formataddr((name, address)) if _ADDRESS.fullmatch(address) else ""
