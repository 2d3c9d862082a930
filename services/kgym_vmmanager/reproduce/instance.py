"""One VM, from its boot to its outcome: SSH, the reproducer, the console."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial

from kgym import tasks
from kgym.api.jobs import VmProgress, VmState
from kgym.api.steps import (
    CRASHED_AT_BOOT,
    InstanceArtifact,
    InstanceDump,
    InstanceOutcome,
    InstanceResult,
    Work,
)
from kgym.bugs.known_noise import noise
from kgym.bugs.run_ends import listed
from kgym.crash.report import CrashReport, CrashType, parse, parse_all
from kgym_vmmanager.dump.guest_memory import Dump, Scene, dump_bytes
from kgym_vmmanager.evidence import crash_path, leaks
from kgym_vmmanager.evidence.breakpoints import Breakpoints, StubFailed
from kgym_vmmanager.evidence.call_profile import FOLDER, Profiling, TracerLog
from kgym_vmmanager.evidence.compared_work import lacks, proves_nothing
from kgym_vmmanager.evidence.controls import Connect, Controls, Share
from kgym_vmmanager.evidence.smoke import SmokeTest
from kgym_vmmanager.guest.console import FILE_BYTES, Console
from kgym_vmmanager.guest.guest_image import READY, REFUSED
from kgym_vmmanager.guest.guest_session import GuestSession
from kgym_vmmanager.guest.paths import RUNNER
from kgym_vmmanager.guest.ssh import ConnectionLost, Ssh
from kgym_vmmanager.reproduce.instance_plan import InstancePlan
from kgym_vmmanager.reproduce.reproducer_run import Session
from kgym_vmmanager.vm.disk_room import overlay_bytes
from kgym_vmmanager.vm.instance_ending import InstanceEnded, InstanceEnding
from kgym_vmmanager.vm.provider import Boot, Drive, Vm, VmHost

_POLL_SECONDS = 0.05
# Limit of the wait for the rest of a report, by whether the kernel panicked: after a panic the
# console of a busy emulated guest lags most.
_SETTLE_SECONDS = {False: 5.0, True: 15.0}
# Limit of the wait, after the end, for a console that keeps printing what looks like reports.
_JUDGED_SECONDS = 60.0
# Outcomes of which a dump shows the cause.
_DUMPED = {InstanceOutcome.CRASH, InstanceOutcome.HUNG}


class Instance:
    """Instance `number` of a plan; its files are named after `name`.

    `on_time` is called with the seconds that the reproducer has been running. A guest that survives
    raises the faults of `share`. A `session` runs in place of the program.
    """

    def __init__(
        self,
        plan: InstancePlan,
        host: VmHost,
        number: int,
        name: str,
        on_time: Callable[[float], None],
        *,
        smoke: bool = False,
        share: Share | None = None,
        session: GuestSession | None = None,
    ) -> None:
        self._program = number % len(plan.initrds)
        self.report: CrashReport | None = None
        self.dump: InstanceDump | None = None
        self.ending: InstanceEnding | None = None
        self.controls: Controls | None = None
        self.console = Console(plan.folder / InstanceArtifact.CONSOLE.of(name))
        self.output = Console(plan.folder / InstanceArtifact.PROGRAM.of(name))
        self._plan = plan
        self._host = host
        self.number, self._name = number, name
        self._limits = host.limits
        self.unwatched = ""
        self._session: Session | GuestSession
        self._profiling: Profiling | None = None
        self._common: frozenset[str] = frozenset()
        self._points: Breakpoints | None = None
        self._dump: Dump | None = None
        if smoke and plan.smoke is not None:
            self._session = SmokeTest(self.output)
        elif session is not None:
            self._session = session
            self._profiling = session if isinstance(session, Profiling) else None
        else:
            if plan.profiled and number == 0:
                self._profiling = Profiling()
            if plan.method is not None:
                self._dump = Dump(plan.method, plan.folder / f"dump-{name}")
            self._session = Session(
                plan.time,
                self._limits,
                self.console,
                self.output,
                on_time,
                plan.completed,
                plan.texts[self._program] if plan.texts else None,
            )
        if share is not None and plan.detectors is not None:
            self.controls = Controls(self.console, plan.detectors, share)
        is_smoke = isinstance(self._session, SmokeTest)
        initrd = plan.smoke if is_smoke and plan.smoke else plan.initrds[self._program]
        folder, drive = plan.folder / f"vm-{name}", None
        if plan.disk is not None and plan.disk.used.format is not None:
            most = overlay_bytes(plan.disk.size)
            drive = Drive(str(plan.disk.path), plan.disk.used.format, most)
        words, left = plan.words, 2 * FILE_BYTES
        if self._dump is not None:
            left += dump_bytes(plan.shape.memory)
        self._boot = Boot(name, folder, plan.kernel, initrd, plan.shape, words, drive, left)
        self._running = False
        self._started_at = time.monotonic()
        self._boot_seconds: float | None = None
        self._verdict_lag: float | None = None

    @property
    def progress(self) -> VmProgress:
        """Return its current state."""
        state: VmState = "running" if self._running else "booting"
        if self.ending is not None:
            survived = self.ending.outcome is InstanceOutcome.SURVIVED
            state = "controls" if survived else "crashed"
        elif self.console.watch.crash_seen:
            state = "crashed"
        line = "" if self.console.size == 0 else self.console.last_lines(1)
        seconds = round(time.monotonic() - self._started_at, 1)
        return VmProgress(name=self._name, state=state, seconds=seconds, line=line)

    @property
    def command(self) -> str:
        """How its VM is started, for people to read."""
        return self._host.describe_boot(self._boot)

    @property
    def smoke_output(self) -> str:
        """The output of the smoke test."""
        return self._session.text if isinstance(self._session, SmokeTest) else ""

    @property
    def work(self) -> Work | None:
        """The program's system calls, if it was traced to its end or to the crash."""
        crashed = self.ending is not None and self.ending.outcome is InstanceOutcome.CRASH
        log = self._profiling.log if self._profiling else TracerLog()
        if not log.over and not (crashed and log.answers):
            return None
        work = log.work(crashed=not log.over)
        if log.over and proves_nothing(work):
            return None
        if self._points is None or self._points.failed is not None:
            return work
        hit = frozenset(self._points.hit)
        reached = crash_path.reached(self._plan.way, self._common, hit)
        return work.model_copy(update={"reached": reached})

    @property
    def evidence_seconds(self) -> float:
        """Seconds spent on tracing the program and on raising faults."""
        traced = self._profiling.seconds if self._profiling else 0.0
        return traced + (self.controls.seconds if self.controls else 0.0)

    async def live(self, on_end: Callable[[InstanceEnding], None]) -> InstanceEnding:
        """Run the VM from boot to end; raises InfrastructureError if it or the disk fails.

        `on_end` is called with the ending before the dump is taken or faults are raised.
        """
        try:
            async with self._host.running(self._boot, self.console.feed) as vm:
                self.console.source = vm
                self.ending = await _first(self._trouble(vm), self._work(vm))
                on_end(self.ending)
                if self._dump is not None and self.ending.outcome in _DUMPED:
                    self.dump = await self._dump.take(self._scene(vm))
                if self.controls is not None and self.ending.outcome is InstanceOutcome.SURVIVED:
                    await self.controls.raise_all(self._connect(vm))
                return self.ending
        finally:
            self.console.close()
            self.output.close()

    def result(self, ending: InstanceEnding) -> InstanceResult:
        """Return the instance's result, for this ending."""
        return InstanceResult(
            number=self.number,
            outcome=ending.outcome,
            detail=ending.detail,
            boot_seconds=self._boot_seconds,
            run_seconds=round(self._session.seconds, 2) if self._running else None,
            reproducer=self._program,
            # The crash may have swallowed the runner's line about the first run.
            runs=max(self._session.runs, int(ending.outcome is InstanceOutcome.CRASH)),
            ends=listed(self._session.ends),
            title=self.report.title if self.report else None,
            alt_titles=list(self.report.alt_titles) if self.report else [],
            verdict_lag=self._verdict_lag,
            dump=self.dump,
        )

    def _connect(self, vm: Vm) -> Connect:
        image = self._plan.image
        return partial(Ssh.connected, vm.dial, image.host_key, image.client_key)

    def _scene(self, vm: Vm) -> Scene:
        memory, panicked = self._plan.shape.memory, self.console.watch.panicked
        return Scene(vm, self.console, panicked, memory, self._limits.boot, self._connect(vm))

    # --- what may happen at any time ------------------------------------------------------

    async def _trouble(self, vm: Vm) -> InstanceEnding:
        """Wait for a crash, a reset, or the end of the VM."""
        died = asyncio.create_task(vm.died())
        try:
            while True:
                for source in (self.console, self.output):
                    if source.error:
                        raise source.error
                if self.console.watch.crash_seen and (ending := await self._settle()):
                    return ending
                if self.output.watch.crash_seen and (ending := await self._given_up()):
                    return ending
                if vm.exceeded:
                    return InstanceEnding(InstanceOutcome.NOT_DONE, vm.exceeded)
                if vm.trouble:
                    raise vm.trouble
                if died.done():
                    raise died.result()
                if vm.stopped.is_set():
                    return await self._stopped(vm)
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            died.cancel()

    async def _complete(self, source: Console) -> bytes:
        """Wait for the rest of a report; return the whole log."""
        watch, begin = source.watch, time.monotonic()
        while not watch.complete and source.until - source.last < self._limits.quiet:
            over = source.until - begin > _SETTLE_SECONDS[watch.panicked]
            if over or time.monotonic() - begin > _JUDGED_SECONDS:
                break
            await asyncio.sleep(_POLL_SECONDS)
        return bytes(watch.log)

    async def _given_up(self) -> InstanceEnding | None:
        """Return an ending if syzkaller's tools printed that they gave up.

        Such a run proves nothing.
        """
        # The output is the program's: a kernel report in it may be forged and never counts.
        log = await self._complete(self.output)
        reports = await asyncio.to_thread(parse_all, log)
        report = next((given for given in reports if noise(given.title)), None)
        if report is None:
            self.output.watch_anew(log)
            return None
        self.report = report
        return InstanceEnding(InstanceOutcome.CRASH, report.title)

    async def _settle(self) -> InstanceEnding | None:
        """Wait for the rest of the kernel's report; None if it does not end the instance."""
        source, watch = self.console, self.console.watch
        running = self._running  # while the report is awaited, the program may start
        log = await self._complete(source)
        report = await asyncio.to_thread(parse, leaks.plain(log))
        # A report of the kernel's wins over a message that a tool gave up.
        suppressed = report is not None and report.suppressed and noise(report.title) is not None
        leak_of_boot = report is not None and not running and report.type is CrashType.MEMORY_LEAK
        if report is None or leak_of_boot or (suppressed and not watch.panicked):
            if source.watch is watch:
                source.watch_anew(log)
            return None
        self.report = report
        if not running:
            return InstanceEnding(InstanceOutcome.BOOT_FAILED, f"{CRASHED_AT_BOOT}: {report.title}")
        if suppressed:
            return InstanceEnding(
                InstanceOutcome.HUNG, f"the guest gave up, not for a bug: {report.title}"
            )
        if isinstance(self._session, Session):
            self._session.ran_until(source.last)
        self._verdict_lag = round(time.monotonic() - source.last, 3)
        return InstanceEnding(InstanceOutcome.CRASH, report.title)

    async def _stopped(self, vm: Vm) -> InstanceEnding:
        await vm.catch_up()
        if self.console.watch.crash_seen and (ending := await self._settle()):
            return ending
        words = self.console.last_lines()
        detail = f"the guest stopped ({vm.why_stopped}); its last words: {words}"
        if not self._running:
            return InstanceEnding(InstanceOutcome.BOOT_FAILED, detail, retry=True)
        return InstanceEnding(InstanceOutcome.REBOOTED, detail)

    # --- a guest in which nothing goes wrong ----------------------------------------------

    async def _work(self, vm: Vm) -> InstanceEnding:
        """Run the session to its end, then read the console to its end.

        A report may still be in the pipe of a busy host, or in a cloud's serial port.
        """
        ending = await self._go(vm)
        await vm.catch_up()
        if ending.outcome is InstanceOutcome.SURVIVED and (lost := vm.console_gap):
            detail = f"a crash may be in the lost part of the console: {lost}"
            ending = InstanceEnding(InstanceOutcome.NOT_DONE, detail, retry=True)
        begin = time.monotonic()
        while self.console.watch.crash_seen:
            if time.monotonic() - begin > _JUDGED_SECONDS:
                detail = (
                    f"for {_JUDGED_SECONDS:g} s its console has printed parts of crash reports, but"
                    f" no whole one; before: {ending.outcome}"
                )
                return InstanceEnding(InstanceOutcome.NOT_DONE, detail)
            await asyncio.sleep(_POLL_SECONDS)
        return ending

    async def _go(self, vm: Vm) -> InstanceEnding:
        async with contextlib.AsyncExitStack() as stack:

            async def connect(limit: float) -> Ssh:
                return await stack.enter_async_context(self._connect(vm)(limit))

            try:
                ssh = await self._booted(connect)
                if self._dump is not None:
                    await self._dump.arm(ssh)
                scans = self._plan.leaks and await leaks.clear(ssh)
                self.console.watch_anew()  # a crash from here on is caused by the reproducer
                self._running = True
                async with self._watched(vm, ssh):
                    ending = await self._session.run(
                        ssh, lambda: connect(self._limits.reconnect), vm.is_idle
                    )
                if self._plan.leaks and not scans:
                    raise InstanceEnded(InstanceOutcome.NOT_DONE, leaks.OFF)
                if scans:
                    await leaks.find(connect(self._limits.reconnect))
                if self._is_profiled_after:
                    await self._profile(connect)
                return ending
            except InstanceEnded as end:
                return end.ending
            except ConnectionLost as error:
                return InstanceEnding(
                    InstanceOutcome.SSH_LOST, f"before the reproducer: {error}", retry=True
                )

    @property
    def _is_profiled_after(self) -> bool:
        return self._profiling is not None and self._profiling is not self._session

    @contextlib.asynccontextmanager
    async def _watched(self, vm: Vm, ssh: Ssh) -> AsyncIterator[None]:
        """Record which of the crash's functions are reached; the guest cannot notice."""
        async with contextlib.AsyncExitStack() as stack:
            wanted = self._is_profiled_after and self._plan.way
            if wanted and vm.debugger is None:
                self.unwatched = "VMs of this kind have no debugger's stub"
            elif wanted and vm.debugger is not None:
                armed = Breakpoints.armed(vm.debugger, self._plan.way, self._host.most_points)
                try:
                    self._points = await stack.enter_async_context(armed)
                    # Functions that a harmless program reaches, too, prove nothing.
                    await ssh.run(f"{RUNNER} {FOLDER}/true /bin/true </dev/null", limit=20)
                    self._common = frozenset(self._points.hit)
                except (StubFailed, OSError, TimeoutError, ConnectionLost) as error:
                    self._points = None
                    self.unwatched = f"{type(error).__name__}: {error}"
            yield

    async def _profile(self, connect: Callable[[float], Coroutine[None, None, Ssh]]) -> None:
        """Trace the program in a guest that survived; raises InstanceEnded if it does no work."""
        assert self._profiling is not None
        try:
            await self._profiling.run(await connect(self._limits.reconnect))
        except (InstanceEnded, ConnectionLost):
            return  # the guest survived anyway; the evidence notes the missing trace
        work = self._profiling.log.work(crashed=False)
        if why := lacks(self._plan.before, work):
            raise InstanceEnded(InstanceOutcome.NOT_DONE, why)

    async def _booted(self, connect: Callable[[float], Coroutine[None, None, Ssh]]) -> Ssh:
        start, boots = time.monotonic(), self._plan.boots
        # The limit is computed anew each time: other guests finish their boots meanwhile.
        while not self.console.has_seen(READY):
            if time.monotonic() - start > (limit := boots.limit(self._limits.boot)):
                boots.hung()
                words = self.console.last_lines()
                detail = f"not booted after {limit:.0f} s; its last words: {words}"
                raise InstanceEnded(InstanceOutcome.BOOT_FAILED, detail, retry=True)
            if why := self.console.line_after(REFUSED):
                raise InstanceEnded(InstanceOutcome.BOOT_FAILED, f"its root disk: {why}")
            await asyncio.sleep(_POLL_SECONDS)
        limit = boots.limit(self._limits.boot)
        try:
            ssh = await connect(max(1.0, limit - (time.monotonic() - start)))
        except ConnectionLost as error:
            boots.hung()
            detail = f"booted, but SSH did not answer within {limit:.0f} s: {error}"
            raise InstanceEnded(InstanceOutcome.BOOT_FAILED, detail, retry=True) from error
        boots.booted(time.monotonic() - start)
        self._boot_seconds = round(time.monotonic() - start, 2)
        if self._profiling is not None:
            self._profiling.boot_seconds = self._boot_seconds
        return ssh


async def _first(*ways: Coroutine[None, None, InstanceEnding]) -> InstanceEnding:
    """Return the first ending; of several at once, that of the first argument."""
    ways_begun = [asyncio.create_task(way) for way in ways]
    try:
        await asyncio.wait(ways_begun, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in ways_begun if task.done()).result()
    finally:
        await tasks.end(ways_begun)
