"""Variants of syzkaller programs: what a mutator prints, and what syz-execprog does."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import Dictionary
from kgym.errors import UserError
from kgym_vmmanager.variants.syz_mutator import Made, Mutator
from kgym_vmmanager.variants.syz_session import ExecutionLog

STAND_IN = Path(__file__).parents[1] / "syzkaller" / "syz-mutate.sh"
BASE = "#program\nfutex(0x1)\n"
GOOD = "#variant 5 7\n#round 0\nfutex(0x2)\n"
END = "#end\n"


async def made(script: str, folder: Path, seconds: float = 60) -> Made:
    """Order variants 5, 6 and 7 of a mutator that is a shell script."""
    (folder / "script").write_text(script)
    (folder / "program").write_text("futex(0x1)\n")
    mutator = await Mutator.prepared(
        folder / "script", folder / "program", Dictionary(), folder / "mutator"
    )
    return await mutator.make([(5, 3, 7)], seconds=seconds)


def printing(*parts: str) -> str:
    return "#!/bin/sh\ncat <<'EOF'\n{}EOF\n".format("".join(parts))


@pytest.mark.anyio
async def test_changes_of_a_round_are_put_into_words(tmp_path: Path) -> None:
    variants = (await made(STAND_IN.read_text(), tmp_path)).variants
    assert set(variants) == {(5, 7), (6, 7), (7, 7)}
    assert variants[5, 7].program == ("futex(0x5, 0x5)",)
    assert variants[5, 7].changes() == {
        0: "futex (call 1) is futex(0x5, 0xfff) instead of futex(0xfff, 0xfff)",
        1: "futex (call 1) is futex(0x5, 0x5) instead of futex(0x5, 0xfff)",
    }


@pytest.mark.anyio
async def test_calls_are_added_and_left_out(tmp_path: Path) -> None:
    base = "#program\nr0 = socket(0x1)\nbind(r0)\nlisten(r0)\n"
    variant = "#variant 5 7\n#round 0\nr0 = socket(0x1)\nlisten(r0)\ngetpid()\n"
    variants = (await made(printing(base, variant, END), tmp_path)).variants
    assert variants[5, 7].changes() == {
        0: "bind (call 2) is left out; getpid() is added after call 3"
    }


@pytest.mark.anyio
@pytest.mark.attack
@pytest.mark.parametrize(
    "spoiled",
    [
        "#variant 99 7\n#round 0\nfutex(0x3)\n",
        "#variant 6 6\n#round 0\nfutex(0x3)\n",
        "#variant 6 7\n",
        "#variant 6 7\n#round 0\n",
        "#variant 6 7\n#round x\nfutex(0x3)\n",
        "#variant 6 7\n#round 0\nfutex(\x1b[2J)\n",
        "#variant 6 7\n#round 0\nexecuting program 0:\n",
        "#variant 6 7\n#round 0\n" + "futex(0x3)\n" * 100,
        "#variant 6 7\n#round 0\nfutex(" + "0" * 20_000 + ")\n",
        "#variant 5 7\n#round 0\nfutex(0x3)\n",
        f"#variant {'9' * 5000} 7\n#round 0\nfutex(0x3)\n",
    ],
    ids=lambda text: hashlib.sha256(text.encode()).hexdigest()[:4],
)
async def test_malformed_variants_do_not_count(tmp_path: Path, spoiled: str) -> None:
    variants = (await made(printing(BASE, GOOD, spoiled, END), tmp_path)).variants
    assert {key: variant.program for key, variant in variants.items()} == {(5, 7): ("futex(0x2)",)}


@pytest.mark.thorough
@pytest.mark.anyio
@pytest.mark.attack
@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "no program", "#!/bin/sh\nyes\n"])
async def test_a_mutator_without_variants_is_told(tmp_path: Path, script: str) -> None:
    with pytest.raises(UserError, match="syzkaller's mutator makes no variants: "):
        await made(script, tmp_path)


@pytest.mark.anyio
@pytest.mark.attack
@pytest.mark.thorough
@pytest.mark.parametrize("after", ["sleep 1000", "while :; do echo '#variant 6 7'; done"])
async def test_variants_before_a_mutator_fails_count(tmp_path: Path, after: str) -> None:
    known = await made(printing(BASE, GOOD, "#variant 6 7\n") + after, tmp_path, seconds=3)
    assert set(known.variants) == {(5, 7)}
    assert known.lacks.startswith("the mutator made 1 variants only: killed at the sandbox's limit")


@given(st.lists(st.binary(max_size=300)))
def test_a_hostile_guest_prints_what_it_likes(pieces: list[bytes]) -> None:
    log = ExecutionLog(3)
    events = [event for piece in pieces for event in log.feed(piece)]
    assert [number for number, executed in events if executed is None] == list(
        range(sum(executed is None for _, executed in events))
    )


def test_no_more_programs_run_than_there_are() -> None:
    log = ExecutionLog(2)
    program = b"2026/01/31 10:20:30 executing program 0:\ngetpid()\nCALL 0: signal 0 errno 3\n"
    events = [event for _ in range(1000) for event in log.feed(program)]
    ended = list(log.ended())
    assert [number for number, _ in [*events, *ended]] == [0, 0, 1, 1]
    assert ended[0][1].results == {0: "errno 3"}
    assert len(log.last_words) <= 300
