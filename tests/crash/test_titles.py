"""What each family of crashes is called. The logs are ours, in the kernel's formats."""

import pytest

from kgym.crash.report import CrashType
from tests.crash.reports import report_of

REGISTERS = """\
CPU: 1 PID: 4242 Comm: prog Not tainted 6.1.0 #1
RIP: 0010:{0}+0x12/0x340
Code: 00 01 02
RSP: 0018:ffff888004aaf000 EFLAGS: 00010246
Call Trace:
 <TASK>
 caller_of_it+0x55/0x90
 vfs_write+0x100/0x200
 do_syscall_64+0x3d/0x90
 entry_SYSCALL_64_after_hwframe+0x63/0xcd
 </TASK>
"""

TRACE = """\
CPU: 1 PID: 4242 Comm: prog Not tainted 6.1.0 #1
Call Trace:
 dump_stack_lvl+0x34/0x48
 {0}
 outer_function+0x99/0xa0
 do_syscall_64+0x3d/0x90
 entry_SYSCALL_64_after_hwframe+0x63/0xcd
"""

KASAN = """\
==================================================================
BUG: KASAN: {kind} in {function}+0x91/0xc0
{access} of size 8 at addr ffff888006e83540 by task prog/85

CPU: 0 PID: 85 Comm: prog Not tainted 6.1.0 #1
Call Trace:
 <TASK>
 dump_stack_lvl+0x34/0x48
 print_report+0x158/0x4a0
 kasan_report+0xc0/0x100
 {function}+0x91/0xc0
 my_driver_read+0x30/0x80
 vfs_read+0x100/0x200
 </TASK>

Allocated by task 80:
 kasan_save_stack+0x1e/0x40
 my_driver_open+0x30/0x80

Freed by task 81:
 kasan_save_stack+0x1e/0x40
 my_driver_close+0x30/0x80
==================================================================
"""


def kasan(kind: str, function: str = "my_driver_peek", access: str = "Read") -> str:
    return KASAN.format(kind=kind, function=function, access=access)


def registers(message: str, function: str = "my_driver_ioctl") -> str:
    return f"{message}\n" + REGISTERS.format(function)


def trace(message: str, frames: str = "my_driver_ioctl+0x12/0x340") -> str:
    return f"{message}\n" + TRACE.format(frames)


def warning(place: str, frame: str, *callers: str) -> str:
    stack = "\n ".join(callers or ("my_driver_ioctl+0x12/0x340",))
    return (
        "------------[ cut here ]------------\n"
        f"WARNING: CPU: 0 PID: 7 at {place} {frame}+0x10/0x20\n"
        "Modules linked in:\n"
        "CPU: 0 PID: 7 Comm: prog Not tainted 6.1.0 #1\n"
        f"RIP: 0010:{frame}+0x10/0x20\n"
        "Call Trace:\n <TASK>\n "
        f"{stack}\n do_syscall_64+0x3d/0x90\n </TASK>\n"
        "---[ end trace 0000000000000000 ]---\n"
    )


def lockdep(message: str, wanted: str, held: str = "outer_function") -> str:
    return (
        "======================================================\n"
        f"WARNING: {message}\n"
        "6.1.0 #1 Not tainted\n"
        "------------------------------------------------------\n"
        "prog/85 is trying to acquire lock:\n"
        f"ffff888006e83540 (&dev->lock){{+.+.}}-{{3:3}}, at: {wanted}+0x10/0x80\n"
        "\n"
        "but task is already holding lock:\n"
        f"ffff888006e83640 (&dev->mutex){{+.+.}}-{{3:3}}, at: {held}+0x10/0x80\n"
        "\n"
        "stack backtrace:\n" + TRACE.format("print_circular_bug+0x1/0x2")
    )


