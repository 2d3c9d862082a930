"""Running variants in a booted guest: orders to its engine (guest/inside/vary.c), and answers."""

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from kgym.api.steps import SEED_LIMIT, InstanceOutcome, Loss, Pace, QuietVariant
from kgym_vmmanager.evidence.syscall_names import call_name
from kgym_vmmanager.guest.guest_session import GuestSession
from kgym_vmmanager.guest.paths import PROGRAM, VARIER, WORDS
from kgym_vmmanager.guest.ssh import Ssh, Stream
from kgym_vmmanager.variants import balance
from kgym_vmmanager.vm.instance_ending import InstanceEnded

_FOLDER = "/tmp"  # noqa: S108 - the guest's
_CALL_SECONDS = 10.0
_READ_SECONDS = 0.2
# Variants of one order. After a crash, those of the last two orders run again, one by one.
BATCH = 100
# If an answer takes longer, the guest hangs: each variant takes a second at most.
_ORDER_SECONDS = 120.0
_END_SECONDS = 10.0
_BALANCE_SECONDS = 30.0
_LINE_BYTES = 256
# Characters of a digest, and of its first part, which covers calls and results.
_DIGEST, RESULTS = 32, 16
_MOST_CALLS = 400
# The seed of no variant: orders runs of the unchanged program.
_PLAIN_SEED = SEED_LIMIT - 1
# The seed of an order without variants, which ends a list of orders.
_NO_SEED = SEED_LIMIT - 2
_MOST_CHANGES = 10
ALL_CHANGES = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Ran:
    """A variant that ran to its end: a digest of its calls, and how many it changed or failed."""

    digest: str
    changes: int
    failed: int


def steady_variants(
    first: Mapping[int, Ran | QuietVariant], again: Mapping[int, Ran]
) -> dict[int, QuietVariant]:
    """Return the variants that did the same twice, with the part of their digests that is equal.

    The part always has calls and results. It lacks data that changes from run to run, like times.
    """
    same = {}
    for seed in first.keys() & again.keys():
        whole, other = first[seed].digest, again[seed].digest
        digest = whole if whole == other else whole[:RESULTS]
        if digest and other.startswith(digest):
            same[seed] = QuietVariant(seed=seed, digest=digest, failed=again[seed].failed)
    return same


@dataclass(frozen=True, slots=True)
class Change:
    """A change by a variant: the call, its index in the program, what changed, and both values."""

    call: int
    place: int
    what: str
    before: int
    after: int

    @property
    def words(self) -> str:
        """The change in words."""
        call = f"{call_name(self.call)} (call {self.place + 1})"
        kind, _, number = self.what.partition("-")
        match kind:
            case "left":
                return f"{call} is left out"
            case "repeated":
                return f"{call} is repeated"
            case "beside":
                return f"{call} is also made by a second process at the same time"
            case "string":
                return f"{call} passes another string"
            case "argument":
                where = f"argument {int(number) + 1}"
            case "descriptor":
                where = "the descriptor"
            case _:
                where = "a number in memory"
        return f"{call} passes {where} {self.after:#x} instead of {self.before:#x}"


@dataclass(frozen=True, slots=True)
class Replaced:
    """Calls of a syzkaller program that a variant replaces, in words."""

    words: str


@dataclass(slots=True)
class Shown:
    """One variant in detail: its changes by bit, its calls in order.

    Each call is a tuple of its task, name, result, and a hash of the data that it wrote.
    """

    changes: dict[int, Change | Replaced] = field(default_factory=dict)
    calls: list[tuple[int, str, int, str]] = field(default_factory=list)
    digest: str | None = None
    """None until the variant has ended, and if it was cut off."""
    is_over: bool = False

    def take(self, words: list[str]) -> None:
        """Add a line of the engine's output; malformed ones are ignored."""
        match words:
            case ["change", *numbers, what, before, after] if (
                len(numbers) == 3 and _are_numbers(*numbers) and _are_hexadecimal(before, after)
            ):
                bit, call, place = map(int, numbers)
                if bit < _MOST_CHANGES:
                    self.changes[bit] = Change(call, place, what, int(before, 16), int(after, 16))
            case ["call", task, call, result, data] if (
                _are_numbers(task, call, result.lstrip("-")) and len(self.calls) < _MOST_CALLS
            ):
                self.calls.append((int(task), call_name(int(call)), int(result), data[:16]))
            case ["shown", seed, digest, cut] if _are_numbers(seed):
                self.digest = digest[:_DIGEST] if cut == "0" else None
                self.is_over = True


