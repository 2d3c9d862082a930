"""Token usage in models' answers, in the formats of several providers. Pure."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import Field, ValidationError

from kgym.api.steps import Strict
from kgym.bench.campaign import Prices


class Used(Strict):
    """The token usage of an answer."""

    input: int = Field(0, ge=0, lt=10**9)
    cached: int = Field(0, ge=0, lt=10**9, description="part of the input")
    output: int = Field(0, ge=0, lt=10**9)

    def dollars(self, prices: Prices) -> float:
        """Return the cost of the tokens."""
        cached = prices.input if prices.cached is None else prices.cached
        fresh = max(self.input - self.cached, 0)
        paid = fresh * prices.input + self.cached * cached + self.output * prices.output
        return paid / 1e6


def used(answer: bytes) -> Used | None:
    """Return the token usage in an answer, in the format of OpenAI, Anthropic or Gemini.

    In a streamed answer, the last value of each field counts. None if the answer has no usage.
    """
    counts: dict[str, int] = {}
    for text in [answer, *_pieces(answer)]:
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            continue
        for place in (message, *(_within(message, name) for name in ("message", "response"))):
            for name in ("usage", "usageMetadata"):
                counts |= _numbers(_within(place, name))
    if not counts:
        return None
    # OpenAI's prompt tokens include cached ones; Anthropic reports cache reads and writes apart.
    fresh = counts.get(
        "prompt_tokens", counts.get("promptTokenCount", counts.get("input_tokens", 0))
    )
    read = counts.get("cache_read_input_tokens", 0)
    written = counts.get("cache_creation_input_tokens", 0)
    try:
        return Used(
            input=fresh + read + written,
            cached=read + counts.get("cached_tokens", counts.get("cachedContentTokenCount", 0)),
            output=counts.get("completion_tokens", counts.get("output_tokens", 0))
            + counts.get("candidatesTokenCount", 0)
            + counts.get("thoughtsTokenCount", 0),
        )
    except ValidationError:
        return None


def is_reply(answer: bytes) -> bool:
    """Return whether this is a completion: lists of models have no `choices` or `content`."""
    return any(
        word in answer for word in (b'"choices"', b'"content"', b'"candidates"', b'"output"')
    )


def _pieces(answer: bytes) -> Iterator[bytes]:
    for line in answer.splitlines():
        # "usage" or "Usage": most events of a stream have none, and are not worth parsing.
        if line.startswith(b"data:") and b"sage" in line:
            yield line[5:].strip()


def _within(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _numbers(usage: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, value in (usage if isinstance(usage, dict) else {}).items():
        if isinstance(value, int) and not isinstance(value, bool):
            counts[name] = value
        elif name in {"prompt_tokens_details", "input_tokens_details"}:
            counts |= {
                key: number for key, number in _numbers(value).items() if key == "cached_tokens"
            }
    return counts
