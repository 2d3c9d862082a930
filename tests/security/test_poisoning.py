"""What a patch did to its own tree is in nobody else's: SuiteCache and memos stay as they were."""

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from kgym.api.steps import Patch, PatchOutcome
from tests.security.conftest import HONEST, SMALL, WAYS, Victim, changed, hostile

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

_KEPT = ("cache/suitecache", "cache/sources", "cache/bases", "storage")
# Written anew by whoever uses an entry, for what they say; all that others build from is not.
_TOUCHED = ("about.json", ".seal", ".lock", ".use")


def contents(victim: Victim) -> dict[str, str]:
    """Return the hash of every file that later steps start from."""
    return {
        str(path.relative_to(victim.folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in _KEPT
        for path in (victim.folder / folder).rglob("*")
        if path.is_file() and not path.name.endswith(_TOUCHED)
    }


@pytest.mark.parametrize("way", WAYS)
async def test_an_entry_that_a_hostile_patch_was_the_first_to_want_is_as_any_other(
    victim: Victim, way: str, tmp_path: Path
) -> None:
    cold = Victim(tmp_path, victim.build)
    suffered = await cold.suffers(hostile(way, "spoil"))
    assert "spoil: SUCCESS" in suffered.log
    assert await cold.works() == victim.kernels


async def test_builds_and_checks_of_hostile_patches_change_nothing_that_is_kept(
    victim: Victim,
) -> None:
    await victim.check(HONEST)
    before = contents(victim)
    assert {Path(path).name for path in before} >= {"image.squashfs", "index.db", "Makefile"}
    for way in WAYS:
        await victim.suffers(hostile(way, "spoil"))
    await victim.check(*(hostile(way, "spoil") for way in WAYS))
    after = contents(victim)
    assert {path: after.get(path) for path in before} == before


async def test_a_hostile_base_is_the_ground_of_its_own_checks_alone(victim: Victim) -> None:
    warned = changed("lib/string.c", "{", "{\n\tint unused;\n")
    before = await victim.check(HONEST, Patch(diff=warned))
    spoil = "sed -i s/-O1/-O0/ kernel/.fork.o.cmd"
    base = Patch(diff=changed("Makefile", "VERSION", f"X := $(shell {spoil})\nVERSION"))
    (spoilt,) = await victim.check(HONEST, base=[base])
    assert spoilt.functions != before[0].functions
    after = await victim.check(HONEST, Patch(diff=warned))
    assert [patch.model_copy(update={"seconds": 0}) for patch in after] == [
        patch.model_copy(update={"seconds": 0}) for patch in before
    ]
    assert after[0].outcome is PatchOutcome.COMPILES


async def test_a_patch_that_says_its_tree_cannot_be_read_ends_no_build_beside_it(
    victim: Victim,
) -> None:
    lie = "echo x: Input/output error >&2; false"
    old = "VERSION"
    liar = Patch(diff=changed("Makefile", old, f"X := $(shell {lie})\n$(error stop)\n{old}"))
    slow = Patch(diff=changed("Makefile", old, f"X := $(shell sleep 3)\n{old}"))
    (honest, kernel), _ = await asyncio.gather(
        victim.builds(slow), victim.check(liar, limits=replace(SMALL, seconds=50))
    )
    assert honest.error is None
    assert kernel
