"""Example patches by class of crash, for prompts (RGym, section 2, Simple Agent).

They are the files `prompts/examples/*.toml`, made up for this: none is the fix of a real bug, which
an agent that is measured could know from here.
"""

import functools
import tomllib

from pydantic import Field

from kgym.api.steps import Strict
from kgym.configs import PROMPTS


class Example(Strict):
    """A function before and after its patch, and what was wrong."""

    about: str
    before: str
    after: str


class CrashClass(Strict):
    """Examples of a class of crashes; `titles` are words by which titles tell of it."""

    titles: list[str] = Field(min_length=1)
    patches: list[Example] = Field(min_length=1)


def of(title: str) -> list[dict[str, str]]:
    """Return the examples for a crash of this title, of the first class that fits; maybe none."""
    lowered = title.lower()
    for crash_class in classes().values():
        if any(word.lower() in lowered for word in crash_class.titles):
            return [patch.model_dump() for patch in crash_class.patches]
    return []


@functools.cache
def classes() -> dict[str, CrashClass]:
    """Return the classes that have examples, by name, in the order in which they are tried."""
    return {
        path.stem: CrashClass.model_validate(tomllib.loads(path.read_text()))
        for path in sorted((PROMPTS / "examples").glob("*.toml"))
    }
