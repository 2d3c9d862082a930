"""Prompts: the templates of `prompts/`, filled with a question's values.

The form is the paper's (CrashFixer, appendices A.5 and A.6), the words are ours. Reports, source
and answers are data that somebody may have written to instruct the model. They stand in prompts as
they are, since the model has to quote them exactly: where they hold a tag of ours, such as
`</code>`, the tags of this prompt get a number that occurs with none of theirs.
"""

import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kgym.configs import PROMPTS
from kgym_crashfixer import examples
from kgym_crashfixer.search.work import Question

if TYPE_CHECKING:
    from jinja2 import Environment

_WORDED_ANEW: dict[str, Any] = {"trace": None, "problem": "", "findings": [], "obstacles": []}
_PARTS = "issue|code|cause|execution|earlier|examples|solution|answer|problem|patches"
# A tag or a file marker of ours, and the number that it has.
_TAG = re.compile(
    rf"<[ \t]*/?[ \t]*(?:{_PARTS})(?:-(?P<part>\d{{1,9}}))?\b"
    r"|^\[(?:start|end)(?:-(?P<file>\d{1,9}))? of ",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is sent: who it is, and what it is asked."""

    purpose: str
    system: str
    text: str
    identity: str = ""
    """Tells the question from all others of a run, and is the same when the run is repeated: the
    debug cycle that asks, and the text without what each kernel words anew (reports, traces)."""
    begins: int = 0
    """Characters with which other questions about the same crash of the same code begin as well:
    providers keep what they have read of it."""


def render(question: Question) -> Prompt:
    """Fill the templates of a question's purpose; what a template names has to be there."""
    templates = _environment()
    template = templates.get_template(f"{question.purpose}/question.md")
    given = _with_examples(question.values)
    mark = _mark(given)
    cause = given.get("cause") is not None
    system = templates.get_template("system.md").render(mark=mark, cause=cause)
    text = template.render(given, mark=mark)
    values = _steady(given)
    steady = template.render(values, mark=_mark(values))
    identity = f"{question.node}\n{steady.strip()}\n"
    text = f"{text.strip()}\n"
    code = f"</code{mark}>\n"
    begins = text.find(code) + len(code) if code in text else 0
    return Prompt(str(question.purpose), system, text, identity, begins)


def _with_examples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the examples themselves, where they are wanted."""
    wanted = bool(values.get("examples"))
    return {**values, "examples": examples.of(values["title"]) if wanted else []}


def _steady(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a template's values without what each boot or compiler words anew."""
    steady = dict(values)
    if "report" in steady:
        steady["report"] = steady["title"]
    steady |= {name: value for name, value in _WORDED_ANEW.items() if name in steady}
    if isinstance(after := steady.get("after"), dict):
        steady["after"] = {**after, "report": after["title"], "trace": None}
    return steady


@functools.cache
def _environment() -> "Environment":
    # Commands that show runs need no templates.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    return Environment(
        loader=FileSystemLoader(PROMPTS),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - no HTML: `_mark` keeps the parts apart
        trim_blocks=True,
        keep_trailing_newline=True,
    )


def _mark(values: Mapping[str, Any]) -> str:
    """Return what a prompt's tags end with, so that its data has none of them; mostly nothing."""
    taken = {number for text in _texts(values) for number in _numbers(text)}
    free = next(number for number in itertools.count() if number not in taken)
    return f"-{free}" if free else ""


def _texts(value: object) -> Iterator[str]:
    """Return all texts in a template's values, the names of files included."""
    match value:
        case str():
            yield value
        case Mapping():
            for name, item in value.items():
                yield from (*_texts(name), *_texts(item))
        case list() | tuple():
            for item in value:
                yield from _texts(item)


@functools.lru_cache(maxsize=256)
def _numbers(text: str) -> frozenset[int]:
    """Return the numbers of the tags in a text; a tag without one has 0."""
    return frozenset(int(tag["part"] or tag["file"] or 0) for tag in _TAG.finditer(text))
