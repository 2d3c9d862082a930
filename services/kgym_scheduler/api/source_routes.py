"""Kernels' sources: /v1/jobs/ID/source."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Body, Depends, Request, Response
from pydantic import BaseModel

from kgym.api.source import (
    FileLook,
    FileText,
    FolderList,
    FolderLook,
    Look,
    SearchLook,
    SearchResult,
    SymbolLook,
    SymbolResult,
)
from kgym.errors import InfrastructureError
from kgym.web.routing import as_json, described, router
from kgym.web.scopes import Scope
from kgym_scheduler.routing import Core, JobId
from kgym_scheduler.source.search import look_up, search
from kgym_scheduler.source.sources import Sources
from kgym_scheduler.source.view import View

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
readers = router(Scope.READ)
_PATCH = {"edits": [{"file": "fs/open.c", "original": "int fd;", "replacement": "long fd;"}]}


def _body(**values: Any) -> Any:
    """Return the annotation of a request body, with examples."""
    return Body(
        openapi_examples={
            "plain": {"summary": "Unpatched", "value": values},
            "patched": {"summary": "With a patch", "value": values | {"patches": [_PATCH]}},
        }
    )


def _route(what: str, summary: str, answer: type[BaseModel]) -> Callable[[Endpoint], Endpoint]:
    """Return the decorator of a route that reads the source of a job."""
    return readers.post(
        f"/jobs/{{job_id}}/source/{what}",
        tags=["source"],
        **described(summary, answer, 404, 409, 413, 415),
    )


# Answers a look at the source of the job in the path.
Answer = Callable[[Look, Callable[[View], BaseModel]], Awaitable[Response]]


async def _answer(http: Request, scheduler: Core, job_id: JobId) -> Answer:
    sources: Sources | None = http.app.state.sources
    if sources is None:
        raise InfrastructureError("no_sources", "this scheduler has no folder to keep sources in")

    async def answer(look: Look, read: Callable[[View], BaseModel]) -> Response:
        return as_json(await sources.look(scheduler.job, job_id, look, read))

    return answer


Answering = Annotated[Answer, Depends(_answer)]


@_route("file", "Read a file of the source", FileText)
async def read_file(
    answer: Answering, look: Annotated[FileLook, _body(path="fs/open.c", first=1, last=100)]
) -> Response:
    """Return lines of a file as a step's build sees it; links are followed within the tree.

    The tree is that of a successful step of kind `source`, `build` or `check`. If its source
    archive is missing (`source_not_made`), submit the step in the answer's `step`.
    """
    return await answer(look, partial(View.read, look=look))


@_route("folder", "List a folder of the source", FolderList)
async def list_folder(answer: Answering, look: Annotated[FolderLook, _body(path="fs")]) -> Response:
    """List a folder, by default the top one."""
    return await answer(look, partial(View.folder, path=look.path))


@_route("search", "Search the source", SearchResult)
async def search_source(
    answer: Answering,
    look: Annotated[SearchLook, _body(pattern=r"kfree\(\w+->", glob="kernel/**/*.c")],
) -> Response:
    """Return the lines that match a regular expression, by path.

    The search ends after two seconds with the matches so far. Whole words in the expression make it
    fast.
    """
    return await answer(look, partial(search, look=look))


@_route("symbol", "Look up a name in the source", SymbolResult)
async def find_symbol(
    answer: Answering, look: Annotated[SymbolLook, _body(name="do_sys_open")]
) -> Response:
    """Return the definitions, callers and other uses of a C symbol."""
    return await answer(look, partial(look_up, look=look))