LEAK = """\
BUG: memory leak
unreferenced object 0xffff888006e83540 (size 32):
  comm "prog", pid 85, jiffies 4294902190 (age 12.000s)
  hex dump (first 32 bytes):
    00 00 00 00 00 00 00 00 04 00 00 00 01 00 00 00  ................
  backtrace:
    [<ffffffff81529245>] kmalloc_trace+0x25/0x90
    [<ffffffff8486d882>] my_driver_open+0xf2/0x250
    [<ffffffff8495df08>] do_syscall_64+0x38/0xb0
"""

STALL = """\
rcu: INFO: rcu_preempt self-detected stall on CPU
rcu: \t1-....: (10499 ticks this GP) idle=e0c/1/0x4000000000000000
NMI backtrace for cpu 1
Call Trace:
 <IRQ>
 dump_stack_lvl+0x34/0x48
 rcu_dump_cpu_stacks+0x100/0x200
 sysvec_apic_timer_interrupt+0x8e/0xc0
 asm_sysvec_apic_timer_interrupt+0x1a/0x20
 </IRQ>
 my_spinning_loop+0x10/0x20
 my_driver_sync+0x10/0x20
 __x64_sys_fsync+0x10/0x20
 do_syscall_64+0x3d/0x90
"""

FAMILIES = {
    # memory sanitizers
    "KASAN: use-after-free Read in my_driver_peek": (
        kasan("use-after-free"),
        CrashType.KASAN_USE_AFTER_FREE_READ,
    ),
    "KASAN: slab-use-after-free Write in my_driver_peek": (
        kasan("slab-use-after-free", access="Write"),
        CrashType.KASAN_USE_AFTER_FREE_WRITE,
    ),
    "KASAN: slab-out-of-bounds Write in my_driver_peek": (
        kasan("slab-out-of-bounds", access="Write"),
        CrashType.KASAN_WRITE,
    ),
    "KASAN: null-ptr-deref Read in my_driver_peek": (
        kasan("null-ptr-deref"),
        CrashType.KASAN_NULL_DEREF_READ,
    ),
    "KASAN: invalid-free in my_driver_close": (
        trace(
            "BUG: KASAN: double-free in kfree+0x10/0x20",
            "kasan_report_invalid_free+0x1/0x2\n kfree+0x1/0x2\n my_driver_close+0x1/0x2",
        ),
        CrashType.KASAN_INVALID_FREE,
    ),
    "KASAN: invalid-access Read in my_driver_peek": (
        trace(
            "BUG: KASAN: invalid-access in my_driver_peek+0x10/0x20\n"
            "Read at addr f6ff00001d527690 by task prog/85\nPointer tag: [f6], memory tag: [f5]"
        ),
        CrashType.KASAN_READ,
    ),
    "KFENCE: use-after-free read in my_driver_peek": (
        "BUG: KFENCE: use-after-free read in my_driver_peek+0x10/0x20\n\n"
        "Use-after-free read at 0x00000000aaaaaaaa (in kfence-#24):\n"
        " my_driver_peek+0x10/0x20\n do_syscall_64+0x3d/0x90\n",
        CrashType.KFENCE_USE_AFTER_FREE_READ,
    ),
    "KMSAN: uninit-value in my_driver_peek": (
        "BUG: KMSAN: uninit-value in my_driver_peek+0x10/0x20\n"
        " my_driver_peek+0x10/0x20\n do_syscall_64+0x3d/0x90\n\nUninit was created at:\n"
        " kmem_cache_alloc_noprof+0x10/0x20\n my_driver_open+0x10/0x20\n",
        CrashType.KMSAN_UNINIT_VALUE,
    ),
    "KCSAN: data-race in my_reader / my_writer": (
        "BUG: KCSAN: data-race in my_reader / my_writer\n\n"
        "write to 0xffff888006e83540 of 8 bytes by task 85 on cpu 0:\n"
        " my_writer+0x10/0x20\n".replace(
            "my_reader / my_writer", "my_reader+0x1/0x2 / my_writer+0x1/0x2"
        ),
        CrashType.KCSAN_DATA_RACE,
    ),
    "UBSAN: shift-out-of-bounds in my_driver_ioctl": (
        trace("UBSAN: shift-out-of-bounds in drivers/my/driver.c:12:34\nshift exponent 70"),
        CrashType.UBSAN,
    ),
    "UBSAN: array-index-out-of-bounds in my_driver_ioctl": (
        trace("UBSAN: array-index-out-of-bounds in drivers/my/driver.c:12:34\nindex 9"),
        CrashType.MEMORY_SAFETY_UBSAN,
    ),
    # oopses
    "BUG: unable to handle kernel paging request in my_driver_ioctl": (
        registers("BUG: unable to handle page fault for address: ffffed1000000000"),
        CrashType.MEMORY_SAFETY_BUG,
    ),
    "BUG: unable to handle kernel NULL pointer dereference in my_driver_ioctl": (
        registers("BUG: kernel NULL pointer dereference, address: 0000000000000008"),
        CrashType.NULL_DEREF,
    ),
    "general protection fault in my_driver_ioctl": (
        registers(
            "general protection fault, probably for non-canonical address 0xdffffc0000000002:"
            " 0000 [#1] PREEMPT SMP KASAN"
        ),
        CrashType.DOS,
    ),
    "divide error in my_driver_ioctl": (
        registers("divide error: 0000 [#1] PREEMPT SMP KASAN"),
        CrashType.DOS,
    ),
    "stack segment fault in my_driver_ioctl": (
        registers("stack segment: 0000 [#1] PREEMPT SMP KASAN"),
        CrashType.DOS,
    ),
    "PANIC: double fault in my_driver_ioctl": (
        registers("traps: PANIC: double fault, error_code: 0x0"),
        CrashType.DOS,
    ),
    "kernel BUG in my_driver_ioctl": (
        registers("kernel BUG at drivers/my/driver.c:77!\ninvalid opcode: 0000 [#1] SMP"),
        CrashType.BUG,
    ),
    "BUG: corrupted list in caller_of_it": (
        registers(
            "list_del corruption. prev->next should be ffff888006e83540\n"
            "kernel BUG at lib/list_debug.c:59!",
            "__list_del_entry_valid",
        ),
        CrashType.MEMORY_SAFETY_BUG,
    ),
    "BUG: bad usercopy in caller_of_it": (
        registers("kernel BUG at mm/usercopy.c:102!", "usercopy_abort"),
        CrashType.BUG,
    ),
    "int3 in my_driver_ioctl": (registers("int3: 0000 [#1] SMP KASAN"), CrashType.UNKNOWN),
    "BUG kmalloc-NUM (Not tainted): Poison overwritten": (
        trace("BUG kmalloc-512 (Not tainted): Poison overwritten"),
        CrashType.UNKNOWN,
    ),
    # warnings
    "WARNING in my_driver_start/usb_submit_urb": (
        warning("drivers/usb/core/urb.c:503", "usb_submit_urb", "my_driver_start+0x12/0x340"),
        CrashType.WARNING,
    ),
    "WARNING in my_driver_open": (
        warning("drivers/my/driver.c:77", "my_driver_open"),
        CrashType.WARNING,
    ),
    "WARNING: refcount bug in my_driver_ioctl": (
        warning("lib/refcount.c:28", "refcount_warn_saturate"),
        CrashType.REFCOUNT,
    ),
    "WARNING: ODEBUG bug in my_driver_ioctl": (
        warning("lib/debugobjects.c:505", "debug_print_object"),
        CrashType.WARNING,
    ),
    "WARNING: bad usercopy in my_driver_ioctl": (
        warning("mm/usercopy.c:74", "usercopy_warn"),
        CrashType.WARNING,
    ),
    "WARNING: kmalloc bug in my_driver_ioctl": (
        warning(
            "mm/slab_common.c:1031",
            "kmalloc_slab",
            "__kmalloc+0x12/0x30",
            "my_driver_ioctl+0x12/0x340",
        ),
        CrashType.WARNING,
    ),
    "WARNING: locking bug in my_driver_ioctl": (
        warning(
            "kernel/locking/lockdep.c:232",
            "__lock_acquire",
            "lock_acquire+0x12/0x30",
            "my_driver_ioctl+0x12/0x340",
        ),
        CrashType.LOCKDEP,
    ),
    # lockdep
    "possible deadlock in my_driver_lock": (
        lockdep("possible circular locking dependency detected", "my_driver_lock"),
        CrashType.LOCKDEP,
    ),
    "possible deadlock in my_driver_relock": (
        lockdep("possible recursive locking detected", "my_driver_relock"),
        CrashType.LOCKDEP,
    ),
    "inconsistent lock state in outer_function": (
        "================================\nWARNING: inconsistent lock state\n"
        "--------------------------------\n"
        "inconsistent {SOFTIRQ-ON-W} -> {IN-SOFTIRQ-W} usage.\n"
        "prog/85 [HC0[0]:SC1[1]:HE1:SE0] takes:\n"
        "ffff888006e83540 (&dev->lock){+.?.}-{2:2}, at: my_driver_irq+0x10/0x80\n"
        + TRACE.format("print_usage_bug+0x1/0x2"),
        CrashType.LOCKDEP,
    ),
    "WARNING: bad unlock balance in my_driver_unlock": (
        trace(
            "WARNING: bad unlock balance detected!",
            "print_unlock_imbalance_bug+0x1/0x2\n lock_release+0x1/0x2\n my_driver_unlock+0x1/0x2",
        ).replace(
            "detected!\n",
            "detected!\nprog/85 is trying to release lock (&dev->lock) at:\n"
            "[<ffffffff81529245>] my_driver_unlock+0x1/0x2\n",
        ),
        CrashType.LOCKDEP,
    ),
    "WARNING: lock held when returning to user space in my_driver_lock": (
        "WARNING: lock held when returning to user space!\n6.1.0 #1 Not tainted\n"
        "prog/85 is leaving the kernel with locks still held!\n1 lock held by prog/85:\n"
        " #0: ffff888006e83540 (&dev->lock){+.+.}-{3:3}, at: my_driver_lock+0x10/0x80\n",
        CrashType.LOCKDEP,
    ),
    "WARNING: suspicious RCU usage in my_driver_ioctl": (
        trace(
            "WARNING: suspicious RCU usage\n6.1.0 #1 Not tainted\n"
            "-----------------------------\n"
            "net/my/proto.c:12 suspicious rcu_dereference_check() usage!\n"
            "stack backtrace:",
            "lockdep_rcu_suspicious+0x1/0x2\n my_driver_ioctl+0x1/0x2",
        ),
        CrashType.LOCKDEP,
    ),
    "INFO: trying to register non-static key in my_driver_ioctl": (
        trace(
            "INFO: trying to register non-static key.",
            "register_lock_class+0x1/0x2\n __lock_acquire+0x1/0x2\n my_driver_ioctl+0x1/0x2",
        ),
        CrashType.UNKNOWN,
    ),
    "BUG: spinlock bad magic in my_driver_ioctl": (
        trace(
            "BUG: spinlock bad magic on CPU#1, prog/85",
            "spin_dump+0x1/0x2\n do_raw_spin_lock+0x1/0x2\n my_driver_ioctl+0x1/0x2",
        ),
        CrashType.LOCKDEP,
    ),
    # sleeping where it must not
    "BUG: sleeping function called from invalid context in my_driver_ioctl": (
        trace(
            "BUG: sleeping function called from invalid context at mm/slab.h:494",
            "__might_resched.cold+0x1/0x2\n kmem_cache_alloc+0x1/0x2\n my_driver_ioctl+0x1/0x2",
        ),
        CrashType.ATOMIC_SLEEP,
    ),
    "BUG: scheduling while atomic in my_driver_ioctl": (
        trace(
            "BUG: scheduling while atomic: prog/85/0x00000002",
            "__schedule_bug+0x1/0x2\n __schedule+0x1/0x2\n my_driver_ioctl+0x1/0x2",
        ),
        CrashType.ATOMIC_SLEEP,
    ),
    "BUG: using __this_cpu_read() in preemptible code in my_driver_ioctl": (
        trace(
            "BUG: using __this_cpu_read() in preemptible [00000000] code: prog/85",
            "check_preemption_disabled+0x1/0x2\n my_driver_ioctl+0x1/0x2",
        ),
        CrashType.LOCKDEP,
    ),
    # hangs
    "INFO: rcu detected stall in sys_fsync": (STALL, CrashType.HANG),
    "BUG: soft lockup in caller_of_it": (
        registers("watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [prog:4242]"),
        CrashType.HANG,
    ),
    "INFO: task hung in my_driver_ioctl": (
        trace(
            "INFO: task prog:4242 blocked for more than 143 seconds.",
            "__schedule+0x1/0x2\n __mutex_lock+0x1/0x2\n my_driver_ioctl+0x1/0x2",
        ),
        CrashType.HANG,
    ),
    "BUG: workqueue lockup": (
        "BUG: workqueue lockup - pool cpus=1 node=0 flags=0x0 nice=0 stuck for 31s!\n",
        CrashType.UNKNOWN,
    ),
    "BUG: hard lockup in caller_of_it": (
        registers("watchdog: Watchdog detected hard LOCKUP on cpu 0"),
        CrashType.HANG,
    ),
    "INFO: task can't die in my_driver_ioctl": (
        trace(
            "INFO: task prog:4242 can't die for more than 143 seconds.",
            "__schedule+0x1/0x2\n my_driver_ioctl+0x1/0x2",
        ),
        CrashType.HANG,
    ),
    # leaks and bad state
    "memory leak in my_driver_open": (LEAK, CrashType.MEMORY_LEAK),
    "unregister_netdevice: waiting for DEV to become free": (
        "unregister_netdevice: waiting for lo to become free. Usage count = 2\n",
        CrashType.DOS,
    ),
    "BUG: Bad page state in my_driver_mmap": (
        trace(
            "BUG: Bad page state in process prog  pfn:199e00\n"
            "page last allocated via order 0, migratetype Unmovable, pid 85\n"
            " post_alloc_hook+0x1/0x2\n __alloc_pages+0x1/0x2\n my_driver_mmap+0x1/0x2\n"
            "page last free stack trace:\n free_unref_page+0x1/0x2",
            "bad_page+0x1/0x2\n free_unref_page+0x1/0x2\n my_driver_ioctl+0x1/0x2",
        ),
        CrashType.UNKNOWN,
    ),
    "BUG: workqueue leaked lock or atomic in my_work_fn": (
        "BUG: workqueue leaked lock or atomic: kworker/0:0/0x00000000/4\n"
        "     last function: my_work_fn\n",
        CrashType.UNKNOWN,
    ),
    # panics
    "kernel panic: VFS: Unable to mount root fs on unknown-block(NUM,NUM)": (
        trace("Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)"),
        CrashType.DOS,
    ),
    "kernel panic: stack is corrupted in my_driver_ioctl": (
        "Kernel panic - not syncing: stack-protector: Kernel stack is corrupted in:"
        " my_driver_ioctl+0x3f2/0x400\n",
        CrashType.DOS,
    ),
    # the test programs
    "SYZFAIL: wrong argument": ("SYZFAIL: wrong argument\n", CrashType.SYZ_FAILURE),
    "go runtime error": ("fatal error: all goroutines are asleep\n", CrashType.DOS),
}


