"""Running the reproducer in a booted guest, for its whole time by the host's clock."""

import asyncio
import os
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kgym.api.steps import InstanceOutcome
from kgym.api.syz_program import Executed
from kgym.bugs.run_ends import KILLED, CompletedRuns, End
from kgym.host.quoted_words import quoted
from kgym_vmmanager.guest.console import NOTHING, Console
from kgym_vmmanager.guest.paths import PROGRAM, RUNNER
from kgym_vmmanager.guest.runner_log import RunnerLog
from kgym_vmmanager.guest.ssh import ConnectionLost, Ssh, Stream
from kgym_vmmanager.reproduce.instance_plan import RunTime
from kgym_vmmanager.vm.instance_ending import InstanceEnded, InstanceEnding
from kgym_vmmanager.vm.provider import InstanceLimits

# Returns another connection to the guest.
Reconnect = Callable[[], Awaitable[Ssh]]
# Returns whether the CPUs of a silent guest are idle; None if that cannot be determined.
IsIdle = Callable[[], Awaitable[bool | None]]
_FOLDER = "/tmp"  # noqa: S108 - the guest's
_CALL_SECONDS = 60.0
_READ_SECONDS = 0.25
# Restarts of a runner that the program has killed.
_RESTARTS = 20
# Bytes of syz-execprog's output that are searched: the calls that it executes come first.
_SYZ_OUTPUT_BYTES = 1 << 20
# Extra time for a syzkaller program that has not been executed once: on an emulated CPU,
# syz-execprog takes seconds to load its description of all system calls.
_SYZ_SECONDS = 120.0
# Characters of the summary of a syzkaller program.
_SYZ_SUMMARY = 1000


