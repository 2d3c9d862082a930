"""Benchmarks and what agents made of them: /v1/benchmarks."""

from typing import Annotated

from fastapi import Body, Path, Query, Request, Response

from kgym.api.benchmarks.attempts import AttemptRecord, BugId
from kgym.api.benchmarks.bugs import PublishedBug
from kgym.api.benchmarks.publication import (
    AttemptBatch,
    AttemptFilter,
    AttemptPage,
    BenchmarkAbout,
    BenchmarkFilter,
    BenchmarkName,
    BenchmarkPage,
    BenchmarkView,
    BugBatch,
    FactsFilter,
    FactsPage,
    Published,
)
from kgym.web.problems import documented
from kgym.web.routing import as_json, router
from kgym.web.scopes import Scope
from kgym.web.strict_requests import StrictRoute
from kgym_scheduler.api.routing import Core, caller_of


class _Route(StrictRoute):
    values = 300_000  # two hundred bugs with their files and functions


Named = Annotated[BenchmarkName, Path()]
OfBug = Annotated[BugId, Path(description="of the bug")]
Number = Annotated[int, Path(ge=0, lt=1 << 31, description="of the setup, from 0")]
Run = Annotated[int, Path(ge=1, lt=1 << 31, description="of the setup on the bug, from 1")]

readers = router(Scope.READ)
submitters = router(Scope.SUBMIT, _Route)


@readers.get(
    "/benchmarks",
    summary="List benchmarks",
    tags=["benchmarks"],
    response_model=BenchmarkPage,
    responses=documented(),
)
async def list_benchmarks(scheduler: Core, wanted: Annotated[BenchmarkFilter, Query()]) -> Response:
    """Show benchmarks, by name. Give `next` as `cursor` to see the page that follows."""
    return as_json(await scheduler.benchmarks.page(wanted))


@readers.get(
    "/benchmarks/{name}",
    summary="Show a benchmark",
    tags=["benchmarks"],
    response_model=BenchmarkView,
    responses=documented(404),
)
async def show_benchmark(scheduler: Core, name: Named) -> Response:
    """Show its dataset, and who has tried; `version` tells whether anything has changed."""
    return as_json(await scheduler.benchmarks.get(name))


@readers.get(
    "/benchmarks/{name}/bugs",
    summary="List a benchmark's bugs",
    tags=["benchmarks"],
    response_model=FactsPage,
    responses=documented(404),
)
async def list_bugs(
    scheduler: Core, name: Named, wanted: Annotated[FactsFilter, Query()]
) -> Response:
    """Show what is known of its bugs, by id, without the long texts."""
    return as_json(await scheduler.benchmarks.bugs(name, wanted))


@readers.get(
    "/benchmarks/{name}/bugs/{bug}",
    summary="Show a bug of a benchmark",
    tags=["benchmarks"],
    response_model=PublishedBug,
    responses=documented(404),
)
async def show_bug(scheduler: Core, name: Named, bug: OfBug) -> Response:
    """Show what is known of a bug, and how the kernel's developers have fixed it."""
    return as_json(await scheduler.benchmarks.bug(name, bug))


@readers.get(
    "/benchmarks/{name}/attempts",
    summary="List a benchmark's attempts",
    tags=["benchmarks"],
    response_model=AttemptPage,
    responses=documented(404),
)
async def list_attempts(
    scheduler: Core, name: Named, wanted: Annotated[AttemptFilter, Query()]
) -> Response:
    """Show attempts without their patches, those changed first first.

    Who has read up to a version reads on with the cursor `VERSION-0`. An attempt that has changed
    comes again.
    """
    page = await scheduler.benchmarks.attempts(name, wanted)
    return Response(page, media_type="application/json")


@readers.get(
    "/benchmarks/{name}/bugs/{bug}/attempts/{setup}/{run}",
    summary="Show an attempt",
    tags=["benchmarks"],
    response_model=AttemptRecord,
    responses=documented(404),
)
async def show_attempt(
    scheduler: Core, name: Named, bug: OfBug, setup: Number, run: Run
) -> Response:
    """Show an attempt with its patch."""
    return as_json(await scheduler.benchmarks.attempt(name, bug, setup, run))


@submitters.put(
    "/benchmarks/{name}",
    summary="Publish a benchmark",
    tags=["benchmarks"],
    response_model=BenchmarkView,
    responses=documented(
        409,
        413,
        415,
        answers={201: {"model": BenchmarkView, "description": "It is new"}},
    ),
)
async def put_benchmark(
    http: Request, scheduler: Core, name: Named, about: Annotated[BenchmarkAbout, Body()]
) -> Response:
    """Add a benchmark, or find it there with the same dataset: what was published never changes."""
    new = await scheduler.benchmarks.create(name, about, caller_of(http).name)
    return as_json(await scheduler.benchmarks.get(name), 201 if new else 200)


@submitters.put(
    "/benchmarks/{name}/bugs",
    summary="Publish bugs of a benchmark",
    tags=["benchmarks"],
    response_model=Published,
    responses=documented(404, 413, 415),
)
async def put_bugs(
    http: Request, scheduler: Core, name: Named, batch: Annotated[BugBatch, Body()]
) -> Response:
    """Add bugs; those that are there under the same id are replaced.

    Only the benchmark's submitter may, and `admin`.
    """
    owner = await _counted(http)
    return as_json(await scheduler.benchmarks.put_bugs(name, batch.bugs, owner))


@submitters.put(
    "/benchmarks/{name}/attempts",
    summary="Publish attempts on a benchmark",
    tags=["benchmarks"],
    response_model=Published,
    responses=documented(404, 413, 415),
)
async def put_attempts(
    http: Request, scheduler: Core, name: Named, batch: Annotated[AttemptBatch, Body()]
) -> Response:
    """Add attempts; those that are there of the same bug, setup and run are replaced.

    Only the benchmark's submitter may, and `admin`.
    """
    owner = await _counted(http)
    return as_json(await scheduler.benchmarks.put_attempts(name, batch.attempts, owner))


@submitters.delete(
    "/benchmarks/{name}",
    summary="Remove a benchmark",
    tags=["benchmarks"],
    status_code=204,
    responses=documented(404),
)
async def remove_benchmark(http: Request, scheduler: Core, name: Named) -> Response:
    """Remove a benchmark with its bugs and attempts; its submitter may, and `admin`."""
    await scheduler.benchmarks.remove(name, caller_of(http).owner)
    return Response(status_code=204)


async def _counted(http: Request) -> str | None:
    """Count the bytes of what a caller hands in; return whose benchmarks it may change."""
    caller = caller_of(http)
    if caller.owner is not None:
        http.app.state.volume.take(caller.name, len(await http.body()))
    return caller.owner
