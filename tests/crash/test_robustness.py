"""Nothing that a console can hold breaks the parser, and reading takes time linear in its size."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgym.crash.report import guilty_file, parse, parse_all
from kgym.crash.report.rust_names import demangle
from tests.conftest import turns
from tests.crash.test_titles import FAMILIES, kasan

LOGS = [log.encode() for log in FAMILIES.values()]


def mutated(log: bytes, chance: random.Random) -> bytes:
    lines = log.splitlines(keepends=True)
    match chance.randrange(6):
        case 0:
            return log[chance.randrange(len(log)) :][: chance.randrange(len(log))]
        case 1:
            chance.shuffle(lines)
        case 2:
            other = chance.choice(LOGS).splitlines(keepends=True)
            lines = [chance.choice((a, b)) for a, b in zip(lines, other, strict=False)]
        case 3:
            data = bytearray(log)
            for _ in range(20):
                data[chance.randrange(len(data))] = chance.randrange(256)
            return bytes(data)
        case 4:
            lines = [line for line in lines if chance.random() < 0.7]
        case 5:
            stamp = b"[    1.5][   T%d] "
            lines = [stamp % chance.randrange(3) + line for line in lines]
    return b"".join(lines)


def read_damaged(rounds: int) -> None:
    chance = random.Random(6)
    for _ in range(rounds):
        log = mutated(mutated(chance.choice(LOGS), chance) or b"\n", chance)
        first = parse(log)
        assert (first is None) == (not parse_all(log))
        if first:
            assert 0 <= first.start < first.end <= len(log)
            assert first.title


@pytest.mark.thorough
def test_damaged_logs_are_read_without_an_error() -> None:
    read_damaged(1000)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ten_thousand_damaged_logs_are_read_without_an_error() -> None:
    read_damaged(10_000)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_log(data: bytes) -> None:
    parse_all(data)
    parse_all(b"BUG: KASAN: " + data)
    parse_all(b"WARNING: CPU: 1 PID: 2 at " + data)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_log_a_report_and_a_symbol(text: str) -> None:
    parse(text)
    guilty_file(text)
    demangle("_R" + text)
    demangle(f"_ZN{text}17h0123456789abcdefE")


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(st.text("NESTSIJLZPKRiv_0123aCD$u.", max_size=200))
def test_any_letters_are_a_symbol(text: str) -> None:
    for symbol in (f"_R{text}", f"_ZN{text}17h0123456789abcdefE"):
        assert len(demangle(symbol)) < 5000


def seconds(log: bytes) -> float:
    start = time.process_time()
    parse(log)
    return time.process_time() - start


@pytest.mark.thorough
def test_a_large_healthy_log_is_read_at_ten_megabytes_a_second() -> None:
    line = b"[    1.000000][    T1] EXT4-fs (sda1): mounted filesystem, INFO and warnings off\n"
    assert seconds(line * 250_000) < 2


UNITS = [b"WARNING: CPU: ", b"INFO: task ", b"BUG: Dentry ", b"[<00>] ", b"a.", b"BUG:", b"> "]
UNITS += [b"<6>", b"[ T1] ", b"Apr 07 14:13:21 ", b"kernel: ", b"f (a.c:1 ", b"/lib/a.c:1 "]


@pytest.mark.thorough
def test_lines_made_to_slow_patterns_down_do_not() -> None:
    for unit in UNITS:
        assert seconds(b"BUG: x\n" + unit * (500_000 // len(unit))) < 3
        assert seconds(unit * (500_000 // len(unit)) + b"\n") < 3


@pytest.mark.thorough
def test_many_lines_made_to_slow_patterns_down_do_not() -> None:
    for unit in UNITS:
        assert seconds(b"BUG: x\n" + (unit * 3 + b"\n") * (500_000 // len(unit) // 3)) < 3


@pytest.mark.thorough
def test_a_crash_behind_a_line_that_repeats_is_where_it_is() -> None:
    alone = parse(KASAN)
    assert alone
    for line, number in ((b"Oops\n", 250_000), (b"Oops " * 500 + b"\n", 1000)):
        for odd in (b"", b"Oops!\n", b"Oo"):
            [report] = parse_all(line * number + odd + KASAN)
            assert report.start - alone.start == len(line) * number + len(odd)


HEALTHY = b'[   12.345678][  T123] audit: type=1400 avc: denied { read } for pid=12 comm="prog"\n'
KASAN = kasan("use-after-free").encode()
LOGGED = b"Apr 07 14:13:21 host %b: WARNING: fbcon: Driver\n"
LOGGED_CRASH = b"".join(b"Apr 07 14:13:21 host kernel: " + line for line in KASAN.splitlines(True))
MEGABYTE = 1 << 20

READ = """
import resource, sys
from pathlib import Path
from kgym.crash.report import parse_all
print(len(parse_all(Path(sys.argv[1]).read_bytes())))
used = resource.getrusage(resource.RUSAGE_SELF)
# Not ru_maxrss: that starts with what the parent has.
peak = next(one for one in Path("/proc/self/status").open() if one.startswith("VmHWM:"))
print(used.ru_utime + used.ru_stime, int(peak.split()[1]) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "tail", "crashes"),
    turns(
        [
            (HEALTHY, b"", 0),
            (HEALTHY, KASAN, 1),
            (HEALTHY * 300 + KASAN, b"", 1),
            (LOGGED % b"prog" + LOGGED % b"kernel", LOGGED_CRASH, 1),
            (KASAN, b"", 1),
            (b"WARNING: nothing\n", b"", 0),
            (b"Oops\n", KASAN, 1),
            (bytes(range(256)), b"", 0),
            (b"x", b"", 0),
            (b"\n", b"", 0),
        ],
        4,
        [
            "healthy",
            "at the end",
            "thousands",
            "logged",
            "only crashes",
            "almost",
            "repeated",
            "binary",
            "line",
            "empty",
        ],
    ),
)
def test_a_log_of_100_mb_is_read_in_30_s_and_300_mb(
    block: bytes, tail: bytes, crashes: int, tmp_path: Path
) -> None:
    log = tmp_path / "console.log"
    with log.open("wb") as file:
        chunk = block * (MEGABYTE // len(block))
        for _ in range(100):
            file.write(chunk)
        file.write(tail)
    for _ in range(3):  # beside other work, a processor does less in its time
        read = subprocess.run(
            [sys.executable, "-c", READ, str(log)], capture_output=True, check=True, timeout=120
        )
        number, seconds, megabytes = read.stdout.split()
        if float(seconds) < 30:
            break
    log.unlink()
    assert int(number) == crashes
    assert float(seconds) < 30  # quadratic would be hours
    assert int(megabytes) < 300
