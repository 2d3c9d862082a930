"""Patches that take without end what a worker has are stopped, and the step says at what."""

import os
import subprocess
from dataclasses import replace

import pytest

from kgym.errors import UserError
from tests.security.conftest import SMALL, WAYS, Suffered, Victim, hostile

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

# Attack → the limit at which it ends.
GREEDY = {
    "forks": "processes",
    "threads": "processes",
    "memory": "memory",
    "shared": "memory",
    "takers": "memory",
    "tmp": "memory",
    "shm": "memory",
    "tree": "disk",
    "unlinked": "disk",
    **({"mapped": "disk"} if os.geteuid() == 0 else {}),  # nobody else sees what is mapped
    "files": "files",
    "nest": "depth",
    "lines": "output",
    "line": "output",
}


def stopped_at(limit: str, suffered: Suffered, name: str) -> bool:
    """Tell whether the attack ran, and was stopped at the limit; it is the patch's fault."""
    assert f"attack {name} begins" in suffered.log
    assert "was not stopped" not in suffered.log
    error = suffered.error
    assert isinstance(error, UserError), error
    assert f"limit of {limit}" in error.message
    return (error.reason, error.details["limit"]) == ("sandbox_limit", limit)


@pytest.mark.parametrize(("name", "limit"), GREEDY.items())
async def test_a_patch_that_takes_without_end_is_stopped(
    victim: Victim, name: str, limit: str
) -> None:
    assert stopped_at(limit, await victim.suffers(hostile("a recipe", name)), name)


@pytest.mark.parametrize("way", WAYS[1:])
async def test_a_patch_that_forks_without_end_is_stopped_however_it_came_to_run(
    victim: Victim, way: str
) -> None:
    assert stopped_at("processes", await victim.suffers(hostile(way, "forks")), "forks")


@pytest.mark.parametrize("way", ["a recipe", "a Kconfig macro"])
async def test_a_patch_that_never_ends_is_stopped(victim: Victim, way: str) -> None:
    limits = replace(SMALL, seconds=3)
    assert stopped_at("time", await victim.suffers(hostile(way, "forever"), limits), "forever")


async def test_a_kconfig_macro_that_takes_memory_is_stopped(victim: Victim) -> None:
    suffered = await victim.suffers(hostile("a Kconfig macro", "memory"))
    assert stopped_at("memory", suffered, "memory")
    assert "CC " not in suffered.log


@pytest.mark.parametrize("way", WAYS)
async def test_a_daemon_ends_with_the_step(victim: Victim, way: str) -> None:
    mark = f"7{WAYS.index(way)}53.75"
    suffered = await victim.suffers(hostile(way, "daemon", macros={"DAEMON": mark}))
    left = subprocess.run(["pgrep", "-f", f"^sleep {mark}"], check=False, capture_output=True)
    assert left.stdout == b""
    assert "alive: sleep" in suffered.log
    assert suffered.error is None