@dataclass(slots=True)
class VaryLog:
    """Parser of the engine's output. Pure."""

    # A hostile guest can write anything: numbers are bounded, and only seeds that were ordered
    # count.

    pace: Pace | None = None
    """Pace of the program so far; `is_learned` is set once the program has ended."""
    is_learned: bool = False
    ran: dict[int, Ran] = field(default_factory=dict)
    swept: set[int] = field(default_factory=set)
    shown: Shown = field(default_factory=Shown)
    asks: int = 0
    """Lines to acknowledge: the engine waits, as the guest may crash in its next action."""
    failed: int | None = None
    ordered: set[int] = field(default_factory=set)
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Add the next output, cut anywhere; malformed lines are ignored."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_LINE_BYTES:]
        for line in lines:
            self._take(line[:_LINE_BYTES].decode("ascii", "replace").split())

    def _take(self, words: list[str]) -> None:
        match words:
            case [("at" | "learned") as word, *numbers] if _are_numbers(*numbers):
                self.asks += word == "at"
                self.is_learned |= word == "learned"
                self.pace = _pace(numbers) or self.pace
            case ["ran", seed, digest, changes, failed, "0"] if _are_numbers(seed, changes, failed):
                if int(seed) in self.ordered:
                    self.ran[int(seed)] = Ran(digest[:_DIGEST], int(changes), int(failed))
            case ["swept", seed] if _are_numbers(seed):
                self.swept.add(int(seed))
            case ["failed", number] if _are_numbers(number):
                self.failed = int(number)
            case _:
                self.asks += words[:1] == ["change"]
                self.shown.take(words)


@dataclass(slots=True)
class Part:
    """Variants of one dictionary: first the seeds of `sweeps`, in order, then those of `shows`.

    A show is a seed with a mask of its changes. Without a `pace`, it is learned first. In the end,
    `losses` are measured, of the sweeps' variants or of the unchanged program (`balance`). With
    `is_exact`, each variant has memory of its own: that is slower, but independent of the order.
    No sweep begins later than `most_seconds` after the session's start (`until`, on the monotonic
    clock). `orders` are the sweeps that were begun, `shown` the shows that were begun, of which the
    last may not have ended; `log` holds the answers. Only the first `calls` system calls change.
    `missing` says why not all variants ran, or why their results are unknown.
    """

    sweeps: Sequence[range] = ()
    shows: Sequence[tuple[int, int]] = ()
    pace: Pace | None = None
    calls: int | None = None
    words: str = WORDS
    batch: int = BATCH
    is_exact: bool = False
    balance: Literal["variants", "program"] | None = None
    losses: list[Loss] | None = None
    most_seconds: float = math.inf
    until: float = math.inf
    orders: list[range] = field(default_factory=list)
    shown: list[tuple[int, Shown]] = field(default_factory=list)
    missing: str = ""
    log: VaryLog = field(default_factory=VaryLog)


class VariantSession(GuestSession):
    """A session that runs the variants of its parts, one part after the other."""

    lost = "the variants did not come to their end"

    def __init__(self, *parts: Part) -> None:
        super().__init__()
        self.parts = parts

    async def work(self, ssh: Ssh) -> None:
        """Run all variants."""
        begin = time.monotonic()
        for part in self.parts:
            part.until = begin + part.most_seconds
            await self._run_part(ssh, part)

    async def _run_part(self, ssh: Ssh, part: Part) -> None:
        folder = f"{_FOLDER}/{secrets.token_hex(4)}"
        command = f"{VARIER} {folder} {PROGRAM} {part.words}"
        stream = await ssh.start(command, _CALL_SECONDS)
        pace = await _perform(part, stream)
        if part.balance is not None:
            # If the fix makes the program wait, each run takes a second.
            most = int(_BALANCE_SECONDS / _longest(pace))
            runs = min(balance.RUNS, max(most, balance.LEAST_RUNS))
            run_all = partial(_run_for_balance, part, stream, runs)
            part.losses = await balance.measured(ssh, run_all, runs)
        await _end(stream)