@pytest.mark.parametrize("title", FAMILIES)
def test_a_crash_of_each_family_has_its_title_and_type(title: str) -> None:
    log, type_ = FAMILIES[title]
    report = report_of(log)
    assert (report.title, report.type, report.corrupted_reason) == (title, type_, "")


@pytest.mark.parametrize("function", ["memcpy", "__lock_acquire", "_raw_spin_lock", "strlen"])
def test_a_generic_function_is_not_blamed_but_its_caller(function: str) -> None:
    report = report_of(kasan("use-after-free", function))
    assert report.title == "KASAN: use-after-free Read in my_driver_read"


@pytest.mark.parametrize("suffix", [".part.0", ".cold", ".isra.3", ".constprop.0"])
def test_a_compilers_suffix_is_not_part_of_the_title(suffix: str) -> None:
    report = report_of(registers("divide error: 0000 [#1] SMP", f"my_driver_ioctl{suffix}"))
    assert report.title == "divide error in my_driver_ioctl"


def test_a_system_call_goes_by_all_its_names() -> None:
    report = report_of(STALL)
    assert report.alt_titles == (
        "INFO: rcu detected stall in __x64_sys_fsync",
        "stall in __x64_sys_fsync",
        "stall in sys_fsync",
    )


def test_a_bad_access_has_its_kindless_title_too() -> None:
    report = report_of(kasan("use-after-free"))
    assert report.alt_titles == ("bad-access in my_driver_peek",)


