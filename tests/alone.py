"""The embedded platform, with nothing to do but what is measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kgym.api.jobs import JobFilter
from kgym.api.states import State
from kgym.client import Client
from kgym_cli.platforms.embedded_platform import Platform


@contextmanager
def alone(data: Path) -> Iterator[Client]:
    """Open the platform on the data folder; end here where it goes on with earlier jobs."""
    with platform_alone(data) as platform, Client(platform.url) as client:
        yield client


@contextmanager
def platform_alone(data: Path) -> Iterator[Platform]:
    """Open the platform, as `alone` does; yield itself. Unfinished jobs are aborted at the end."""
    with Platform(data) as platform, Client(platform.url) as client:
        if left := _unfinished(client):
            named = ", ".join(map(str, left))
            raise SystemExit(
                f"bench: not measured, as jobs of {data} have not finished, and would go on beside"
                f" it: `kgym job abort {left[0]}` or wait for it (all: {named})"
            )
        try:
            yield platform
        finally:
            # Those of a test that failed would stand in the way of all others.
            if left := _unfinished(client):
                client.abort_all(left)


def _unfinished(client: Client) -> list[int]:
    unfinished = [state for state in State if not state.final]
    return [job.id for state in unfinished for job in client.page(JobFilter(state=state)).jobs]