@dataclass
class Session:
    """Runs the reproducer for its time by the host's clock.

    `on_time` is called with the seconds so far. An instance does not count as survived if too few
    runs `completed`, or if not all calls of `syz`, a program of syzkaller's, were executed.
    """

    # The host keeps the time: an emulated guest's clock was seen to run 2.8 times too fast, and 74
    # s of the guest took 42 s. So the runner goes on until its stdin ends.

    _time: RunTime
    _limits: InstanceLimits
    _console: Console
    _output: Console
    _on_time: Callable[[float], None]
    _completed: CompletedRuns
    _syz: str | None = None
    _syz_output: bytes = b""
    _log: RunnerLog = field(default_factory=RunnerLog)
    # Seconds and logs of runners that were killed.
    _lives: list[tuple[float, RunnerLog]] = field(default_factory=list)
    _begin: float = 0.0
    _heard: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds that the reproducer has been running, up to the last sign of life."""
        return sum(seconds for seconds, _ in self._lives) + self._heard - self._begin

    @property
    def runs(self) -> int:
        """Number of runs."""
        return self._log.runs + sum(log.runs for _, log in self._lives)

    @property
    def ends(self) -> Counter[End]:
        """How the runs ended; `killed` only if none ended by itself."""
        ends = sum((log.ends for _, log in self._lives), self._log.ends.copy())
        return ends or Counter({KILLED: 1} if self.runs and self._log.over else {})

    def ran_until(self, moment: float) -> None:
        """Record that the reproducer was still running at `moment` (monotonic clock)."""
        if self._begin:
            self._heard = max(self._heard, moment)

    async def run(self, ssh: Ssh, reconnect: Reconnect, is_idle: IsIdle) -> InstanceEnding:
        """Run the reproducer for its whole time; raises InstanceEnded for any other end."""
        # The deadline is the host's: nothing that the guest says can extend it.
        limits = self._limits
        patience = limits.silence + limits.watchdog + limits.reconnect + limits.finish
        try:
            async with asyncio.timeout(self._time.seconds + patience):
                return await self._run_lives(ssh, reconnect, is_idle)
        except TimeoutError:
            detail = (
                f"not at its end {patience:g} s after its time; it ran for {self.seconds:.0f} s"
            )
            raise InstanceEnded(InstanceOutcome.HUNG, detail) from None

    async def _run_lives(self, ssh: Ssh, reconnect: Reconnect, is_idle: IsIdle) -> InstanceEnding:
        # A program may kill our runner (`kill(-1)`) without harm to the kernel: another runner is
        # started as long as the guest answers.
        for _ in range(_RESTARTS + 1):
            try:
                await self._follow(ssh, f"{_FOLDER}/{secrets.token_hex(4)}", is_idle)
                return await self._check_alive(ssh)
            except ConnectionLost as error:
                lost = error
            await asyncio.sleep(self._limits.grace)  # a crash would explain it
            self._lives.append((self._heard - self._begin, self._log))
            self._begin = self._heard = 0.0
            self._log = RunnerLog()
            try:
                ssh = await reconnect()
            except ConnectionLost:
                break
        raise InstanceEnded(
            InstanceOutcome.SSH_LOST, f"after {self.seconds:.0f} s: {lost}", retry=True
        )

    async def _follow(self, ssh: Ssh, folder: str, is_idle: IsIdle) -> None:
        """Follow one runner until the time is over; raises InstanceEnded or ConnectionLost."""
        stream = await ssh.start(f"{RUNNER} {folder} {PROGRAM}", _CALL_SECONDS)
        self._begin = self._heard = sign_of_life = time.monotonic()
        finishing: float | None = None
        while not self._log.over:
            if await self._listen(stream) or time.monotonic() - self._console.last < 1:
                sign_of_life = time.monotonic()
            if time.monotonic() - sign_of_life > self._limits.silence:
                await self._wait_for_watchdog(stream, is_idle)
                sign_of_life = time.monotonic()
            if finishing is None and self._is_enough():
                finishing = time.monotonic()
                await stream.finish()
            if finishing is not None and time.monotonic() - finishing > self._limits.finish:
                detail = f"the runner goes on {self._limits.finish:g} s after it was told to end"
                raise InstanceEnded(InstanceOutcome.HUNG, detail)
        self._judge_runs()
        if self._log.stuck:
            await asyncio.sleep(self._limits.watchdog)
            detail = f"{self._log.stuck} processes of the reproducer cannot be killed"
            raise InstanceEnded(InstanceOutcome.HUNG, detail)

    async def _listen(self, stream: Stream) -> bool:
        """Read the runner's output; return whether there was any."""
        lines = self._log.lines
        out, err, more = await stream.read(_READ_SECONDS)
        self._log.feed(out)
        self._output.feed(err)
        if self._syz is not None and len(self._syz_output) < _SYZ_OUTPUT_BYTES:
            self._syz_output += err
        if self._log.failed is not None:
            why = os.strerror(self._log.failed)
            raise InstanceEnded(
                InstanceOutcome.START_FAILED, f"the reproducer cannot be executed: {why}"
            )
        if not more and not self._log.over:
            raise ConnectionLost("the runner ended before its time")
        if self._log.lines == lines:
            return False
        self._heard = time.monotonic()
        self._on_time(min(self.seconds, self._time.seconds))
        return True

    def _is_enough(self) -> bool:
        early = self._failed_at_once and self.seconds >= self._limits.early
        over = self.seconds - self._time.seconds
        enough = over >= _SYZ_SECONDS or (over >= 0 and self._has_executed)
        return (early and self._lacking is not None) or enough

    @property
    def _has_executed(self) -> bool:
        """Whether a syzkaller program was executed to its end once; C programs start at once."""
        if self._syz is None:
            return True
        executed = Executed.read(self._syz_output)
        return bool(executed.calls) and bool(executed.results or executed.idle or self.ends)

    @property
    def _failed_at_once(self) -> bool:
        quick = self._log.quick + sum(log.quick for _, log in self._lives)
        return 0 < self.runs == quick

    @property
    def _lacking(self) -> str | None:
        return self._completed.lacks(self.ends)

    def _judge_runs(self) -> None:
        why = self._lacking
        if why is None and self._syz is not None:
            why = Executed.read(self._syz_output).lacks(self._syz)
        if why is None:
            return
        words = f"the program's last words: {self._output.last_lines()}"
        if self._failed_at_once:
            why = f"all {self.runs} runs failed at once; the last: {self._log.last_end}; {why}"
            raise InstanceEnded(InstanceOutcome.ENDED_EARLY, f"{why}; {words}")
        raise InstanceEnded(InstanceOutcome.NOT_DONE, f"{why}; {words}")

    async def _wait_for_watchdog(self, stream: Stream, is_idle: IsIdle) -> None:
        """Give the kernel's watchdogs time to report a hang; return if the guest answers again."""
        begin = time.monotonic()
        while time.monotonic() - begin < self._limits.watchdog:
            if await self._listen(stream):
                return
        silent = self._limits.silence + self._limits.watchdog
        detail = f"no sign of life for {silent:.0f} s, and no report of why"
        if idle := await is_idle():
            raise InstanceEnded(InstanceOutcome.SSH_LOST, f"{detail}; the guest's CPUs idle")
        if idle is None:  # the provider cannot tell: the network may have failed
            detail = f"{detail}; whether its CPUs are busy cannot be told"
            raise InstanceEnded(InstanceOutcome.SSH_LOST, detail, retry=True)
        raise InstanceEnded(InstanceOutcome.HUNG, f"{detail}; the guest's CPUs are busy")

    async def _check_alive(self, ssh: Ssh) -> InstanceEnding:
        status, _ = await ssh.run("true", limit=_CALL_SECONDS)
        if status != 0:
            raise InstanceEnded(
                InstanceOutcome.HUNG, f"afterwards, the guest's `true` ended with {status}"
            )
        await asyncio.sleep(self._limits.grace)
        if self._syz is not None:
            detail = quoted(Executed.read(self._syz_output).summary(), _SYZ_SUMMARY)
        else:  # a program that runs on but cannot do its work often prints why
            words = self._output.last_lines()
            detail = f"the program's last words: {words}" if words != NOTHING else ""
        return InstanceEnding(InstanceOutcome.SURVIVED, detail)