def test_hangs_on_rcu_have_one_title() -> None:
    log = trace(
        "INFO: task prog:4242 blocked for more than 143 seconds.",
        "__schedule+0x1/0x2\n wait_for_completion+0x1/0x2\n synchronize_rcu_expedited+0x1/0x2",
    )
    report = report_of(log)
    assert report.title == "INFO: task hung in synchronize_rcu"
    assert "INFO: task hung in synchronize_rcu_expedited" in report.alt_titles


def test_a_double_free_is_an_invalid_free_in_every_kernels_words() -> None:
    for words in ("double-free", "invalid-free", "double-free or invalid-free"):
        report = report_of(kasan(words, "kfree").replace("Read of size 8", "Free of"))
        assert report.title == "KASAN: invalid-free in my_driver_read"
        assert report.type is CrashType.KASAN_INVALID_FREE


@pytest.mark.parametrize(
    ("wrapper", "name"),
    [
        ("__x64_sys_mount", "sys_mount"),
        ("__se_sys_mount", "mount"),
        ("ksys_mount", "mount"),
        ("SyS_mount", "mount"),
    ],
)
def test_the_wrappers_of_a_system_call_lose_their_prefix(wrapper: str, name: str) -> None:
    report = report_of(registers("divide error: 0000 [#1] SMP", wrapper))
    assert report.title == f"divide error in {name}"
    assert f"divide error in {wrapper}" in report.alt_titles


