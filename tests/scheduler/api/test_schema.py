"""Whatever is asked, the answer is one that the interface's own document describes."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from kgym.api.steps import StepKind
from kgym.web.server import serve
from kgym.worker.context import StepContext
from kgym_scheduler.api.app import create_app
from kgym_scheduler.source.sources import Sources
from tests.scheduler.parts import BUILD, BUILT, REPRODUCED, Clock, Platform, job, reproduce

if TYPE_CHECKING:
    from schemathesis import APIOperation, Case, GenerationMode

EXAMPLES = int(os.environ.get("KGYM_SCHEMA_EXAMPLES", "6"))
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
)


@asynccontextmanager
async def _served(platform: Platform) -> AsyncIterator[str]:
    """A platform whose workers do every step at once: so every event stream ends."""

    async def build(_: StepContext) -> Any:
        return BUILT

    async def run(_: StepContext) -> Any:
        return REPRODUCED

    handlers = {StepKind.BUILD: build, StepKind.REPRODUCE: run}
    async with (
        platform.scheduler() as scheduler,
        platform.worker(scheduler, handlers, slots=4),
        Sources(platform.storage, platform.storage.root / "sources") as sources,
        serve(create_app(scheduler, sources=sources)) as address,
    ):
        await scheduler.submit(job(BUILD, reproduce(0)))
        yield address.url


@pytest.fixture
def servers(request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path) -> Iterator[list[str]]:
    """Servers on a database of each kind: to make a request takes longer than to answer it."""
    urls = [sqlite_url]
    with contextlib.suppress(pytest.skip.Exception):  # without PostgreSQL, SQLite is what is left
        urls.append(request.getfixturevalue("postgresql_url"))
    with start_blocking_portal() as portal, contextlib.ExitStack() as stack:
        platforms = [Platform(url, tmp_path / url.partition(":")[0], Clock()) for url in urls]
        yield [
            stack.enter_context(portal.wrap_async_context_manager(_served(platform)))
            for platform in platforms
        ]


@pytest.mark.thorough
@pytest.mark.timeout(600)  # each operation of the interface, in both modes
def test_no_answer_is_undocumented_and_none_blames_the_server(servers: list[str]) -> None:
    import schemathesis  # noqa: PLC0415 - takes a second, also of runs that leave this test out
    from schemathesis import GenerationMode  # noqa: PLC0415

    schema = schemathesis.openapi.from_url(f"{servers[0]}/openapi.json")
    operations = [operation.ok() for operation in schema.get_all_operations()]
    for operation in operations:
        _try(operation, GenerationMode.POSITIVE, servers)
        with contextlib.suppress(Unsatisfiable):  # what takes nothing takes nothing wrong
            _try(operation, GenerationMode.NEGATIVE, servers)
    assert len(operations) > 12


def _try(operation: "APIOperation", mode: "GenerationMode", servers: list[str]) -> None:
    from schemathesis import checks  # noqa: PLC0415

    chosen = [getattr(checks, name) for name in CHECKS]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize="KGYM_SCHEMA_EXAMPLES" not in os.environ,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    def run(case: "Case") -> None:
        for url in servers:
            case.call_and_validate(url, checks=chosen, timeout=20)

    run()
