"""Prompts: the templates of `prompts/`, filled with a question's values, and example patches.

The form is the paper's (CrashFixer, appendices A.5 and A.6), the wording is ours. Reports, source
and answers may contain instructions to the model. Prompts quote them unchanged, since edits have to
quote them exactly: if they contain a tag of ours, such as `</code>`, the tags of this prompt get a
number that the data lacks. Whether a model follows instructions in data is open; its tools reach
only the jobs of its own bug.
"""

import functools
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field

from kgym.api.steps import Strict
from kgym.configs import PROMPTS
from kgym_crashfixer.search.work import Question

if TYPE_CHECKING:
    from jinja2 import Environment

_WORDED_ANEW: dict[str, Any] = {"trace": None, "problem": "", "findings": [], "obstacles": []}
_PARTS = "issue|program|code|cause|execution|earlier|examples|solution|answer|problem|patches"
# A tag or a file marker of ours, with its number. Possessive: spaces without end take linear time.
_TAG = re.compile(
    rf"<[\s/]*+(?:{_PARTS})(?:-(?P<part>\d{{1,9}}))?\b"
    r"|^\[(?:start|end)(?:-(?P<file>\d{1,9}))? of ",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question as text: the system prompt and the prompt itself."""

    purpose: str
    system: str
    text: str
    identity: str = ""
    """Key of the question in a run, the same when the run is repeated: the debug cycle, and the
    text without parts that every kernel words anew (reports, traces)."""
    begins: int = 0
    """Characters of the prefix that questions about the same crash of the same code share:
    providers cache it, and charge less for it."""


class Example(Strict):
    """An example: a function before and after its patch, and what was wrong."""

    about: str
    before: str
    after: str


class CrashClass(Strict):
    """Examples for a class of crashes, which one of the words in `titles` identifies."""

    titles: list[str] = Field(min_length=1)
    patches: list[Example] = Field(min_length=1)


def render(question: Question) -> Prompt:
    """Fill the templates of a question's purpose; a missing value is an error."""
    templates = environment()
    template = templates.get_template(f"{question.purpose}/question.md")
    given = _with_examples(question.values)
    mark = _mark(given)
    system = templates.get_template("system.md").render(mark=mark)
    text = template.render(given, mark=mark)
    values = _steady(given)
    steady = template.render(values, mark=_mark(values))
    identity = f"{question.node}\n{steady.strip()}\n"
    text = f"{text.strip()}\n"
    # Templates begin with report and code, so that providers can cache this prefix.
    code = f"</code{mark}>\n"
    begins = text.find(code) + len(code) if code in text else 0
    return Prompt(str(question.purpose), system, text, identity, begins)


def _with_examples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the option `examples` by the examples."""
    wanted = bool(values.get("examples"))
    return {**values, "examples": examples(values["title"]) if wanted else []}


def _steady(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a template's values without texts that every boot or compiler words anew."""
    steady = dict(values)
    if "report" in steady:
        steady["report"] = steady["title"]
    steady |= {name: value for name, value in _WORDED_ANEW.items() if name in steady}
    if isinstance(after := steady.get("after"), dict):
        steady["after"] = {**after, "report": after["title"], "trace": None}
    return steady


@functools.cache
def environment() -> "Environment":
    """Return the templates of prompts, and of what runs hand over."""
    # Imported here, as commands that only show runs need no templates.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    return Environment(
        loader=FileSystemLoader(PROMPTS),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - no HTML: `_mark` keeps the parts apart
        trim_blocks=True,
        keep_trailing_newline=True,
    )


def _mark(values: Mapping[str, Any]) -> str:
    """Return the suffix of a prompt's tags that none of its data contains; usually none."""
    taken = {number for text in _texts(values) for number in _numbers(text)}
    free = next(number for number in itertools.count() if number not in taken)
    return f"-{free}" if free else ""


def _texts(value: object) -> Iterator[str]:
    """Yield all texts in a template's values, including file names."""
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


def examples(title: str) -> list[dict[str, str]]:
    """Return the examples of the first class that fits a crash title (RGym, section 2)."""
    lowered = title.lower()
    for crash_class in classes().values():
        if any(word.lower() in lowered for word in crash_class.titles):
            return [patch.model_dump() for patch in crash_class.patches]
    return []


@functools.cache
def classes() -> dict[str, CrashClass]:
    """Return the classes with examples by name, in the order in which they are tried."""
    # All examples are made up: agents are measured on the shipped bugs, whose fixes they must not
    # learn here.
    return {
        path.stem: CrashClass.model_validate(tomllib.loads(path.read_text()))
        for path in sorted((PROMPTS / "examples").glob("*.toml"))
    }