def test_a_warning_of_linux_6_18_names_no_cpu() -> None:
    log = warning("x", "y").replace(
        "CPU: 0 PID: 7 at x y+0x10/0x20",
        "[time_after(a, b)] drivers/my/driver.c:77 at my_driver_open+0x10/0x20, CPU#0: prog/7",
    )
    report = report_of(log.replace("RIP: 0010:y", "RIP: 0010:my_driver_open"))
    assert report.title == "WARNING in my_driver_open"


def test_volatile_parts_of_a_title_are_replaced() -> None:
    report = report_of("Kernel panic - not syncing: lost 12 of 0xffff888006e83540 at 10.0.0.1\n")
    assert report.title == "kernel panic: lost NUM of ADDR at IP"


def test_a_number_beside_a_damaged_byte_is_volatile_too() -> None:
    report = report_of(b"Kernel panic - not syncing: lost\xe912\xb2 of \xe9\n")
    assert report.title == "kernel panic: lostNUM of"


def test_symbolisation_does_not_change_the_title() -> None:
    log = kasan("use-after-free").replace(
        "BUG: KASAN: use-after-free in my_driver_peek+0x91/0xc0\n",
        "BUG: KASAN: use-after-free in my_inline include/linux/my.h:12 [inline]\n"
        "BUG: KASAN: use-after-free in my_driver_peek+0x91/0xc0 drivers/my/driver.c:77\n",
    )
    report = report_of(log)
    assert report.title == "KASAN: use-after-free Read in my_driver_peek"
