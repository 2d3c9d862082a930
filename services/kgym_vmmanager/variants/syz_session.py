"""Running variants of a syzkaller program in a booted guest.

One syz-execprog runs many programs of a file in their order: under emulation it takes seconds to
start. It prints each program before it runs, and the errors of its calls afterwards. A crash loses
the last lines, so programs run with pauses in between if the one that crashes has to be identified.
"""

import hashlib
import re
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from kgym.api.steps import InstanceOutcome, InstanceResult, Pace
from kgym.api.syz_program import Executed
from kgym.host.quoted_words import quoted
from kgym_vmmanager.guest.paths import PROGRAM
from kgym_vmmanager.guest.ssh import ConnectionLost, Ssh
from kgym_vmmanager.variants import balance
from kgym_vmmanager.variants.syz_mutator import Made, Mutator, Program, SyzVariant
from kgym_vmmanager.variants.variant_search import Guest
from kgym_vmmanager.variants.variant_session import (
    ALL_CHANGES,
    Part,
    Ran,
    Replaced,
    Shown,
    VariantSession,
)

_FOLDER = "/tmp"  # noqa: S108 - the guest's
_CALL_SECONDS = 60.0
_READ_SECONDS = 0.2
# Variants that are made for a part: there is no time for more.
_MOST_MADE = 2000
# Programs of one file, which is parsed before the first one runs.
_BATCH = 250
_BATCH_SECONDS = 300.0
_SILENT_SECONDS = 120.0
# After a crash, any of so many programs before and after the last printed one may be the cause:
# lines about later programs may not have left the guest.
_EARLIER, _UNSEEN = 5, 20
# Failures of syz-execprog in one part: some variants break the executor.
_MOST_FAILURES = 5
_SECTION_BYTES = 1 << 16
# Longer than lines take to leave the guest; threaded executors wait 50 ms for each call.
_PAUSE: Program = ("nanosleep(&(0x7f0000000000)={0x0, 0x5f5e100}, 0x0)",) * 3
_BLIND = "syz-execprog does not show the results of calls: variants are checked for crashes only"
# Go's log puts the date before a line.
_HEADER = re.compile(rb"(?:[0-9/]{8,10} [0-9:.]{8,15} )?executing program ?[0-9]{0,9}:\s*")


@dataclass(frozen=True, slots=True)
class SyzGuest:
    """Boots guests of a `kernel` with variants made by `mutators`, keyed by the dictionary's path.

    Raises UserError `cannot_mutate`.
    """

    kernel: Guest
    mutators: Mapping[str, Mutator]

    async def __call__(self, name: str, session: VariantSession) -> InstanceResult:
        """Run the session's parts; return the guest's result."""
        made = []
        for part in session.parts:
            made.append(await self.mutators[part.words].make(list(_orders(part))))
            part.log.pace = Pace(calls=len(made[-1].base), milliseconds=0, pause=0)
            part.missing = made[-1].lacks
        if not any(part.sweeps or part.shows or part.balance for part in session.parts):
            # Without variants, only the program's calls are wanted, which the mutator has printed.
            return InstanceResult(number=0, outcome=InstanceOutcome.SURVIVED)
        return await self.kernel(name, SyzSession(session.parts, made))


def _orders(part: Part) -> Iterator[tuple[int, int, int]]:
    left = _MOST_MADE
    for sweep in part.sweeps:
        if left > 0:
            yield sweep.start, min(left, len(sweep)), ALL_CHANGES
            left -= len(sweep)
    for seed, mask in part.shows:
        yield seed, 1, mask


