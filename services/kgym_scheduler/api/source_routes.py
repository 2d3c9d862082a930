"""Kernels' sources: /v1/jobs/ID/source."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Body, Request, Response
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
from kgym.web.problems import documented
from kgym.web.routing import as_json, router
from kgym.web.scopes import Scope
from kgym_scheduler.api.routing import Core, JobId
from kgym_scheduler.scheduler import Scheduler
from kgym_scheduler.source.search import look_up, search
from kgym_scheduler.source.sources import Sources
from kgym_scheduler.source.view import View

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
readers = router(Scope.READ)
_PATCH = {"edits": [{"file": "fs/open.c", "original": "int fd;", "replacement": "long fd;"}]}


def _body(**values: Any) -> Any:
    """Return the annotation of a body, with an example."""
    return Body(
        openapi_examples={
            "plain": {"summary": "As it is", "value": values},
            "patched": {"summary": "With a patch", "value": values | {"patches": [_PATCH]}},
        }
    )


def _route(what: str, summary: str, answer: type[BaseModel]) -> Callable[[Endpoint], Endpoint]:
    """Return the decorator of a route that looks at the source of a job."""
    return readers.post(
        f"/jobs/{{job_id}}/source/{what}",
        summary=summary,
        tags=["source"],
        response_model=answer,
        responses=documented(404, 409, 413, 415),
    )


async def _look(
    http: Request,
    scheduler: Scheduler,
    job_id: int,
    wanted: Look,
    what: Callable[[View], BaseModel],
) -> Response:
    sources: Sources | None = http.app.state.sources
    if sources is None:
        raise InfrastructureError("no_sources", "this scheduler has no folder to keep sources in")
    return as_json(await sources.look(scheduler.job, job_id, wanted, what))


@_route("file", "Read a file of the source", FileText)
async def read_file(
    http: Request,
    scheduler: Core,
    job_id: JobId,
    wanted: Annotated[FileLook, _body(path="fs/open.c", first=1, last=100)],
) -> Response:
    """Show lines of a file, as the build of a step sees it; links are followed within the tree.

    The tree is that of a step of kind `source`, `build` or `check` that has succeeded. If its
    source is not readable yet (`source_not_made`), `step` in the answer is the step to submit.
    """
    return await _look(http, scheduler, job_id, wanted, partial(View.read, wanted=wanted))


@_route("folder", "List a folder of the source", FolderList)
async def list_folder(
    http: Request, scheduler: Core, job_id: JobId, wanted: Annotated[FolderLook, _body(path="fs")]
) -> Response:
    """Show what is in a folder; without `path`, in the top one."""
    return await _look(http, scheduler, job_id, wanted, partial(View.folder, path=wanted.path))


@_route("search", "Search the source", SearchResult)
async def search_source(
    http: Request,
    scheduler: Core,
    job_id: JobId,
    wanted: Annotated[SearchLook, _body(pattern=r"kfree\(\w+->", glob="kernel/**/*.c")],
) -> Response:
    """Show the lines that match a regular expression, by path.

    After two seconds it ends, with what was found. Whole words in the expression make it fast.
    """
    return await _look(http, scheduler, job_id, wanted, partial(search, wanted=wanted))


@_route("symbol", "Look up a name in the source", SymbolResult)
async def find_symbol(
    http: Request,
    scheduler: Core,
    job_id: JobId,
    wanted: Annotated[SymbolLook, _body(name="do_sys_open")],
) -> Response:
    """Show where a name of C is defined, who calls it, and where else it is named."""
    return await _look(http, scheduler, job_id, wanted, partial(look_up, wanted=wanted))
