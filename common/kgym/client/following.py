"""Streams of events that are followed across lost connections, without network I/O."""

from typing import Protocol, TypeVar

from httpx_sse import ServerSentEvent

from kgym.api.changes import Change
from kgym.api.jobs import JobEvent
from kgym.client.protocol import RECONNECTS, Retries

Event_co = TypeVar("Event_co", covariant=True)


class Followed(Protocol[Event_co]):
    """A stream of events that goes on across lost connections."""

    done: bool
    """Whether no more will come."""
    path: str
    retries: Retries

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the next request."""

    def take(self, message: ServerSentEvent) -> Event_co | None:
        """Return the event in the message, if it holds one."""


class Feed:
    """A job's events, up to the one that was received last."""

    def __init__(self, job_id: int, last: int) -> None:
        self.path = f"/jobs/{job_id}/events"
        self.done = False
        self.retries = Retries()
        self._last = last

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the next request."""
        return {"Accept": "text/event-stream", "Last-Event-ID": str(self._last)}

    def take(self, message: ServerSentEvent) -> JobEvent | None:
        """Return the event in the message, if it holds one; `done` says that no more will come."""
        if message.event == "end":
            self.done = True
            return None
        if not message.data:  # httpx-sse makes one of a keep-alive comment, too
            return None
        event = JobEvent.model_validate_json(message.data)
        self._last = event.id
        return event


class ChangeFeed:
    """The changes of all jobs, up to the one that was received last; it does not end."""

    def __init__(self, after: str | None, reconnects: int = RECONNECTS) -> None:
        self.path = "/changes"
        self.done = False
        self.retries = Retries(most=reconnects)
        self._last = after

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the next request."""
        since = {} if self._last is None else {"Last-Event-ID": self._last}
        return {"Accept": "text/event-stream", **since}

    def take(self, message: ServerSentEvent) -> Change | None:
        """Return the change in the message, if it holds one."""
        if not message.data:
            self._last = message.id or self._last
            return None
        change = Change.model_validate_json(message.data)
        if change.kind != "worker":
            self._last = change.cursor
        return change
