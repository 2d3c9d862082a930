"""How QEMU and the kernel are told what to do."""

import pytest

from kgym.api.steps import VmShape
from kgym_vmmanager.vm.accelerator import Accelerator, Probed
from kgym_vmmanager.vm.qemu import capture_command_line, kernel_command_line, qemu_arguments

TCG = Probed(accelerator=Accelerator.TCG, tsc_khz=2_000_000)
KVM = Probed(accelerator=Accelerator.KVM)


def value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


@pytest.mark.parametrize(
    ("shape", "probed", "has", "lacks"),
    [
        # the first report panics, and the guest stays as it was
        ({}, KVM, "panic_on_warn=1 oops=panic kasan.fault=panic panic=0", "no_timer_check"),
        ({}, KVM, "console=ttyS0", "watchdog_thresh=60"),
        # an emulated guest gets patient watchdogs and the right clock
        ({}, TCG, "watchdog_thresh=60 tsc_early_khz=2000000 no_timer_check acpi=off", ""),
        ({"cpus": 2}, TCG, "nokaslr", "acpi=off"),
    ],
)
def test_command_line(shape: dict[str, int], probed: Probed, has: str, lacks: str) -> None:
    """The kernel gets what its machine needs."""
    words = kernel_command_line(VmShape(**shape), probed).split()
    assert words[0] == "console=ttyS0"
    assert set(has.split()) <= set(words)
    assert lacks not in words


def test_what_the_shape_appends_comes_last() -> None:
    first = "crashkernel=64M trace_buf_size=9"
    shape = VmShape(append="crashkernel=0  kmemleak=on")
    words = value(qemu_arguments(shape, TCG, first), "-append").split()
    assert words[-2:] == ["crashkernel=0", "kmemleak=on"]
    assert set(first.split()) <= set(words[:-2])


def test_the_capture_kernel_has_the_console_and_the_clock() -> None:
    assert {"tsc_early_khz=2000000", "no_timer_check"} <= set(capture_command_line(TCG).split())
    assert capture_command_line(KVM).split()[0] == "console=ttyS0"


def test_the_machine_is_the_shapes_and_only_loopback_reaches_the_guest() -> None:
    argv = qemu_arguments(VmShape(cpus=3, memory=700), TCG)
    assert (value(argv, "-smp"), value(argv, "-m")) == ("3", "700")
    assert value(argv, "-accel").startswith("tcg,")
    assert value(qemu_arguments(VmShape(), KVM), "-accel") == "kvm"
    network = value(argv, "-netdev")
    assert "restrict=on" in network
    assert "hostfwd=tcp:127.0.0.1:0-:22" in network
