"""How QEMU and the kernel are told what to do."""

import pytest

from kgym.api.steps import VmShape
from kgym_vmmanager.vm.accelerator import Accelerator, Probed
from kgym_vmmanager.vm.qemu import capture_command_line, kernel_command_line, qemu_arguments

TCG = Probed(accelerator=Accelerator.TCG, tsc_khz=2_000_000)
KVM = Probed(accelerator=Accelerator.KVM)


def value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_the_first_report_panics_and_the_guest_stays_as_it_was() -> None:
    words = kernel_command_line(VmShape(), KVM).split()
    assert {"panic_on_warn=1", "oops=panic", "kasan.fault=panic", "panic=0"} <= set(words)
    assert words[0] == "console=ttyS0"


def test_what_the_shape_appends_comes_last() -> None:
    words = kernel_command_line(VmShape(append="panic=5  kmemleak=on"), TCG).split()
    assert words[-2:] == ["panic=5", "kmemleak=on"]


def test_what_dumps_and_traces_add_gives_way_to_what_the_shape_appends() -> None:
    argv = qemu_arguments(VmShape(append="crashkernel=0"), TCG, "crashkernel=64M trace_buf_size=9")
    words = value(argv, "-append").split()
    assert words.index("crashkernel=64M") < words.index("crashkernel=0")
    assert "trace_buf_size=9" in words


def test_the_capture_kernel_has_the_console_and_the_clock() -> None:
    assert {"tsc_early_khz=2000000", "no_timer_check"} <= set(capture_command_line(TCG).split())
    assert capture_command_line(KVM).split()[0] == "console=ttyS0"


def test_an_emulated_guest_gets_patient_watchdogs_and_the_right_clock() -> None:
    words = kernel_command_line(VmShape(), TCG).split()
    assert {"watchdog_thresh=60", "tsc_early_khz=2000000", "no_timer_check"} <= set(words)
    own = kernel_command_line(VmShape(), KVM).split()
    assert not {"watchdog_thresh=60", "no_timer_check"} & set(own)


@pytest.mark.parametrize(("cpus", "off"), [(1, True), (2, False)])
def test_acpi_is_off_for_one_cpu_only(cpus: int, off: bool) -> None:
    assert ("acpi=off" in kernel_command_line(VmShape(cpus=cpus), TCG).split()) is off


def test_the_shape_is_the_vms() -> None:
    argv = qemu_arguments(VmShape(cpus=3, memory=700), TCG)
    assert (value(argv, "-smp"), value(argv, "-m")) == ("3", "700")


def test_the_accelerator_is_the_proven_one() -> None:
    assert value(qemu_arguments(VmShape(), TCG), "-accel").startswith("tcg,")
    assert value(qemu_arguments(VmShape(), KVM), "-accel") == "kvm"


def test_the_guest_reaches_nothing_and_only_loopback_reaches_it() -> None:
    network = value(qemu_arguments(VmShape(), TCG), "-netdev")
    assert "restrict=on" in network
    assert "hostfwd=tcp:127.0.0.1:0-:22" in network
