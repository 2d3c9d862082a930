"""A REST client of an agent service."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from httpx_sse import aconnect_sse
from pydantic import BaseModel, TypeAdapter

from kgym.api.agent.nodes import Node
from kgym.api.agent.report import Report
from kgym.api.agent.runs import CallView, Event, Limits, RunFilter, RunPage, RunRequest, RunView
from kgym.api.agent.steps import CallPage, CallViewPage, RunStep
from kgym.client import protocol
from kgym.errors import InfrastructureError

M = TypeVar("M", bound=BaseModel)
_STEPS = TypeAdapter(list[RunStep])


class AgentClient:
    """An agent at a URL. Raises Refused for refused requests, InfrastructureError otherwise."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url
        self._http = httpx.AsyncClient(**protocol.options(url, token))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the client cannot be used after that."""
        await self._http.aclose()

    async def start(self, request: RunRequest, key: str | None = None) -> int:
        """Start a run; return its number. An idempotency key starts at most one run."""
        headers = {"Idempotency-Key": key} if key else {}
        body = request.model_dump(mode="json")
        answer = await self._ask("POST", "runs", body=body, headers=headers)
        return RunView.model_validate_json(answer).id

    async def resume(self, run: int, limits: Limits | None = None) -> None:
        """Resume a run."""
        body = {"limits": limits.model_dump(mode="json") if limits else None}
        await self._ask("POST", f"runs/{run}/resume", body=body)

    async def stop(self, run: int) -> None:
        """Stop a run."""
        await self._ask("POST", f"runs/{run}/stop")

    async def page(
        self, before: int | None, limit: int, wanted: RunFilter | None = None
    ) -> RunPage:
        """Return runs, the newest first."""
        query = {"cursor": before, "limit": limit, **(wanted.model_dump() if wanted else {})}
        return await self._get("runs", RunPage, query)

    async def show(self, run: int) -> RunView:
        """Return a run."""
        return await self._get(f"runs/{run}", RunView)

    async def node(self, run: int, name: str) -> Node:
        """Return a debug cycle whole."""
        return await self._get(f"runs/{run}/nodes/{_quoted(name)}", Node)

    async def calls(self, run: int, node: str | None = None) -> list[CallView]:
        """Return the questions of a node, or of the whole run, and their answers."""
        calls: list[CallView] = []
        cursor: int | None = 0
        while cursor is not None:
            query = {"node": node, "cursor": cursor}
            page = await self._get(f"runs/{run}/calls", CallViewPage, query)
            calls += page.calls
            cursor = page.next
        return calls

    async def call(self, run: int, name: str) -> CallView:
        """Return a question, and its answer."""
        return await self._get(f"runs/{run}/calls/{_quoted(name)}", CallView)

    async def steps(self, run: int, node: str) -> list[RunStep]:
        """Return what a debug cycle did, in the order in which it began."""
        return _STEPS.validate_json(await self._ask("GET", f"runs/{run}/steps", {"node": node}))

    async def search(
        self,
        run: int,
        text: str | None = None,
        node: str | None = None,
        purpose: str | None = None,
        cursor: int = 0,
        limit: int = 50,
    ) -> CallPage:
        """Return questions that contain a text, or whose answers do; without a text, all."""
        query = {"text": text, "node": node, "purpose": purpose, "cursor": cursor, "limit": limit}
        return await self._get(f"runs/{run}/search", CallPage, query)

    async def follow(self, run: int, after: int = 0, attempts: int = 5) -> AsyncIterator[Event]:
        """Yield events until the run ends; reconnect if the connection is lost, without repeats.

        Args:
            run: Its number.
            after: The number of the last event that you know.
            attempts: Consecutive failed connections until an error; with 1, the caller reconnects.
        """
        failed = 0
        while True:
            headers = {"Last-Event-ID": str(after)}
            path = f"runs/{run}/events"
            try:
                async with aconnect_sse(
                    self._http, "GET", path, headers=headers, timeout=protocol.FOLLOWING
                ) as stream:
                    if stream.response.is_error:
                        await stream.response.aread()
                    protocol.checked(stream.response)
                    # A lost connection is reopened after the last received event.
                    async for sent in stream.aiter_sse():
                        if sent.event == "end":
                            return
                        if not sent.data:  # a ping, which comes with the last event's number
                            continue
                        event = Event.model_validate_json(sent.data)
                        after, failed = event.number, 0
                        yield event
            except httpx.TransportError as error:
                failed += 1
                if failed == attempts:
                    raise self._away(error) from error

    async def patch(self, run: int, number: int = 1, author: str | None = None) -> str:
        """Return a fix as `git am` takes it."""
        wanted = {"author": author}
        return (await self._ask("GET", f"runs/{run}/fixes/{number}/patch", wanted)).decode()

    async def report(self, run: int, number: int = 1) -> Report:
        """Return the evidence for a fix."""
        return await self._get(f"runs/{run}/fixes/{number}/report", Report)

    async def _get(
        self, path: str, answer: type[M], query: Mapping[str, object] | None = None
    ) -> M:
        return answer.model_validate_json(await self._ask("GET", path, query))

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        given = {name: str(value) for name, value in (query or {}).items() if value is not None}
        try:
            answer = await self._http.request(
                method, path, params=given, json=body, headers=headers
            )
        except httpx.TransportError as error:
            raise self._away(error) from error
        return protocol.checked(answer).content

    def _away(self, error: Exception) -> InfrastructureError:
        cause = str(error) or type(error).__name__
        return InfrastructureError(
            "agent_away", f"no answer from the agent at {self._url}: {cause}"
        )


def _quoted(name: str) -> str:
    return quote(name, safe="")
