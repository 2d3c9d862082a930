"""The rules of `configs/scrutiny.toml`, and findings on what a patch hides from detectors."""

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from pydantic import Field

from kgym.api.steps import Finding, Severity, Strict
from kgym.configs import CONFIGS


class Words(Strict):
    """Words of the source; `note` if honest fixes use them, too."""

    reason: str
    why: str
    note: bool = False
    words: list[str] = Field(min_length=1)


class Symbols(Strict):
    """Symbols of the object code; those in `written` may be read."""

    reason: str
    why: str
    note: bool = False
    symbols: list[str] = []
    written: list[str] = []


class Paths(Strict):
    """Files that no fix of a bug elsewhere has to touch."""

    reason: str
    why: str
    paths: list[str] = Field(min_length=1)


class Rules(Strict):
    """All rules, each a list of regular expressions that match as a whole."""

    words: list[Words]
    symbols: list[Symbols]
    paths: list[Paths]


@cache
def rules(path: Path = CONFIGS / "scrutiny.toml") -> Rules:
    """Return the shipped rules."""
    return Rules.model_validate(tomllib.loads(path.read_text()))


def matching(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the names that match one of the patterns, in their order."""
    pattern = _pattern("|".join(f"(?:{expression})" for expression in patterns) or "(?!)")
    return [name for name in names if pattern.fullmatch(name)]


@cache
def _pattern(alternatives: str) -> re.Pattern[str]:
    return re.compile(alternatives, re.ASCII)


def detector(
    reason: str,
    severity: Severity,
    message: str,
    file: str | None = None,
    function: str | None = None,
) -> Finding:
    """Return a finding on whether the kernel can still report a bug."""
    place = {"file": file, "function": function}
    return Finding(check="detector", severity=severity, reason=reason, message=message, **place)