async def _perform(part: Part, stream: Stream) -> Pace:
    """Run the part's variants; return the pace at which they ran."""
    log = part.log
    if part.pace is None:
        await _order(log, stream, "learn", lambda: log.is_learned)
    pace = part.pace or log.pace
    if pace is None:
        raise InstanceEnded(InstanceOutcome.NOT_DONE, "variants could change no system call")
    part.pace = pace = pace.model_copy(update={"calls": min(pace.calls, part.calls or pace.calls)})
    await stream.send(use_order(pace).encode())
    for seeds in part.sweeps:
        first = seeds.start
        while first < seeds.stop:
            left = part.until - time.monotonic()
            if left <= 0:
                break
            # A full order, if all of its variants wait, would exceed the time of the sweeps.
            size = int(min(part.batch, 1 + left / _longest(pace)))
            batch = range(first, min(first + size, seeds.stop))
            part.orders.append(batch)
            log.ordered.update(batch)
            is_swept = partial(log.swept.__contains__, first)
            word = "exact" if part.is_exact else "sweep"
            await _order(log, stream, f"{word} {first} {len(batch)}", is_swept)
            first = batch.stop
    for seed, mask in part.shows:
        log.shown = Shown()
        part.shown.append((seed, log.shown))
        order = f"show {seed} {min(mask, ALL_CHANGES)}"
        await _order(log, stream, order, lambda: log.shown.is_over)
    return pace


def use_order(pace: Pace) -> str:
    """Return the order by which variants have this pace."""
    # At most twice the usual time: some variants wait for an event that never comes.
    return f"use {pace.calls} {2 * pace.milliseconds} {2 * pace.pause}\n"


async def _end(stream: Stream) -> None:
    """Close the engine's stdin, and wait up to _END_SECONDS for its end."""
    # Dropbear was seen to close a channel that was opened while another channel's program ended.
    await stream.finish()
    until = time.monotonic() + _END_SECONDS
    while (await stream.read(_READ_SECONDS))[2] and time.monotonic() < until:
        pass


async def _run_for_balance(part: Part, stream: Stream, runs: int) -> None:
    """Make the runs over which losses are measured."""
    if part.balance == "program":
        orders = [f"plain {_PLAIN_SEED} {runs}"]
    else:
        seeds = [seed for sweep in part.sweeps for seed in sweep]
        chosen = [seeds[number % len(seeds)] for number in range(runs)]
        orders = [f"exact {seed} 1" for seed in chosen]
    # Sent all at once: waiting for each answer would take longer than the runs.
    orders.append(f"exact {_NO_SEED} 0")
    part.log.swept.discard(_NO_SEED)
    await _order(part.log, stream, "\n".join(orders), lambda: _NO_SEED in part.log.swept)


async def _order(log: VaryLog, stream: Stream, order: str, is_done: Callable[[], bool]) -> None:
    """Send an order and wait for its answer."""
    await stream.send(f"{order}\n".encode())
    until = time.monotonic() + _ORDER_SECONDS
    while not is_done():
        out, _, more = await stream.read(_READ_SECONDS)
        log.feed(out)
        while log.asks:
            log.asks -= 1
            await stream.send(b"go\n")
        if log.failed is not None or not (more or is_done()):
            detail = f"the engine of variants ended ({log.failed})"
            raise InstanceEnded(InstanceOutcome.START_FAILED, detail)
        if time.monotonic() > until:
            raise TimeoutError(f"no answer to {order[:60]!r} for {_ORDER_SECONDS:g} s")


def _longest(pace: Pace) -> float:
    """Return how many seconds a run takes at most."""
    return min(max(2 * pace.milliseconds, 50), 1000) / 1000  # LEAST_MS, MOST_MS of the engine


def _pace(numbers: Sequence[str]) -> Pace | None:
    if len(numbers) != 3 or int(numbers[0]) == 0:
        return None
    calls, milliseconds, pause = (min(int(number), (1 << 20) - 1) for number in numbers)
    return Pace(calls=calls, milliseconds=milliseconds, pause=pause)


def _are_numbers(*words: str) -> bool:
    return all(word.isascii() and word.isdigit() and len(word) < 20 for word in words)


def _are_hexadecimal(*words: str) -> bool:
    return all(0 < len(word) <= 16 and set(word) <= set("0123456789abcdef") for word in words)
