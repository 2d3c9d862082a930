"""Positive controls: faults raised on purpose in a guest, to see whether its kernel reports them.

An object in the kernel raises them (kgym_builder/kbuild/control.c): a module, or LKDTM, would make
another kernel than the tested one. Only the kernel's own reports on the console count; for leaks,
which the kernel lists on demand, the list does.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from kgym.api.steps import Control, ControlName, ControlOutcome
from kgym.bugs.detectors import KASAN, Detectors
from kgym.crash.report import parse_all
from kgym.host.quoted_words import quoted
from kgym_vmmanager.guest.console import Console
from kgym_vmmanager.guest.guest_session import GuestSession
from kgym_vmmanager.guest.paths import PROGRAM
from kgym_vmmanager.guest.ssh import CommandRefused, ConnectionLost, Shell, Ssh

Connect = Callable[[float], AbstractAsyncContextManager[Ssh]]

# Titles of the expected reports; UBSAN's depend on the fault.
TITLES = {
    ControlName.WARNING: r"WARNING in kgym_control_assert",
    ControlName.PANIC: r"kernel panic: .*",
    ControlName.OOPS: r"(general protection fault|BUG: .*|KASAN: .*) in kgym_control_load",
    ControlName.KASAN_OUT_OF_BOUNDS: r"KASAN: slab-out-of-bounds Write in kgym_control_write",
    ControlName.KASAN_USE_AFTER_FREE: r"KASAN: (slab-)?use-after-free Read in kgym_control_read",
    ControlName.LOCKDEP: r"possible deadlock in kgym_control_locks",
    ControlName.HUNG_TASK: r"INFO: task hung in kgym_control_sleep",
    ControlName.LEAK: r"memory leak in kgym_control_lose",
}
_UBSAN = {
    "shift": r"UBSAN: shift-out-of-bounds in kgym_control_shift",
    "bounds": r"UBSAN: array-index-out-of-bounds in kgym_control_index",
}
_FAULTS = {
    ControlName.KASAN_OUT_OF_BOUNDS: "out_of_bounds",
    ControlName.KASAN_USE_AFTER_FREE: "use_after_free",
}
_RAISE = "/sys/module/kgym_control/parameters/raise"
_LEAKS = "/sys/kernel/debug/kmemleak"
_SYSCTL = "/proc/sys/kernel"
_STATE = re.compile(r"(\w+) ([0-9]{1,9})\b")
_OFF = b"turning off the locking correctness validator"
_PANIC = b"Kernel panic - not syncing"

# Bytes of a console that are searched for one report; a guest may print any amount.
_MOST_READ = 1 << 20
_MOST_LEAKS = 1 << 20
_CONNECT_SECONDS = 30.0
_CALL_SECONDS = 30.0
# For a report that the kernel prints before the write that raises the fault returns.
_REPORT_SECONDS = 5.0
# For the hung task detector, which is set to look once a second of the guest's time.
_HUNG_SECONDS = 30.0
# For kmemleak, which reports objects that are at least 5 s old in the guest's time.
_LEAK_SECONDS = 40.0
_PANIC_SECONDS = 20.0
_AFTER_SECONDS = 1.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Share:
    """The faults of one instance: those that it survives, then one that it does not."""

    mild: tuple[ControlName, ...]
    fatal: ControlName

    @property
    def names(self) -> tuple[ControlName, ...]:
        """All faults, including the panic that follows the fatal one."""
        return tuple(dict.fromkeys((*self.mild, self.fatal, ControlName.PANIC)))


class Idle(GuestSession):
    """A session in which nothing runs, for faults in a clean guest."""

    runs = 0

    async def work(self, ssh: Ssh) -> None:
        """Do nothing."""


@dataclass(slots=True)
class Controls:
    """Raises a share of faults in one guest; `outcomes` holds the results.

    A guest that answers too slowly is given up after `limit` seconds.
    """

    console: Console
    detectors: Detectors
    share: Share
    limit: float = 150.0
    outcomes: dict[ControlName, Control] = field(default_factory=dict)
    seconds: float = 0.0

    async def raise_all(self, connect: Connect) -> None:
        """Raise all faults of the share; afterwards the guest is of no use any more."""
        begin = time.monotonic()
        try:
            async with (
                asyncio.timeout(self.limit),
                connect(_CONNECT_SECONDS) as ssh,
                Shell.started(ssh, _CALL_SECONDS) as shell,
            ):
                await _Guest(self, shell).raise_all()
        except (ConnectionLost, CommandRefused) as error:
            self._none(str(error))
        except TimeoutError:
            self._none(f"not done within {self.limit:g} s")
        finally:
            self._none("the guest was lost before")
            self.seconds = round(time.monotonic() - begin, 2)

    def note(
        self, name: ControlName, outcome: ControlOutcome, title: str | None, detail: str = ""
    ) -> None:
        """Record an outcome; of several for one control, the worst counts."""
        control = Control(name=name, outcome=outcome, title=title, detail=detail)
        self.outcomes[name] = max(self.outcomes.get(name, control), control, key=gravity)

    def _none(self, detail: str) -> None:
        for name in self.share.names:
            if name not in self.outcomes:
                self.note(name, ControlOutcome.NOT_TRIED, None, detail)


class _Guest:
    """The guest in which the faults of a share are raised."""

    def __init__(self, controls: Controls, shell: Shell) -> None:
        self._controls = controls
        self._console = controls.console
        self._share = controls.share
        self._shell = shell

    async def raise_all(self) -> None:
        """Raise the faults; raises ConnectionLost, or CommandRefused if none can be raised."""
        await self._furnish()
        await self._read_state()
        if self._share.mild:
            await self._raise_mild()
        await self._raise_fatal()

    async def _furnish(self) -> None:
        """Mount what the controls need: the reproducer may have mounted over it."""
        name = PROGRAM.rpartition("/")[2]
        await self._shell.do(
            f"[ -e {_RAISE} ] || mount -t sysfs sysfs /sys;"
            f"[ -e {_SYSCTL}/printk ] || mount -t proc proc /proc;"
            f"[ -e {_LEAKS} ] || mount -t debugfs debugfs /sys/kernel/debug;"
            # The shell takes the reproducer's name: a patch may silence detectors for that alone.
            f"echo {name} >/proc/$$/comm"
        )
        status, output = await self._shell.do(f"[ -e {_RAISE} ]")
        if status != 0:
            raise CommandRefused(f"the guest has no {_RAISE} {quoted(output)}".strip())

    async def _read_state(self) -> None:
        """Record detectors that were off, for some tasks or altogether, before the first fault."""
        # A patch can switch a detector off for the reproducer's task alone. Our object watches
        # tasks that end, so a task that ends with its detectors off makes them silent.
        _, state_text = await self._shell.do(f"cat {_RAISE}")
        state = {name: int(value) for name, value in _STATE.findall(state_text)}
        if not state.get("ended") and not self._controls.detectors.unwatched:
            for name in (*KASAN, ControlName.LOCKDEP):
                self._silent(name, "the kernel does not tell of tasks that end any more")
        if off := state.get("kasan_off"):
            for name in KASAN:
                self._silent(name, f"KASAN was off for {off} tasks when they ended")
        if off := state.get("lockdep_off"):
            self._silent(ControlName.LOCKDEP, f"lockdep was off for {off} tasks when they ended")
        if state.get("debug_locks") == 0 and _OFF in self._console.watch.log:
            # Lockdep turned itself off because its tables were full: not the patch's doing.
            self._untried(ControlName.LOCKDEP, "lockdep had turned itself off")

    # --- faults that the kernel survives --------------------------------------------------------

    async def _raise_mild(self) -> None:
        """Raise the faults that the kernel survives; the slow ones overlap with the others."""
        settings = ("panic_on_warn", "panic_on_oops", "hung_task_panic", "softlockup_panic")
        await self._set(dict.fromkeys(settings, 0))
        mild = self._share.mild
        leaked = ControlName.LEAK in mild and await self._raise(ControlName.LEAK, "leak")
        if leaked:
            await self._shell.do(f"echo scan >{_LEAKS}", _LEAK_SECONDS)
        if ControlName.HUNG_TASK in mild:
            await self._hang()
        for name, fault in ((ControlName.WARNING, "warning"), (ControlName.LOCKDEP, "locks")):
            if name in mild and name not in self._controls.outcomes:
                await self._try(name, fault, TITLES[name])
        if ControlName.UBSAN in mild:
            for fault in self._controls.detectors.ubsan:
                await self._try(ControlName.UBSAN, fault, _UBSAN[fault])
        if leaked:
            await self._find_leak()
        if ControlName.OOPS in mild:
            await self._try(ControlName.OOPS, "oops", TITLES[ControlName.OOPS])

    async def _try(self, name: ControlName, fault: str, wanted: str) -> None:
        """Raise a fault that is reported at once."""
        await self._begin_anew()
        if await self._raise(name, fault):
            await self._expect(name, wanted, _REPORT_SECONDS)

    async def _hang(self) -> None:
        name = ControlName.HUNG_TASK
        await self._begin_anew()
        if not await self._raise(name, "hang"):
            return
        # Writing the timeout (the second setting) wakes the detector.
        await self._set({"hung_task_check_interval_secs": 1, "hung_task_timeout_secs": 1})
        await self._expect(name, TITLES[name], _HUNG_SECONDS)
        await self._set({"hung_task_timeout_secs": 0})
        await self._shell.do(f"echo unhang >{_RAISE}")

    async def _find_leak(self) -> None:
        """Scan memory until the leak is old enough to be reported; one scan was made before."""
        begin = time.monotonic()
        while time.monotonic() - begin < _LEAK_SECONDS:
            status, output = await self._shell.do(
                f"echo scan >{_LEAKS} && tail -c {_MOST_LEAKS} {_LEAKS}", _LEAK_SECONDS
            )
            if status != 0:
                self._untried(ControlName.LEAK, f"kmemleak does not scan: {quoted(output)}")
                return
            if title := _title_in(_leaks(output), TITLES[ControlName.LEAK]):
                self._note(ControlName.LEAK, title, "")
                return
            await asyncio.sleep(0.5)
        self._silent(ControlName.LEAK, "kmemleak does not report it")

    # --- the last one ---------------------------------------------------------------------------

    async def _raise_fatal(self) -> None:
        """Raise the fatal fault, and see whether the kernel panics."""
        await self._set({"panic_on_warn": 1, "panic_on_oops": 1})
        name = self._share.fatal
        if name is ControlName.PANIC:
            self._judge_panic(await self._end_by("panic"))
            return
        ended = await self._end_by(_FAULTS[name])
        if ended.refusal is not None:
            self._untried(name, ended.refusal)
            return
        title = await self._title(TITLES[name])
        self._note(name, title, self._instead())
        # A kernel that does not panic at this report, or gave none, is made to panic.
        if ended.returned and not (title and self._controls.detectors.panics):
            ended = await self._end_by("panic")
        self._judge_panic(ended)

    async def _end_by(self, fault: str) -> "_End":
        """Raise a fault; wait until the kernel has panicked or gone on."""
        await self._begin_anew()
        raising = asyncio.create_task(self._shell.do(f"echo {fault} >{_RAISE}", _PANIC_SECONDS))
        try:
            begin = time.monotonic()
            while time.monotonic() - begin < _PANIC_SECONDS and not raising.done():
                if self._console.watch.panicked:
                    break
                await asyncio.sleep(_POLL_SECONDS)
            # Time for the rest of the report, and for a panic that does not stop the kernel to
            # show.
            await asyncio.sleep(_AFTER_SECONDS)
            await self._console.catch_up()
            return _end(raising, panicked=self._console.watch.panicked)
        finally:
            raising.cancel()
            await asyncio.gather(raising, return_exceptions=True)

    def _judge_panic(self, ended: "_End") -> None:
        name = ControlName.PANIC
        if ended.refusal is not None:
            self._untried(name, ended.refusal)
        elif ended.returned:
            went_on = "the kernel panicked, and went on" if ended.panicked else "it did not panic"
            self._silent(name, went_on)
        elif ended.panicked:
            _, panic, words = self._log.partition(_PANIC)
            self._note(name, _title_in(panic + words, TITLES[name]), "the panic has no words")
        else:
            self._silent(name, "it did not panic, nor go on")

    # --- parts ----------------------------------------------------------------------------------

    async def _raise(self, name: ControlName, fault: str) -> bool:
        """Raise a fault; return whether the guest accepted it."""
        status, output = await self._shell.do(f"echo {fault} >{_RAISE}")
        if status != 0:
            self._untried(name, f"the fault `{fault}` cannot be raised: {quoted(output)}")
        return status == 0

    async def _set(self, values: Mapping[str, int]) -> None:
        """Change those of the settings that this kernel has."""
        words = (
            f"[ ! -e {_SYSCTL}/{name} ] || echo {value} >{_SYSCTL}/{name}"
            for name, value in values.items()
        )
        await self._shell.do("; ".join(words))

    async def _expect(self, name: ControlName, wanted: str, seconds: float) -> None:
        """Wait for a report whose title matches."""
        begin = time.monotonic()
        while (title := await self._title(wanted)) is None:
            if time.monotonic() - begin > seconds:
                await self._console.catch_up()
                title = await self._title(wanted)
                break
            await asyncio.sleep(_POLL_SECONDS)
        self._note(name, title, self._instead())

    async def _title(self, wanted: str) -> str | None:
        """Return the matching title of a report since the fault was raised, if there is one."""
        if not self._console.watch.crash_seen:
            return None
        return await asyncio.to_thread(_title_in, self._log, wanted)

    @property
    def _log(self) -> bytes:
        return self._console.watch.log[:_MOST_READ]

    def _instead(self) -> str:
        titles = [report.title for report in parse_all(self._log)]
        return f"instead: {' | '.join(titles[:3])}" if titles else "nothing was reported"

    def _note(self, name: ControlName, title: str | None, otherwise: str) -> None:
        if title is None:
            self._silent(name, otherwise)
        else:
            self._controls.note(name, ControlOutcome.REPORTED, title)

    async def _begin_anew(self) -> None:
        """Forget the console so far, including the end of an earlier report."""
        await self._console.catch_up()
        self._console.watch_anew()

    def _silent(self, name: ControlName, detail: str) -> None:
        if lost := self._console.gap:
            self._untried(name, f"its report may be in the lost part of the console: {lost}")
        elif name in self._share.names:
            self._controls.note(name, ControlOutcome.SILENT, None, detail)

    def _untried(self, name: ControlName, detail: str) -> None:
        if name in self._share.names:
            self._controls.note(name, ControlOutcome.NOT_TRIED, None, detail)


@dataclass(frozen=True, slots=True)
class _End:
    """The outcome of a fault that should end the kernel; `refusal` is why it was not raised."""

    panicked: bool
    returned: bool
    refusal: str | None


def _end(raising: "asyncio.Task[tuple[int, str]]", *, panicked: bool) -> _End:
    if not raising.done():
        return _End(panicked, returned=False, refusal=None)
    if error := raising.exception():
        # A kernel that ends breaks the connection.
        return _End(panicked, False, None if isinstance(error, ConnectionLost) else str(error))
    status, output = raising.result()
    refusal = f"the fault cannot be raised: {quoted(output)}" if status != 0 else None
    return _End(panicked, returned=status == 0, refusal=refusal)


def gravity(control: Control) -> int:
    """Sort key of outcomes, the worst last."""
    order = (ControlOutcome.REPORTED, ControlOutcome.NOT_TRIED, ControlOutcome.SILENT)
    return order.index(control.outcome)


def _title_in(log: bytes, wanted: str) -> str | None:
    titles = (report.title for report in parse_all(log))
    return next((title for title in titles if re.fullmatch(wanted, title)), None)


def _leaks(text: str) -> bytes:
    """Return kmemleak's list with each leak headed as on a console, for the report parser."""
    return text.replace("unreferenced object", "BUG: memory leak\nunreferenced object").encode()
