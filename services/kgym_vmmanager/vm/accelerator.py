"""The accelerator that this host's QEMU can use: proven by a boot, then remembered.

`/dev/kvm` may exist and not work: QEMU then aborts, or the guest hangs. So a boot sector enters
long mode and sums up memory.
"""

import asyncio
import contextlib
import platform
from enum import StrEnum
from pathlib import Path

from kgym.api.steps import Strict
from kgym.atomic_files import replace_file
from kgym.host import proc, sandbox
from kgym.host.folder_cache import locked
from kgym_vmmanager.vm.qemu_jail import KVM_DEVICE, confined

QEMU = "qemu-system-x86_64"
# The sum of all numbers below 2**22, which fill 32 MiB.
_SUM = 2**22 * (2**22 - 1) // 2
# The boot sector prints the sum of its numbers with the digits a to p, which needs no table.
PROOF = "".join(chr(ord("a") + int(digit, 16)) for digit in f"{_SUM:016x}").encode()
_PROBE_SECONDS = 10.0
_TOOL_SECONDS = 30.0
_FOLDER = "/vm"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Accelerator(StrEnum):
    """How QEMU executes the guest's instructions."""

    KVM = "kvm"
    TCG = "tcg"

    @property
    def arguments(self) -> list[str]:
        """The part of QEMU's command line that selects it."""
        if self is Accelerator.KVM:
            return ["-accel", "kvm", "-cpu", "host"]
        # The cache of translated code has 256 MiB, on top of the guest's memory.
        return ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max"]

    @property
    def elsewhere(self) -> list[str]:
        """The same for another machine: if that has no KVM, QEMU emulates."""
        if self is Accelerator.KVM:  # under KVM, `-cpu max` is the host's CPU
            return ["-accel", "kvm", *Accelerator.TCG.arguments]
        return self.arguments


class Probed(Strict):
    """The accelerator to use, and why not a faster one."""

    accelerator: Accelerator
    reason: str = ""
    tsc_khz: int | None = None
    """The speed of the host's time stamp counter, which an emulated guest sees."""
    host: str = ""


async def best_accelerator(cache: Path) -> Probed:
    """Return the fastest accelerator that works here; the first call takes up to 10 s.

    The cache folder keeps the answer until the host reboots, or QEMU or the permissions of /dev/kvm
    change: the confined QEMU is nobody, with that device's group.
    """
    host = await _host()
    remembered = cache / "accelerator.json"
    async with locked(cache / ".accelerator.lock"):
        with contextlib.suppress(OSError, ValueError):
            probed = Probed.model_validate_json(remembered.read_text())
            if probed.host == host:
                return probed
        reason = await probe(Accelerator.KVM, cache)
        accelerator = Accelerator.TCG if reason else Accelerator.KVM
        tsc_khz = await _tsc_khz(cache)
        probed = Probed(accelerator=accelerator, reason=reason, tsc_khz=tsc_khz, host=host)
        replace_file(remembered, probed.model_dump_json())
    return probed


async def probe(accelerator: Accelerator, cache: Path) -> str:
    """Boot the boot sector; return why the accelerator does not work, or an empty string."""
    if accelerator is Accelerator.KVM and not KVM_DEVICE.exists():
        return f"there is no {KVM_DEVICE}"
    folder = cache / "probe"
    sandbox.remove(folder)
    sandbox.prepare(folder)
    try:
        await _assemble(folder)
        output = await _boot(accelerator, folder)
    finally:
        sandbox.remove(folder)
    if PROOF in output:
        return ""
    printed = " ".join(output.decode(errors="replace").split())[-300:]
    return f"a boot sector did not run under {accelerator} within {_PROBE_SECONDS:g} s: {printed}"


async def _tsc_khz(cache: Path) -> int | None:
    if platform.machine() != "x86_64":
        return None
    meter = cache / "tsc"
    await proc.run(
        ["gcc", "-O2", "-o", meter, Path(__file__).with_name("tsc_meter.c")], timeout=_TOOL_SECONDS
    )
    try:
        return int((await proc.run([meter], timeout=_TOOL_SECONDS)).text)
    finally:
        meter.unlink()


async def _assemble(folder: Path) -> None:
    binary = ("-Wl,--oformat=binary,-Ttext=0x7c00,--build-id=none", "-nostdlib", "-static")
    await proc.run(
        ["gcc", *binary, "-o", folder / "boot", Path(__file__).with_name("accelerator_probe.S")],
        timeout=_TOOL_SECONDS,
    )


async def _boot(accelerator: Accelerator, folder: Path) -> bytes:
    """Return the output of the boot sector and of QEMU, up to the proof or the time limit."""
    argv = [
        *(QEMU, "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot"),
        *(*accelerator.arguments, "-m", "64", "-serial", "stdio"),
        *("-drive", f"file={_FOLDER}/boot,format=raw,if=floppy,readonly=on"),
    ]
    output = b""
    async with confined(argv, folder, _FOLDER) as jail:
        assert jail.process.stdout is not None
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PROBE_SECONDS):
                    while PROOF not in output and (chunk := await jail.process.stdout.read(4096)):
                        output += chunk
        finally:
            await proc.kill(jail.process)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await jail.process.stdout.read()  # to the end of the pipe, which closes it
    return output


async def _host() -> str:
    version = (await proc.run([QEMU, "--version"], timeout=_TOOL_SECONDS)).text.splitlines()[0]
    device = KVM_DEVICE.stat() if KVM_DEVICE.exists() else None
    access = f"{device.st_mode:o}:{device.st_uid}:{device.st_gid}" if device else "absent"
    return f"{await asyncio.to_thread(_BOOT_ID.read_text)} | {version} | {access}"
