"""The blocking client: it runs an `AsyncClient` in a thread and waits for it.

So each call is implemented once. Ctrl-C cancels the call.
"""

import asyncio
import functools
import inspect
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import GenericAlias
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, get_args

from kgym.client.async_client import AsyncClient

P = ParamSpec("P")
T = TypeVar("T")
_END = object()


class _Portal:
    """A thread whose event loop runs one `AsyncClient`."""

    def __init__(self, base_url: str, token: str | None) -> None:
        self.process = os.getpid()
        self.client = AsyncClient(base_url, token)
        self._stop = asyncio.Event()
        started: Future[asyncio.AbstractEventLoop] = Future()
        # A daemon thread, so that a program can end without closing its client.
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="kgym-client", daemon=True
        )
        self._thread.start()
        self.loop = started.result()

    async def _serve(self, started: "Future[asyncio.AbstractEventLoop]") -> None:
        started.set_result(asyncio.get_running_loop())
        async with self.client:
            await self._stop.wait()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine that runs in the thread."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # has no effect unless this wait was interrupted
            raise

    def close(self) -> None:
        """End the thread; its connections are closed, and unfinished work is cancelled."""
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


def _awaited(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Client", P], T]:
    """Return the blocking form of a method of `AsyncClient`."""

    @functools.wraps(method)
    def call(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        portal = client._running()
        return portal.wait(method(portal.client, *args, **kwargs))

    return call


def _iterated(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[T]],
) -> Callable[Concatenate["Client", P], Iterator[T]]:
    """Return the blocking form of a generator of `AsyncClient`."""

    @functools.wraps(method)
    def iterate(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        portal = client._running()
        items = method(portal.client, *args, **kwargs)
        try:
            while (item := portal.wait(_next(items))) is not _END:
                yield item
        finally:
            # Not awaited: the thread no longer runs while the interpreter shuts down.
            if portal.loop.is_running() and not sys.is_finalizing():
                asyncio.run_coroutine_threadsafe(_close(items), portal.loop)

    signature = inspect.signature(method)
    returned = GenericAlias(Iterator, get_args(signature.return_annotation))
    iterate.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    return iterate


async def _next(items: AsyncIterator[T]) -> Any:
    return await anext(items, _END)


async def _close(items: Any) -> None:
    await items.aclose()


class Client:
    """A connection to the scheduler at `base_url`, such as `http://127.0.0.1:8420`.

    Use it as a context manager, or call `close`. It is thread-safe, and can be used after a fork,
    with new connections.

    Requests over the rate limit (429) are repeated after the time that the scheduler names, for up
    to a minute; requests during an outage (503) for up to 20 s. Every method raises:

    - `Refused` if the request is invalid or not allowed: repeating it cannot help;
    - `ServerFailed` if the scheduler failed;
    - `InfrastructureError` with the reason `scheduler_unreachable` without an answer.

    Args:
        base_url: The scheduler's URL.
        token: A token from `kgym token create`; None if none is needed.
    """

    def __init__(self, base_url: str, token: str | None = None) -> None:
        self._base_url, self._token = base_url, token
        self._lock = threading.Lock()
        self._portal: _Portal | None = None
        self._closed = False

    def _running(self) -> _Portal:
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            # A forked process has only the thread that forked.
            if self._portal is None or self._portal.process != os.getpid():
                self._portal = _Portal(self._base_url, self._token)
            return self._portal

    def close(self) -> None:
        """Close the connections; the client cannot be used after that."""
        with self._lock:
            self._closed = True
            portal, self._portal = self._portal, None
        if portal is not None and portal.process == os.getpid():
            portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    submit = _awaited(AsyncClient.submit)
    submit_all = _awaited(AsyncClient.submit_all)
    job = _awaited(AsyncClient.job)
    page = _awaited(AsyncClient.page)
    jobs = _iterated(AsyncClient.jobs)
    tag = _awaited(AsyncClient.tag)
    restart = _awaited(AsyncClient.restart)
    abort = _awaited(AsyncClient.abort)
    abort_all = _awaited(AsyncClient.abort_all)
    restart_all = _awaited(AsyncClient.restart_all)
    count = _awaited(AsyncClient.count)
    wait = _awaited(AsyncClient.wait)
    log = _awaited(AsyncClient.log)
    log_after = _awaited(AsyncClient.log_after)
    read_log = _iterated(AsyncClient.read_log)
    events = _iterated(AsyncClient.events)
    groups = _iterated(AsyncClient.groups)
    group = _awaited(AsyncClient.group)
    group_patches = _iterated(AsyncClient.group_patches)
    abort_group = _awaited(AsyncClient.abort_group)
    artifacts = _awaited(AsyncClient.artifacts)
    read_artifact = _iterated(AsyncClient.read_artifact)
    download = _awaited(AsyncClient.download)
    read_source = _awaited(AsyncClient.read_source)
    list_source = _awaited(AsyncClient.list_source)
    search_source = _awaited(AsyncClient.search_source)
    find_symbol = _awaited(AsyncClient.find_symbol)
    workers = _awaited(AsyncClient.workers)
    drain = _awaited(AsyncClient.drain)
    statistics = _awaited(AsyncClient.statistics)
    bugs = _awaited(AsyncClient.bugs)
    suitecache = _awaited(AsyncClient.suitecache)
    suitecache_entry = _awaited(AsyncClient.suitecache_entry)
    drop_entry = _awaited(AsyncClient.drop_entry)
    queues = _awaited(AsyncClient.queues)
    storage = _awaited(AsyncClient.storage)
    changes = _iterated(AsyncClient.changes)
    change_page = _awaited(AsyncClient.change_page)
