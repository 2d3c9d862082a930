"""A hostile patch in a check step harms neither the worker nor the patches beside it."""

import base64
import gzip
import io
import tarfile
from collections.abc import Callable
from dataclasses import replace

import pytest

from kgym.api.steps import Patch, PatchCheck, PatchOutcome
from tests.security.conftest import HONEST, SMALL, Planted, Victim, added, changed, hostile

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

CODE = "--- a/lib/string.c\n+++ b/lib/string.c\n@@ -1,0 +1 @@\n+{0}\n"


def limit(check: PatchCheck) -> object:
    """Return the limit of the sandbox at which a patch was stopped."""
    assert (check.outcome, check.details["reason"]) == (PatchOutcome.OVER_LIMIT, "sandbox_limit")
    return check.details["limit"]


@pytest.mark.parametrize(
    ("way", "name", "stopped"),
    [
        ("a shell function", "forks", "processes"),
        ("a shell function", "memory", "memory"),
        ("a shell function", "tree", "disk"),
        ("a Kconfig macro", "forks", "processes"),
        ("a Kconfig macro", "takers", "memory"),
        ("a Kconfig macro", "unlinked", "disk"),
    ],
)
async def test_a_patch_that_takes_without_end_is_stopped_and_its_neighbour_checked(
    victim: Victim, way: str, name: str, stopped: str
) -> None:
    bad, good = await victim.check(hostile(way, name), HONEST)
    assert limit(bad) == stopped
    assert good.outcome is PatchOutcome.COMPILES


@pytest.mark.parametrize(
    ("text", "stopped"),
    [
        # What is to be repeated is first written out, in memory.
        ('asm(".rept 20000000; .quad 1, 2, 3, 4; .endr");', "memory"),
        ("char block[1L << 33] = {1};", "disk"),
    ],
)
async def test_code_that_makes_the_compiler_take_without_end_is_stopped(
    victim: Victim, text: str, stopped: str
) -> None:
    bad, good = await victim.check(Patch(diff=CODE.replace("{0}", text)), HONEST)
    assert limit(bad) == stopped
    assert good.outcome is PatchOutcome.COMPILES


@pytest.mark.parametrize("way", ["a shell function", "a Kconfig macro"])
async def test_a_patch_that_leaves_a_process_to_hold_up_its_check_is_stopped(
    victim: Victim, way: str
) -> None:
    limits = replace(SMALL, seconds=4)
    bad, good = await victim.check(hostile(way, "hold"), HONEST, limits=limits)
    assert limit(bad) == "time"
    assert good.outcome is PatchOutcome.COMPILES


def archive(**files: bytes) -> tarfile.TarFile:
    opened = tarfile.open(fileobj=io.BytesIO(), mode="w")  # noqa: SIM115
    for name, content in files.items():
        member = tarfile.TarInfo(name.replace("_", "."))
        member.size = len(content)
        opened.addfile(member, io.BytesIO(content))
    return opened


def bytes_of(opened: tarfile.TarFile) -> bytes:
    assert isinstance(opened.fileobj, io.BytesIO)
    return opened.fileobj.getvalue()


def sparse() -> bytes:
    """An archive of one member that says to be 1 TiB of nothing (GNU tar's old sparse format)."""
    member = tarfile.TarInfo("first.out")
    member.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"%011o\0" % (1 << 40 >> 8)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


FORGED: dict[str, Callable[[], bytes]] = {
    "a sparse file": sparse,
    "a compressed archive": lambda: gzip.compress(bytes_of(archive(first_out=bytes(64 << 20)))),
    "a job that there is not": lambda: bytes_of(archive(other_status=b"0", **{"99_status": b"0"})),
    "a number without end": lambda: bytes_of(archive(first_status=b"9" * 10_000)),
    "a size below zero": lambda: (
        bytes_of(archive(first_out=b""))[:124] + b"\xff" * 12 + bytes(1400)
    ),
    "no archive": lambda: b"\x1f\x8b" + bytes(range(256)) * 8,
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
async def test_a_result_that_a_patch_forged_harms_nobody(
    victim: Victim, forge: Callable[[], bytes]
) -> None:
    script = (
        "for one in /proc/[0-9]*; do\n"
        "    [ ! -p $one/fd/1 ] || base64 -d scripts/forged >$one/fd/1\n"
        "done\nkill -9 -1\n"
    )
    diff = added("scripts/forged", base64.encodebytes(forge()).decode())
    diff += added("scripts/attack.sh", script)
    diff += changed("Makefile", "VERSION", "X := $(shell sh scripts/attack.sh 2>&1)\nVERSION")
    bad, good = await victim.check(Patch(diff=diff), HONEST)
    assert bad.outcome is PatchOutcome.OVER_LIMIT or bad.outcome is PatchOutcome.DOES_NOT_COMPILE
    assert good.outcome is PatchOutcome.COMPILES


async def test_code_that_includes_a_file_of_the_host_does_not_find_it(
    victim: Victim, planted: Planted
) -> None:
    text = f'#include "{planted.macros["SECRET"]}"'
    (check,) = await victim.check(Patch(diff=CODE.replace("{0}", text)))
    assert check.outcome is PatchOutcome.DOES_NOT_COMPILE
    assert "No such file or directory" in check.output
    assert planted.words not in check.model_dump_json()


@pytest.mark.parametrize("way", ["a shell function", "a Kconfig macro"])
async def test_a_program_of_a_patch_reads_no_secret_reaches_nobody_and_writes_nothing(
    victim: Victim, planted: Planted, way: str
) -> None:
    attacks = ("outside", "network", "secrets")
    attack = hostile(way, *attacks, macros=planted.macros)
    stop = CODE.replace("{0}", "#error so that the output is kept")
    (check,) = await victim.check(Patch(diff=f"{attack.diff}{stop}"))
    for name in attacks:
        assert f"attack {name} begins" in check.output
    assert ": SUCCESS" not in check.output
    assert planted.words not in check.model_dump_json()
    assert not planted.outside.exists()
    assert not planted.visited()


async def test_a_path_without_end_or_out_of_the_tree_is_refused(victim: Victim) -> None:
    absolute = added("/etc/pwned", "pwned").replace("b//", "/")
    diffs = [added("kernel/" * 100_000 + "x.c", "x"), added("../outside", "pwned"), absolute]
    *refused, good = await victim.check(*(Patch(diff=diff) for diff in diffs), HONEST)
    assert [check.details["reason"] for check in refused] == ["unsafe_patch"] * 3
    assert good.outcome is PatchOutcome.COMPILES
