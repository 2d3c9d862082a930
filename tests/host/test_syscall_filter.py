"""The filter's program, interpreted as the kernel does: for every system call there is."""

import errno
import socket
import struct
from pathlib import Path

import pytest

from kgym.configs import CONFIGS
from kgym.host import syscall_filter

X86_64, I386 = 0xC000003E, 0x40000003
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
CALLS = {
    name: int(number)
    for number, name in (
        line.split()[:2]
        for line in (CONFIGS / "syscalls-x86_64.txt").read_text().splitlines()
        if line[:1].isdigit()
    )
}
REFUSED = Path(__file__).with_name("refused_syscalls.txt").read_text().split()


def judged(number: int, argument: int = 0, architecture: int = X86_64) -> int:
    """Return what the filter says to a call: `struct seccomp_data` through its BPF program."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, argument, *[0] * 5)
    steps = list(struct.iter_unpack("=HBBI", syscall_filter.program()))
    accumulator = place = 0
    while True:
        code, then, otherwise, value = steps[place]
        place += 1
        match code:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                (accumulator,) = struct.unpack_from("=I", data, value)
            case 0x15:  # BPF_JMP | BPF_JEQ | BPF_K
                place += then if accumulator == value else otherwise
            case 0x35:  # BPF_JMP | BPF_JGE | BPF_K
                place += then if accumulator >= value else otherwise
            case 0x06:  # BPF_RET | BPF_K
                return value
            case _:
                raise AssertionError(f"the kernel knows more than this test: {code:#x}")


def test_what_is_refused_is_what_is_named_and_nothing_else() -> None:
    verdicts = {name: judged(number, socket.AF_UNIX) for name, number in CALLS.items()}
    assert len(verdicts) > 350
    assert {name for name, verdict in verdicts.items() if verdict == REFUSE} == set(REFUSED)
    assert {verdicts[name] for name in verdicts if name not in REFUSED} == {ALLOW}


@pytest.mark.parametrize("family", range(50))
def test_sockets_are_of_four_families(family: int) -> None:
    allowed = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
    assert judged(CALLS["socket"], family) == (ALLOW if family in allowed else REFUSE)


def test_other_ways_to_number_calls_end_the_program() -> None:
    for number in (0, 1, CALLS["keyctl"]):
        assert judged(number, architecture=I386) == KILL
        assert judged(number | 0x40000000) == KILL  # x32
