"""A program's system calls, as the guest's tracer (guest/inside/trace.c) prints them."""

import math
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field

from kgym.api.steps import Call, InstanceOutcome, Work
from kgym.bugs.run_ends import End, listed
from kgym_vmmanager.evidence.compared_work import DIED, PENDING, STUCK, is_cut_off
from kgym_vmmanager.evidence.syscall_names import call_name, result_name
from kgym_vmmanager.guest.guest_session import GuestSession
from kgym_vmmanager.guest.paths import PROGRAM, TRACER
from kgym_vmmanager.guest.ssh import Ssh
from kgym_vmmanager.vm.instance_ending import InstanceEnding

FOLDER = "/tmp"  # noqa: S108 - the guest's
# Time of a trace by the guest's clock, and its limit by the host's: emulated guests run slower.
SECONDS = 4
_LIMIT_TIMES = 5
# A guest that took longer to boot, as on a busy host, gets proportionally more time.
_USUAL_BOOT_SECONDS = 30.0
_MOST_SECONDS = 120
# A trace that is cut off proves nothing: it is repeated, with so many times as much time.
_TRIES, _LONGER = 3, 4
_CALL_SECONDS = 10.0
_READ_SECONDS = 0.2
_LINE_BYTES = 128
_LARGEST = {"exit": 255, "signal": 127}
# Kinds of calls that are kept: more than the tracer prints, so only a hostile guest exceeds it.
_MOST = 2048


@dataclass(slots=True)
class TracerLog:
    """Parser of the tracer's output. Pure.

    `answers` counts the lines that the tracer wants acknowledged; `over` is set at its end.
    """

    # The tracer announces each new kind of call before it is made, and waits for our answer. So the
    # call in which the kernel crashes is known.

    answers: int = 0
    over: bool = False
    _calls: Counter[tuple[int, str]] = field(default_factory=Counter)
    _ends: Counter[End] = field(default_factory=Counter)
    _entered: int | None = None
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Add the next output, cut anywhere; malformed lines are ignored."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_LINE_BYTES:]
        for line in lines:
            self._take(line.decode("ascii", "replace").split())

    def work(self, *, crashed: bool) -> Work:
        """Return the profile; after a crash, the last announced call is the unfinished one."""
        ordered = sorted(self._calls.items(), key=lambda item: (-item[1], item[0]))
        unfinished = self._entered if crashed else None
        return Work(
            calls=[
                Call(name=call_name(number), result=result, count=count)
                for (number, result), count in ordered
            ],
            unfinished=None if unfinished is None else call_name(unfinished),
            ends=listed(self._ends),
        )

    def _take(self, words: list[str]) -> None:
        match words:
            case ["enter", call] if _are_numbers(call):
                self.answers += 1
                self._entered = int(call)
            case ["call", call, result] if _are_numbers(call, result):
                self.answers += 1
                self._entered = None if self._entered == int(call) else self._entered
                self._count(int(call), result_name(int(result)), 1)
            case ["died", call] if _are_numbers(call):
                self.answers += 1
                self._count(int(call), DIED, 1)
            case ["total", call, result, count] if _are_numbers(call, result, count):
                self._count(int(call), result_name(int(result)), int(count))
            case ["pending", call] if _are_numbers(call):
                self._count(int(call), PENDING, 1)
            case ["stuck", call] if _are_numbers(call):
                self._count(int(call), STUCK, 1)
            case ["end", how, value, ms] if how in _LARGEST and _are_numbers(value, ms):
                self._ends[how, min(int(value), _LARGEST[how])] += 1
            case ["over", runs] if _are_numbers(runs):
                self.over = True

    def _count(self, call: int, result: str, count: int) -> None:
        known = (call, result) in self._calls
        if not known and len(self._calls) >= _MOST:
            return
        if result in (DIED, PENDING, STUCK):
            self._calls[call, result] += count
        else:  # a total includes the first call, which was printed before
            self._calls[call, result] = max(self._calls[call, result], count, 1)


class Profiling(GuestSession):
    """A session that traces the program once; `log` holds its system calls."""

    lost = "the trace did not come to its end"

    def __init__(self) -> None:
        super().__init__()
        # The guest's boot time, which shows how slow it is.
        self.boot_seconds = 0.0
        self.log = TracerLog()

    async def work(self, ssh: Ssh) -> None:
        """Trace the program for a few seconds."""
        slowness = max(1.0, self.boot_seconds / _USUAL_BOOT_SECONDS)
        for number in range(_TRIES):
            seconds = min(_MOST_SECONDS, math.ceil(SECONDS * slowness) * _LONGER**number)
            self.log = TracerLog()
            folder = f"{FOLDER}/{secrets.token_hex(4)}"
            await follow(ssh, folder, PROGRAM, self.log, seconds)
            if not self.log.over or not is_cut_off(self.log.work(crashed=False)):
                break


def why_unknown(ending: InstanceEnding) -> str:
    """Return why the program's work is unknown after this ending. Pure."""
    # The detail of a survivor is its program's last output, which explains nothing.
    survived = ending.outcome is InstanceOutcome.SURVIVED
    return "its trace broke off" if survived or not ending.detail else ending.detail


async def follow(ssh: Ssh, folder: str, program: str, log: TracerLog, seconds: int) -> None:
    """Run the program under the tracer in the guest's `folder`; feed its output to `log`.

    The tracer ends after `seconds` of the guest's.
    Raises ConnectionLost, and TimeoutError if the tracer does not end.
    """
    stream = await ssh.start(f"{TRACER} {seconds} {folder} {program}", _CALL_SECONDS)
    until = time.monotonic() + _LIMIT_TIMES * seconds
    more, answered = True, 0
    while more and not log.over:
        if time.monotonic() > until:
            raise TimeoutError
        out, _, more = await stream.read(_READ_SECONDS)
        log.feed(out)
        if log.answers > answered:
            await stream.send(b"." * (log.answers - answered))
            answered = log.answers


def _are_numbers(*words: str) -> bool:
    return all(word.isascii() and word.isdigit() and len(word) < 13 for word in words)