class ExecutionLog:
    """Parser of the output of syz-execprog for `count` programs. Pure."""

    # A hostile guest can print anything: the size of a section is bounded, and no more than
    # `count` programs are reported.

    def __init__(self, count: int) -> None:
        self._count = count
        self.number = -1
        self._section = self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, Executed | None]]:
        """Yield the number of each program when it begins, and again when it has ended."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_SECTION_BYTES:]
        for line in lines:
            if _HEADER.fullmatch(line[:100]) and self.number + 1 < self._count:
                yield from self.ended()
                self.number += 1
                self._section = b""
                yield self.number, None
            if len(self._section) < _SECTION_BYTES:
                self._section += line[:_SECTION_BYTES] + b"\n"

    def ended(self) -> Iterator[tuple[int, Executed]]:
        """Yield the last program, which has ended."""
        if self.number >= 0:
            yield self.number, Executed.read(self._section)

    @property
    def last_words(self) -> str:
        """What was printed last."""
        return quoted((self._section + self._rest)[-300:], 300)


class _ExecprogFailed(Exception):
    """syz-execprog ended with an error."""


class SyzSession(VariantSession):
    """A session that runs the variants that were made for its parts, in their order."""

    def __init__(self, parts: Sequence[Part], made: Sequence[Made]) -> None:
        super().__init__(*parts)
        self._made = {id(part): variants for part, variants in zip(parts, made, strict=True)}

    async def _run_part(self, ssh: Ssh, part: Part) -> None:
        made = self._made[id(part)]
        seeds = [seed for sweep in part.sweeps for seed in sweep]
        seeds = [seed for seed in seeds if (seed, ALL_CHANGES) in made.variants]
        for _ in range(-(-len(seeds) // _BATCH) + _MOST_FAILURES):
            if seeds and time.monotonic() < part.until:
                seeds = seeds[await _sweep(ssh, part, made, seeds[:_BATCH]) :]
        try:
            await _show(ssh, part, made)
            if part.balance is not None:
                programs = [made.base]
                if part.balance == "variants":
                    programs = [variant.program for variant in made.variants.values()]
                repeated = [programs[n % len(programs)] for n in range(balance.RUNS)]
                part.losses = await balance.measured(ssh, lambda: _run_all(ssh, repeated))
        except _ExecprogFailed as error:
            part.missing = part.missing or str(error)


async def _sweep(ssh: Ssh, part: Part, made: Made, seeds: Sequence[int]) -> int:
    """Run the variants of these seeds; return how many need not run again, at least one."""
    variants = [made.variants[seed, ALL_CHANGES] for seed in seeds]
    programs = [_PAUSE, *(variant.program for variant in variants)]
    begun, is_blind = 0, False
    try:
        async with aclosing(_executed(ssh, programs)) as events:
            async for number, executed in events:
                if executed is None:
                    begun = number
                    first, last = max(0, number - 1 - _EARLIER), min(len(seeds), number + _UNSEEN)
                    part.orders[:] = [range(seeds[first], seeds[last - 1] + 1)]
                elif number == 0:
                    is_blind = not executed.results
                    part.missing = part.missing or _BLIND * is_blind
                else:
                    ran = _ran(executed, variants[number - 1])
                    # If results are compared, a variant without results does not count as run.
                    if not part.is_exact or (ran.digest and not is_blind):
                        part.log.ran[seeds[number - 1]] = ran
                if time.monotonic() > part.until:
                    break
    except _ExecprogFailed as error:
        part.missing = part.missing or str(error)
    return max(begun, 1)


async def _show(ssh: Ssh, part: Part, made: Made) -> None:
    """Run the variants to be shown, each between two pauses."""
    shows = [show for show in part.shows if show in made.variants]
    if not shows:
        return
    programs = [_PAUSE]
    for show in shows:
        programs += [made.variants[show].program, _PAUSE, _PAUSE]
    async with aclosing(_executed(ssh, programs)) as events:
        async for number, executed in events:
            if number % 3 == 0 and executed is None and number // 3 < len(shows):
                # If the next variant crashes the kernel, its lines are lost, but not this pause's.
                variant = made.variants[shows[number // 3]]
                shown = Shown({bit: Replaced(words) for bit, words in variant.changes().items()})
                part.shown.append((shows[number // 3][0], shown))
            elif number % 3 == 1 and executed is not None:
                _, shown = part.shown[-1]
                shown.digest = _ran(executed, made.variants[shows[number // 3]]).digest or None
                shown.calls = [(0, name, -error, "") for name, error in _results(executed)]
                shown.is_over = True


async def _run_all(ssh: Ssh, programs: Sequence[Program]) -> None:
    async with aclosing(_executed(ssh, programs)) as events:
        async for _ in events:
            pass


async def _executed(
    ssh: Ssh, programs: Sequence[Program]
) -> AsyncGenerator[tuple[int, Executed | None], None]:
    """Run programs in one process; yield what `ExecutionLog.feed` yields.

    Raises _ExecprogFailed, ConnectionLost, and TimeoutError if it prints nothing for long.
    """
    folder = f"{_FOLDER}/{secrets.token_hex(4)}"
    text = "".join(f"executing program 0:\n{_lines(program)}\n" for program in programs)
    command = f"mkdir {folder} && cat >{folder}/programs"
    await ssh.run(command, stdin=text.encode(), limit=_CALL_SECONDS)
    stream = await ssh.start(f"cd {folder} && exec {PROGRAM} programs 2>&1", _CALL_SECONDS)
    log, begin = ExecutionLog(len(programs)), time.monotonic()
    heard, more = begin, True
    while more:
        out, _, more = await stream.read(_READ_SECONDS)
        now = time.monotonic()
        heard = now if out else heard
        for event in log.feed(out):
            yield event
        if now - heard > _SILENT_SECONDS or now - begin > _BATCH_SECONDS:
            raise TimeoutError(f"syz-execprog is not at its end after {now - begin:.0f} s")
    if stream.status < 0:
        raise ConnectionLost("the connection ended before syz-execprog")
    if stream.status != 0:
        raise _ExecprogFailed(f"syz-execprog fails ({stream.status}): {log.last_words}")
    for event in log.ended():
        yield event
    # syz-execprog skips programs that it cannot parse: the later ones would get wrong numbers.
    if log.number + 1 < len(programs):
        raise _ExecprogFailed(f"syz-execprog ran {log.number + 1} of {len(programs)} programs")


def _lines(program: Program) -> str:
    return "".join(f"{call}\n" for call in program)


def _ran(executed: Executed, variant: SyzVariant) -> Ran:
    """Return what a variant did; the digest is empty if results are unknown or depend on timing."""
    results = _results(executed)
    is_cut = any("unfinished" in result for result in executed.results.values())
    lines = "\n".join(f"{name} {error}" for name, error in results)
    digest = hashlib.sha256(lines.encode()).hexdigest()[:16]
    failed = sum(error != 0 for _, error in results)
    return Ran(digest if executed.results and not is_cut else "", len(variant.rounds), failed)


def _results(executed: Executed) -> list[tuple[str, int]]:
    """Return the calls with their errors; calls that were not made are left out."""
    calls = enumerate(executed.calls)
    known = [(name, executed.results[n]) for n, name in calls if n in executed.results]
    return [(name, int(result.split()[1])) for name, result in known]
