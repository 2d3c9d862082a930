"""Patches that run programs at build time: these see, reach and change nothing of the host."""

import re

import pytest

from tests.security.conftest import WAYS, Planted, Victim, hostile
from tests.tables import rows

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

TRIED = [what for (what,) in rows(__file__, "tried.txt")]


@pytest.mark.parametrize("way", WAYS)
async def test_a_program_of_a_patch_reads_no_secret_reaches_nobody_and_writes_nothing(
    victim: Victim, planted: Planted, way: str
) -> None:
    attacks = ("secrets", "outside", "network")
    suffered = await victim.suffers(hostile(way, *attacks, macros=planted.macros))
    for name in attacks:
        assert f"attack {name} begins" in suffered.log
    tried = dict(re.findall(r"(?m)^([\w /]+): (.+)$", suffered.log))
    assert {what: tried[what] for what in TRIED if tried[what] == "SUCCESS"} == {}
    assert planted.words not in suffered.log
    assert "user 65534" in suffered.log
    assert "\nroot:" not in suffered.log
    assert str(victim.folder) not in "".join(re.findall(r"(?m)^open .*$", suffered.log))
    assert f"write {planted.outside}: ENOENT" in suffered.log
    assert not planted.outside.exists()
    assert not planted.visited()
    assert suffered.error is None


@pytest.mark.parametrize("way", ["a recipe", "a Kconfig macro"])
async def test_a_patch_that_spoils_its_tree_spoils_no_other(victim: Victim, way: str) -> None:
    suffered = await victim.suffers(hostile(way, "spoil"))
    assert "attack spoil begins" in suffered.log
    assert "spoil: SUCCESS" in suffered.log
