"""The question to the judge, and how its answer is parsed. Pure.

The inputs are those of Live-kBench section 4.2: the fix with its message, and the agent's patch;
the template is ours. A patch may be written to instruct the judge. The tags around it therefore end
with a hash of all that they enclose, which nothing inside can contain.
"""

import functools
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgym.bench.bug_record import BugRecord
from kgym.configs import PROMPTS

if TYPE_CHECKING:
    from jinja2 import Environment

# Maximum characters of a patch that is judged: none is cut, since the rest could do anything.
PATCH = 100_000
MESSAGE = 20_000
_VERDICT = re.compile(r"^[ \t*`#]*VERDICT:[ \t*`]*(equivalent|discrepant)\b", re.M | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a judge; `digest` identifies it regardless of the order of the patches."""

    system: str
    text: str
    digest: str


def question(bug: BugRecord, diff: str, *, vote: int, blind: bool) -> Question | None:
    """Return the question about a patch; None if the developers' patch is unknown or too long.

    A blind judge does not know which patch is the developers'. Their order changes with the vote,
    and the message is left out, since it would reveal which is which.
    """
    fix = bug.patch.diff if bug.patch is not None else None
    if fix is None or bug.patch is None or len(fix) > PATCH:
        return None
    message = None if blind else (bug.patch.message or "")[:MESSAGE].strip()
    digest = hashlib.sha256("\0".join((fix, diff, message or "", str(blind))).encode()).hexdigest()
    sides = [fix, diff]
    names = ["one", "other"] if blind else ["of the developers", "to be judged"]
    # Derived from the digest, so that a continued judging asks the same questions.
    if blind and int(hashlib.sha256(f"{digest} {vote}".encode()).hexdigest(), 16) % 2:
        sides.reverse()
    mark = "-" + hashlib.sha256("\0".join((digest, bug.title)).encode()).hexdigest()[:12]
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


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - takes time

    return Environment(
        loader=FileSystemLoader(PROMPTS),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - no HTML: their tags keep the parts apart
        trim_blocks=True,
        lstrip_blocks=True,
    )
