"""The guest's engine of variants, run on this host."""

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import ENGINE, Dictionary, Pace
from kgym_vmmanager.guest import guest_image
from kgym_vmmanager.variants import dictionary
from kgym_vmmanager.variants.variant_session import RESULTS, Ran, Shown, VaryLog, steady_variants

HERE = Path(__file__).parent
CALLS = 17  # of program.c: open, five times three calls, close
LIBC = ctypes.CDLL(None)
SYS_KEYCTL, JOIN_SESSION_KEYRING = 250, 1  # x86-64; include/uapi/linux/keyctl.h
WORDS = Dictionary(values=[31, 77], fields=[(12, 12)], strings=[b"user\0".hex()])


class Engine:
    """The engine, waiting for orders."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.log = VaryLog(ordered=set(range(10_000)))
        self._process = process

    def order(self, line: str, last: str) -> list[str]:
        """Send an order; acknowledge what asks for it; return the answers up to that one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.send(line)
        lines = []
        for answer in self._process.stdout:
            self.log.feed(answer)
            lines.append(answer.decode().strip())
            while self.log.asks:
                self.log.asks -= 1
                self.send("go")
            if lines[-1].startswith(last):
                return lines
        raise AssertionError(f"the engine ended: {lines}")

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the engine and the program."""
    folder = tmp_path_factory.mktemp("programs")
    engine = Path(guest_image.__file__).parent / "inside" / "vary.c"
    sources = {"vary": engine, "program": HERE / "program.c", "leftovers": HERE / "leftovers.c"}
    for name, source in sources.items():
        argv = ["gcc", "-static", "-O1", "-o", folder / name, source]
        subprocess.run(argv, check=True, timeout=60)
    (folder / "words").write_text(dictionary.lines(WORDS))
    return folder


@contextmanager
def started(programs: Path, folder: Path, program: str = "program") -> Iterator[Engine]:
    argv = [programs / "vary", folder / "runs", programs / program, programs / "words"]
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # A keyring of the session, which all of its processes share.
        preexec_fn=lambda: LIBC.syscall(SYS_KEYCTL, JOIN_SESSION_KEYRING, 0),  # noqa: PLW1509
    ) as process:
        try:
            yield Engine(process)
        finally:
            process.kill()


def shown(engine: Engine, seed: int, mask: int) -> Shown:
    engine.log.shown = Shown()
    engine.order(f"show {seed} {mask}", "shown")
    return engine.log.shown


def test_the_engines_version_is_that_of_its_source() -> None:
    """Seeds of another engine are other variants: change ENGINE together with vary.c."""
    source = Path(guest_image.__file__).parent / "inside" / "vary.c"
    assert hashlib.sha256(source.read_bytes()).hexdigest()[:8] == ENGINE


def test_variants_are_the_same_each_time(programs: Path, tmp_path: Path) -> None:
    with started(programs, tmp_path) as engine:
        lines = engine.order("learn", "learned")
        assert sum(line.startswith("at ") for line in lines) == CALLS
        assert engine.log.pace is not None
        assert engine.log.pace.calls == CALLS
        engine.send(f"use {CALLS} 1000 1000")
        engine.order("exact 0 100", "swept")
        alone = dict(engine.log.ran)
        engine.order("sweep 0 100", "swept")
        # What one variant leaves in the memory that they share does not change the next one.
        together = engine.log.ran
        results = [
            (alone[seed].digest[:RESULTS], ran.digest[:RESULTS]) for seed, ran in together.items()
        ]
        assert sum(first == other for first, other in results) > 80
        first, second = ([shown(engine, seed, 7) for seed in range(40)] for _ in range(2))
    for once, again in zip(first, second, strict=True):
        # Calls that a second process makes at the same time may come first or last.
        if all(change.what != "beside" for change in once.changes.values()):
            assert once == again
    assert len({each.digest for each in first}) > 10
    with started(programs, tmp_path) as engine:
        engine.send(f"use {CALLS} 1000 1000")
        engine.order("exact 0 100", "swept")
        # Nor does what they write, to the second half of the digest, depend on the engine's run.
        assert sum(alone[seed] == ran for seed, ran in engine.log.ran.items()) > 80


def test_a_variant_does_not_see_what_earlier_ones_leave(programs: Path, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("an IPC namespace takes root")
    with started(programs, tmp_path, "leftovers") as engine:
        first = engine.order("plain 0 20", "swept")[0]
    assert " 0 0 0" in first, "this host allows no keys"
    assert len(engine.log.ran) == 20
    assert len({ran.digest[:RESULTS] for ran in engine.log.ran.values()}) == 1


def test_what_a_call_writes_counts_as_much_as_its_result(programs: Path, tmp_path: Path) -> None:
    with started(programs, tmp_path) as engine:
        engine.send(f"use {CALLS} 1000 1000")
        each = [shown(engine, seed, 7) for seed in range(300)]
        unchanged = shown(engine, 1, 0)
    assert unchanged.digest is not None
    assert {call for _, call, _, data in unchanged.calls if data != "0"} == {"pread64"}
    # From another place, as many bytes are read.
    results = [call[:3] for call in unchanged.calls]
    same = [variant for variant in each if [call[:3] for call in variant.calls] == results]
    assert {variant.digest[:RESULTS] for variant in same if variant.digest} == {
        unchanged.digest[:RESULTS]
    }
    assert len({variant.digest for variant in same}) > 1


def test_the_changes_of_a_variant_are_shown_before_they_are_made(
    programs: Path, tmp_path: Path
) -> None:
    with started(programs, tmp_path) as engine:
        engine.send(f"use {CALLS} 200 100")
        unchanged = shown(engine, 1, 0)
        assert not unchanged.changes
        assert len(unchanged.calls) == CALLS
        several = [seed for seed in range(40) if len(shown(engine, seed, 7).changes) > 1]
        seed = several[0]
        whole = shown(engine, seed, 7)
        alone = [shown(engine, seed, 1 << bit) for bit in whole.changes]
    assert [list(each.changes) for each in alone] == [[bit] for bit in whole.changes]
    assert all(change.words for change in whole.changes.values())
    assert whole.digest is not None


def test_some_seeds_always_change_the_last_call(programs: Path, tmp_path: Path) -> None:
    with started(programs, tmp_path) as engine:
        engine.send(f"use {CALLS} 1000 1000")
        each = [shown(engine, seed, 7) for seed in range(1 << 47, (1 << 47) + 40)]
    places = [{change.place for change in variant.changes.values()} for variant in each]
    # A few of those that are drawn change nothing, such as a descriptor in place of an address.
    assert sum(CALLS - 1 in changed for changed in places) > 30
    assert set.union(*places) > {CALLS - 1}


@pytest.mark.thorough
def test_values_come_from_the_dictionary(programs: Path, tmp_path: Path) -> None:
    with started(programs, tmp_path) as engine:
        engine.send(f"use {CALLS} 200 100")
        changes = [
            change for seed in range(300) for change in shown(engine, seed, 7).changes.values()
        ]
    arguments = {change.after for change in changes if change.what.startswith("argument")}
    assert {31, 77, 32, 78} <= arguments
    # A bit field of 12 bits takes the words, too.
    assert {31, 77} & {value >> 12 & 0xFFF for value in arguments if value >> 12}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "change 0 202 4 argument-5 fff 20",
            "futex (call 5) passes argument 6 0x20 instead of 0xfff",
        ),
        ("change 0 202 4 left-out 0 0", "futex (call 5) is left out"),
        (
            "change 0 202 4 memory-behind 7 8",
            "futex (call 5) passes a number in memory 0x8 instead of 0x7",
        ),
    ],
)
def test_changes_are_put_into_words(line: str, words: str) -> None:
    shown = Shown()
    shown.take(line.split())
    assert [change.words for change in shown.changes.values()] == [words]


@given(st.lists(st.binary(max_size=300)))
def test_a_hostile_guest_says_what_it_likes(pieces: list[bytes]) -> None:
    log = VaryLog(ordered={3})
    for piece in pieces:
        log.feed(piece)
    assert set(log.ran) <= {3}
    assert len(log.shown.changes) <= 10


@pytest.mark.parametrize(
    "lines",
    [
        b"ran 4 0123456789abcdef 1 0 0\n",  # not ordered
        b"ran 3 0123456789abcdef 1 0 1\n",  # cut off: its digest depends on the time
        b"ran 3 0123456789abcdef 1 99999999999999999999999 0\n",
        b"learned 0 1 1\nlearned 1 1\n",
        b"change 99 202 4 argument-5 fff 20\n",
    ],
)
def test_malformed_answers_do_not_count(lines: bytes) -> None:
    log = VaryLog(ordered={3})
    log.feed(lines)
    assert (log.ran, log.pace, log.shown.changes) == ({}, None, {})


@pytest.mark.parametrize(
    ("first", "again", "part"),
    [
        ("1" * 32, "1" * 32, "1" * 32),
        ("1" * 32, "1" * 16 + "2" * 16, "1" * 16),  # it writes the time, for instance
        ("1" * 32, "2" * 16 + "1" * 16, ""),
        ("1" * 16, "1" * 16, "1" * 16),  # of syzkaller's programs only results are known
        ("", "1" * 16, ""),
    ],
)
def test_only_the_steady_part_of_a_digest_is_compared(first: str, again: str, part: str) -> None:
    runs = [
        {7: Ran(digest, 1, 2), 8 + number: Ran("3" * 32, 1, 2)}
        for number, digest in enumerate((first, again))
    ]
    same = steady_variants(*runs)
    assert {seed: quiet.digest for seed, quiet in same.items()} == ({7: part} if part else {})


def test_a_pace_is_bounded() -> None:
    log = VaryLog()
    log.feed(b"learned 99999999999 99999999999 99999999999\n")
    assert log.pace == Pace(calls=(1 << 20) - 1, milliseconds=(1 << 20) - 1, pause=(1 << 20) - 1)
