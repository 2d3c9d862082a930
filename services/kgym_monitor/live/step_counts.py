"""What steps came to over time, asked of the scheduler once for all pages."""

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kgym.client import AsyncClient
from kgym_monitor.pages.step_history import SPANS, Span, StepHistory, history

FRESH_SECONDS = 30.0
"""How long an answer is shown: the scheduler counts once a minute, and an answer costs it some
60 ms of processor time."""


@dataclass(slots=True)
class _Kept:
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    read_at: float = float("-inf")
    """By the monotonic clock."""
    history: StepHistory | None = None


class StepCounts:
    """The history of each span, as it was at most FRESH_SECONDS ago."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._kept = {name: _Kept() for name in SPANS}

    async def of(self, span: Span) -> StepHistory:
        """Return the history of a span; raises KgymError as the client does."""
        kept = self._kept[span.name]
        async with kept.asking:
            if kept.history is None or time.monotonic() - kept.read_at >= FRESH_SECONDS:
                told = await self._client.statistics(span.wanted(datetime.now(UTC)))
                kept.history, kept.read_at = history(span, told), time.monotonic()
            return kept.history
