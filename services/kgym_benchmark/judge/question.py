"""The question to the judge, and how its answer is parsed. Pure.

The inputs are those of Live-kBench section 4.2: the fix with its message, and the agent's patch;
the template is ours. A patch may be written to instruct the judge. If it contains one of our tags,
the tags of this prompt get a number that does not occur in it.
"""

import functools
import hashlib
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgym.bench.bug_record import BugRecord
from kgym.configs import PROMPTS

if TYPE_CHECKING:
    from jinja2 import Environment

# Characters of a patch shown to the judge; a longer one is cut.
PATCH = 100_000
MESSAGE = 20_000
_TAG = re.compile(r"<[ \t]*/?[ \t]*(?:bug|message|patch)(?:-(\d{1,9}))?\b", re.IGNORECASE)
_VERDICT = re.compile(r"^[ \t*`#]*VERDICT:[ \t*`]*(equivalent|discrepant)\b", re.M | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a judge; `digest` identifies it regardless of the order of the patches."""

    system: str
    text: str
    digest: str


def question(bug: BugRecord, diff: str, *, vote: int, blind: bool) -> Question | None:
    """Return the question about a patch; None if the developers' patch is unknown.

    A blind judge does not know which patch is the developers'. Their order changes with the vote,
    and the message is left out, since it would reveal which is which.
    """
    fix = bug.patch.diff if bug.patch is not None else None
    if fix is None or bug.patch is None:
        return None
    message = None if blind else (bug.patch.message or "")[:MESSAGE].strip()
    digest = hashlib.sha256("\0".join((fix, diff, message or "", str(blind))).encode()).hexdigest()
    sides = [_shown(fix), _shown(diff)]
    names = ["one", "other"] if blind else ["of the developers", "to be judged"]
    # Derived from the digest, so that a continued judging asks the same questions.
    if blind and int(hashlib.sha256(f"{digest} {vote}".encode()).hexdigest(), 16) % 2:
        sides.reverse()
    mark = _mark((*sides, bug.title, message or ""))
    values = {"title": bug.title, "message": message, "mark": mark}
    values |= {"patches": list(zip(names, sides, strict=True))}  # type: ignore[dict-item]
    templates = _environment()
    system = templates.get_template("judge/system.md").render(mark=mark)
    text = templates.get_template("judge/question.md").render(values)
    return Question(system.strip(), f"{text.strip()}\n", digest)


def verdict(answer: str) -> bool | None:
    """Return whether the answer's last verdict is "equivalent"; None without a verdict."""
    verdicts = _VERDICT.findall(answer[-100_000:])
    return verdicts[-1].lower() == "equivalent" if verdicts else None


def _shown(patch: str) -> str:
    """Return a patch as shown to the judge, cut with a note if it is too long."""
    rest = len(patch) - PATCH
    return patch if rest <= 0 else f"{patch[:PATCH]}\n[cut: {rest} characters more]\n"


def _mark(texts: Iterable[str]) -> str:
    taken = {int(tag[1] or 0) for text in texts for tag in _TAG.finditer(text)}
    free = next(number for number in itertools.count() if number not in taken)
    return f"-{free}" if free else ""


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - takes time

    return Environment(
        loader=FileSystemLoader(PROMPTS),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - no HTML: `_mark` keeps the parts apart
        trim_blocks=True,
        lstrip_blocks=True,
    )
