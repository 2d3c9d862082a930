"""Instances of a real kernel, and every way in which they end."""

import asyncio
import dataclasses
import json
import re
import time
from pathlib import Path

import pytest

from kgym.api.steps import (
    Calibration,
    InstanceOutcome,
    InstanceResult,
    Measure,
    Reproducer,
    ReproduceResult,
    StepRef,
    Verdict,
)
from kgym.api.worker_calls import Input
from kgym.host.budget import Budget
from kgym_vmmanager.reproduce.reproduce_step import Reproduce
from kgym_vmmanager.vm.qemu_provider import LIMITS, Qemu
from tests.results import ran
from tests.vmmanager.conftest import NewStep, Perform

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]

HEAD = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <net/if.h>
#include <arpa/inet.h>
#include <unistd.h>
"""
# The kernel's own way to crash on demand: a NULL dereference.
CRASH = """
static void crash(void) {
    FILE *file = fopen("/proc/sysrq-trigger", "w");
    if (file && fputc('c', file) != EOF) fclose(file);
}
"""


IMPATIENT = {
    accelerator: dataclasses.replace(limits, silence=6, watchdog=6, reconnect=4)
    for accelerator, limits in LIMITS.items()
}


def program(body: str) -> str:
    return f"{HEAD}{CRASH}int main(void) {{ {body}\n}}\n"


async def test_a_program_that_ends_well_survives(perform: Perform) -> None:
    result = await perform(program("return 0;"), instances=2)
    assert result.verdict is Verdict.NO_CRASH
    assert [one.outcome for one in result.instances] == [InstanceOutcome.SURVIVED] * 2
    for one in result.instances:
        assert one.runs > 1
        assert one.run_seconds is not None
        assert one.run_seconds >= 5


async def test_a_program_that_never_ends_survives(perform: Perform) -> None:
    result = await perform(program("for (;;) pause();"))
    assert result.verdict is Verdict.NO_CRASH
    assert result.instances[0].runs == 1


async def test_the_last_words_of_one_that_survives_are_told(perform: Perform) -> None:
    result = await perform(program('write(2, "no tun here\\n", 12); for (;;) pause();'))
    assert result.verdict is Verdict.NO_CRASH
    assert result.instances[0].runs == 1
    assert result.reason.endswith("; instance 0: the program's last words: no tun here")


async def test_a_program_sets_up_the_network_by_commands(perform: Perform) -> None:
    add = "ip neigh add 10.0.2.9 lladdr aa:aa:aa:aa:aa:aa dev eth0 nud permanent"
    show = "ip neigh show dev eth0 | grep -q '10.0.2.9 lladdr aa:aa:aa:aa:aa:aa PERMANENT'"
    result = await perform(program(f'exit(system("{add} 2>/dev/null; {show}") != 0);'))
    assert result.verdict is Verdict.NO_CRASH, result.reason


async def test_two_cpus_come_up(perform: Perform) -> None:
    body = "exit(sysconf(_SC_NPROCESSORS_ONLN) != 2);"
    result = await perform(program(body), cpus=2)
    assert result.verdict is Verdict.NO_CRASH


async def test_a_crash_is_recognised_soon(new_step: NewStep, cache: Path) -> None:
    run = await new_step(program("sleep(1); crash(); sleep(60); return 0;"), time=60)
    result = await Reproduce(cache)(run)
    (one,) = result.instances
    assert (result.verdict, one.outcome) == (Verdict.SAME_CRASH, InstanceOutcome.CRASH)
    assert one.verdict_lag is not None
    assert one.verdict_lag < 3
    assert one.run_seconds is not None
    assert 1 <= one.run_seconds < 30
    kept = {artifact.name: artifact for artifact in run.artifacts}
    assert {"reproducer.c", "qemu-command.txt", "console-0.log", "report-0.txt"} <= set(kept)
    path = run.folder / "report.json"
    await run.storage.get(kept["report-0.json"].key, path)
    assert json.loads(path.read_text())["title"] == result.title


async def test_the_call_in_which_the_kernel_crashes_is_known(perform: Perform) -> None:
    result = await perform(program("getppid(); sleep(1); crash(); return 0;"), evidence=True)
    assert result.verdict is Verdict.SAME_CRASH
    assert result.evidence is not None
    work = result.evidence.work
    assert work is not None, result.evidence.missing
    assert work.unfinished == "write"  # to /proc/sysrq-trigger
    assert {"getppid", "openat"} <= {call.name for call in work.calls if call.result == "ok"}


async def test_work_that_was_not_watched_before_is_said_not_to_be_compared(
    new_step: NewStep, perform: Perform, cache: Path
) -> None:
    before = await perform(program("crash(); return 0;"))
    run = await new_step(program("return 0;"), evidence=True, baseline=StepRef(step=1))
    run.assignment.inputs["baseline"] = Input(result=before, artifacts=[])
    after = await Reproduce(cache)(run)
    assert after.verdict is Verdict.NO_CRASH
    assert "work_not_compared" in {one.reason for one in after.findings}


async def test_the_first_crash_stops_the_others(perform: Perform) -> None:
    body = """
    unsigned char byte;
    sleep(1);
    if (read(open("/dev/urandom", O_RDONLY), &byte, 1) == 1 && byte % 2) crash();
    return 0;
    """
    result = await perform(program(body), time=100, instances=2)
    assert result.verdict is Verdict.SAME_CRASH
    assert InstanceOutcome.CRASH in {one.outcome for one in result.instances}
    assert result.seconds["total"] < 60


# The kernel starts the program again to be told of a key, out of the runner's reach. So it lives
# to see the program's end, and raises a fault whose report goes on when the instance's end is due.
AT_THE_END = """
static void put(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file)) exit(1);
}
int main(int argc, char **argv) {
    char pid[16] = "";
    if (argc > 1) {
        FILE *file = fopen("/sbin/pid", "r");
        if (fork()) return 0;
        if (!file || !fgets(pid, sizeof(pid), file)) return 1;
        while (!kill(atoi(pid), 0)) usleep(50000);
        put("/sys/module/kgym_control/parameters/raise", "warning");
        for (int i = 0; i < 25; i++) put("/proc/sysrq-trigger", "h"), usleep(300000);
        return 0;
    }
    sprintf(pid, "%d", getpid());
    mkdir("/sbin", 0755), unlink("/sbin/request-key"), put("/sbin/pid", pid);
    if (symlink("/kgym/reproducer", "/sbin/request-key")) return 1;
    if (!fork()) exit(syscall(SYS_request_key, "user", "kgym", "again", 0));
    for (;;) pause();
}
"""


async def test_a_report_that_is_not_yet_whole_at_the_end_counts(perform: Perform) -> None:
    result = await perform(f"{HEAD}{AT_THE_END}", append="panic_on_warn=0")
    assert result.instances[0].outcome is InstanceOutcome.CRASH, result.reason
    assert result.title == "WARNING in kgym_control_assert"


async def test_all_run_on_where_asked_to(perform: Perform) -> None:
    body = "sleep(1); crash(); for (;;) pause();"
    result = await perform(program(body), time=20, instances=2, stop_at_first_crash=False)
    assert (result.crashed, result.completed) == (2, 2)


async def test_a_bug_that_shows_soon_is_measured(perform: Perform) -> None:
    """The first of two crashes; three more run, and whatever survives is not run to the end."""
    crashes, survives = program("sleep(1); crash(); return 0;"), program("for (;;) pause();")
    others = [Reproducer(text=survives)]  # the instances take both in turn
    measure = Measure(more=3, time=8)
    result = await perform(crashes, others=others, time=100, instances=2, measure=measure)
    assert result.verdict is Verdict.SAME_CRASH
    assert (result.requested, result.crashed, result.completed, result.time) == (5, 3, 5, 8)
    assert result.sample == [2, 3, 4]
    survived = [one for one in result.instances if one.outcome is InstanceOutcome.SURVIVED]
    assert [one.number for one in survived] == [1, 3]
    assert all(8 <= (one.run_seconds or 0) < 50 for one in survived)


async def test_a_crash_that_came_late_stops_the_others(perform: Perform) -> None:
    measure = Measure(more=3, time=2)
    result = await perform(program("sleep(4); crash();"), time=100, instances=1, measure=measure)
    assert (result.requested, result.crashed, result.sample) == (1, 1, [])


async def test_the_baseline_tells_what_a_fix_has_to_survive(new_step: NewStep, cache: Path) -> None:
    run = await new_step(
        program("return 0;"), time=100, baseline=StepRef(job=1, step=1), confidence=0.95
    )
    crashed = InstanceResult(
        number=0, outcome=InstanceOutcome.CRASH, run_seconds=1, title="a", boot_seconds=9
    )
    before = ran(Verdict.SAME_CRASH, title="a", instances=[crashed] * 5)
    run.assignment.inputs["baseline"] = Input(result=before, artifacts=[])
    after = await Reproduce(cache)(run)
    if after.accelerator != "tcg":
        pytest.skip("measured under TCG, which is not what this host uses")
    assert (after.verdict, after.requested, after.time) == (Verdict.NO_CRASH, 2, 5)
    assert after.confidence == pytest.approx(1 - 1 / 21, abs=1e-3)


async def test_another_title_is_another_crash(perform: Perform) -> None:
    result = await perform(program("crash(); return 0;"), titles=["WARNING in nothing"])
    assert result.verdict is Verdict.OTHER_CRASH


FORGED = r"""
    const char *lines[] = {
        "BUG: KASAN: use-after-free in forged_function+0x9d0/0x1e80\n",
        "Write of size 8 at addr ffff888006e83540 by task repro/85\n",
        "Call Trace:\n forged_function+0x9d0/0x1e80\n",
        "BUG: memory leak\nunreferenced object 0xffff888006e83540 (size 32):\n",
        "  comm \"repro\", pid 85, jiffies 4294902190\n  backtrace:\n",
        "    [<00000000abcdef02>] forged_function+0x9d0/0x1e80\n\n",
        "Kernel panic - not syncing: panic_on_warn set ...\n",
        "*** stack smashing detected ***: terminated\n",
    };
    const char *places[] = {"/dev/stdout", "/dev/stderr", "/dev/kmsg", "/dev/console",
        "/dev/ttyS0", "/dev/ttyprintk", "/proc/self/fd/1", "/proc/1/fd/1", "/dev/pts/0"};
    for (unsigned p = 0; p < sizeof(places) / sizeof(*places); p++)
        for (unsigned l = 0; l < sizeof(lines) / sizeof(*lines); l++) {
            FILE *file = fopen(places[p], "w");
            if (file) { fputs(lines[l], file); fclose(file); }
        }
"""


async def test_what_a_program_prints_is_no_report_of_the_kernels(perform: Perform) -> None:
    titles = ["KASAN: use-after-free Write in forged_function", "memory leak in forged_function"]
    body = f"{FORGED} sleep(1); return 0;"
    result = await perform(program(body), time=8, titles=titles, append="kmemleak=on")
    assert [one.outcome for one in result.instances] == [InstanceOutcome.SURVIVED]
    assert result.title is None


async def test_a_kernel_that_finds_no_leaks_proves_nothing_about_one(perform: Perform) -> None:
    titles = ["memory leak in some_function"]
    result = await perform(program("return 0;"), titles=titles, append="kmemleak=off")
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "kmemleak is not at work" in result.reason


async def test_what_a_program_prints_hides_no_report_of_the_kernels(perform: Perform) -> None:
    result = await perform(program(f"{FORGED} crash(); return 0;"))
    assert result.instances[0].outcome is InstanceOutcome.CRASH
    assert result.title is not None
    assert "forged" not in result.title


async def test_syzkallers_own_failure_proves_nothing(perform: Perform) -> None:
    body = 'fputs("SYZFAIL: mmap of data segment failed\\n", stderr); pause();'
    result = await perform(program(body), time=30)
    assert result.verdict is Verdict.INCONCLUSIVE


async def test_programs_of_both_kinds_take_turns(
    new_step: NewStep, cache: Path, syzkaller: Path
) -> None:
    text = '#{"threaded":true,"repeat":true,"procs":3,"sandbox":"none"}\ngetpid()\ncrash()\n'
    others = [Reproducer(kind="syz", text=text)]
    run = await new_step(
        program("sleep(30); return 0;"),
        time=20,
        instances=2,
        others=others,
        stop_at_first_crash=False,
    )
    result = await Reproduce(cache, syzkaller=syzkaller)(run)
    assert [one.reproducer for one in result.instances] == [0, 1]
    assert [one.outcome for one in result.instances] == [
        InstanceOutcome.SURVIVED,
        InstanceOutcome.CRASH,
    ]
    kept = {artifact.name: artifact for artifact in run.artifacts}
    assert {"reproducer.c", "reproducer-1.syz"} <= set(kept)
    path = run.folder / "said"
    await run.storage.get(kept["reproducer-1.log"].key, path)
    assert "-procs=1 -repeat=1 -threaded=true -vv=1 getpid()" in path.read_text()


@pytest.mark.attack
async def test_a_program_of_which_calls_were_left_out_proves_nothing(
    new_step: NewStep, cache: Path, syzkaller: Path
) -> None:
    text = '#{"threaded":true,"sandbox":"none"}\ngetpid()\nunknown$call(0x1)\n'
    run = await new_step(Reproducer(kind="syz", text=text))
    result = await Reproduce(cache, syzkaller=syzkaller)(run)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "left out 1 of the program's calls: unknown$call" in result.reason


async def test_a_program_of_syzkallers_tells_what_its_calls_came_to(
    new_step: NewStep, cache: Path, syzkaller: Path
) -> None:
    one = Reproducer(kind="syz", text="#{}\ngetpid()\n")
    result = await Reproduce(cache, syzkaller=syzkaller)(await new_step(one))
    assert result.verdict is Verdict.NO_CRASH
    assert result.instances[0].detail == (
        "1 of 1 calls came back at first; not well: getpid errno 22; the kernel lacks:"
        " net packet injection (/dev/net/tun does not exist)"
    )


async def test_another_crash_does_not_stop_the_search(perform: Perform) -> None:
    body = """
    unsigned char byte;
    sleep(1);
    if (read(open("/dev/urandom", O_RDONLY), &byte, 1) == 1 && byte % 2) crash();
    return 0;
    """
    result = await perform(program(body), time=15, instances=2, titles=["WARNING in nothing"])
    assert InstanceOutcome.STOPPED not in {one.outcome for one in result.instances}


async def test_a_calibrated_bug_tells_how_sure_the_verdict_is(perform: Perform) -> None:
    known = Calibration(runs=10, crashed=10, time=2, accelerator="tcg")
    result = await perform(program("return 0;"), instances=2, calibration=known, smoke=True)
    assert result.verdict is Verdict.NO_CRASH
    if result.accelerator != "tcg":
        pytest.skip("calibrated under TCG, which is not what this host uses")
    assert result.confidence == pytest.approx(1 - 1 / 66, abs=1e-3)
    assert "at most 1.52%" in result.reason
    assert result.findings == []
    assert len(result.instances) == 2


async def test_a_run_shorter_than_the_bug_takes_proves_nothing(perform: Perform) -> None:
    known = Calibration(runs=3, crashed=3, time=60, accelerator="tcg")
    result = await perform(program("return 0;"), time=3, calibration=known, bundle="none")
    if result.accelerator != "tcg":
        pytest.skip("calibrated under TCG, which is not what this host uses")
    assert (result.verdict, result.confidence) == (Verdict.NO_CRASH, 0)
    assert "proves nothing" in result.reason


async def test_a_crash_while_booting_is_no_verdict(perform: Perform) -> None:
    append = "rdinit=/no-such-file init=/no-such-file root=/dev/none"
    result = await perform(program("return 0;"), append=append)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.instances[0].outcome is InstanceOutcome.BOOT_FAILED
    assert "crashed while booting" in result.instances[0].detail


async def test_guests_that_hang_while_booting_do_not_keep_the_host(
    new_step: NewStep, cache: Path
) -> None:
    limits = {one: dataclasses.replace(own, boot=12) for one, own in LIMITS.items()}
    append = "rdinit=/bin/busybox -- sleep 1000"
    run = await new_step(program("return 0;"), instances=4, append=append)
    result = await Reproduce(cache, Budget(2, 4096), provider=Qemu(limits))(run)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "not booted after 12 s" in result.reason
    consoles = [one.name for one in run.artifacts if one.name.startswith("console-")]
    assert len(consoles) <= 3  # of four instances, two began, and one may have begun again
    known = ReproduceResult.model_validate(
        {**result.model_dump(), "instances": [{"number": 0, "outcome": "crash", "boot_seconds": 1}]}
    )
    run = await new_step(program("return 0;"), append=append, baseline=StepRef(step=1))
    run.assignment.inputs["baseline"] = Input(result=known, artifacts=[])
    assert "not booted after 5 s" in (await Reproduce(cache, provider=Qemu(limits))(run)).reason


async def test_a_reboot_is_no_verdict(perform: Perform) -> None:
    result = await perform(program("sleep(1); reboot(RB_AUTOBOOT);"))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.instances[0].outcome is InstanceOutcome.REBOOTED


async def test_a_program_that_always_fails_at_once_is_no_verdict(perform: Perform) -> None:
    result = await perform(program('fprintf(stderr, "no such thing\\n"); exit(3);'))
    (one,) = result.instances
    assert (result.verdict, one.outcome) == (Verdict.INCONCLUSIVE, InstanceOutcome.ENDED_EARLY)
    assert re.search(r"all \d+ runs failed at once; the last: exit status 3", one.detail)
    assert "no such thing" in one.detail


async def test_runs_that_fail_slowly_are_no_verdict(perform: Perform) -> None:
    result = await perform(program("usleep(1300000); exit(1);"))
    (one,) = result.instances
    assert (result.verdict, one.outcome) == (Verdict.INCONCLUSIVE, InstanceOutcome.NOT_DONE)
    assert re.search(r"none of (\d) runs did its work: \1 x exit status 1", result.reason)
    assert {(end.how, end.value) for end in one.ends} == {("exit", 1)}


async def test_runs_end_as_the_bundle_says(perform: Perform) -> None:
    result = await perform(program("exit(1);"), completed=["exit 1"], time=3)
    assert result.verdict is Verdict.NO_CRASH, result.reason


async def test_a_guest_in_which_nothing_starts_is_given_up(perform: Perform) -> None:
    body = """
    FILE *file = fopen("/proc/sys/kernel/threads-max", "w");
    if (file && fputs("20", file) >= 0) fclose(file);
    return 0;
    """
    result = await perform(program(body), time=3)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.instances[0].outcome is InstanceOutcome.START_FAILED, result.reason
    assert result.seconds["total"] < 120


async def test_a_program_that_cannot_be_executed_is_no_verdict(perform: Perform) -> None:
    body = 'chmod("/kgym/reproducer", 0); return 0;'
    result = await perform(program(body))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.instances[0].outcome is InstanceOutcome.START_FAILED
    assert "Permission denied" in result.instances[0].detail


async def test_a_chatty_program_survives(new_step: NewStep, cache: Path) -> None:
    run = await new_step(program('for (;;) puts("all work and no play");'), time=8)
    result = await Reproduce(cache)(run)
    assert result.verdict is Verdict.NO_CRASH
    (kept,) = [artifact for artifact in run.artifacts if artifact.name == "reproducer-0.log"]
    assert 10_000 < kept.size < 4_000_000


async def test_a_daemon_survives(perform: Perform) -> None:
    body = "if (fork()) return 0; setsid(); if (fork()) return 0; for (;;) pause();"
    result = await perform(program(body))
    assert result.verdict is Verdict.NO_CRASH


async def test_a_fork_bomb_survives(perform: Perform) -> None:
    result = await perform(program("for (;;) fork();"), time=10)
    assert result.verdict is Verdict.NO_CRASH, result.reason


async def test_killing_everything_does_not_end_the_run(perform: Perform) -> None:
    body = "sleep(2); kill(-1, SIGKILL); return 0;"
    result = await perform(program(body), time=6)
    assert result.verdict is Verdict.NO_CRASH, result.reason
    assert result.instances[0].runs > 1


async def test_a_lost_connection_is_no_verdict(new_step: NewStep, cache: Path) -> None:
    body = 'sleep(1); unlink("/bin/dropbear"); kill(-1, SIGKILL); return 0;'
    run = await new_step(program(body))
    result = await Reproduce(cache, provider=Qemu(IMPATIENT))(run)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.instances[0].outcome is InstanceOutcome.SSH_LOST
    assert "console-0-retry-2.log" in {artifact.name for artifact in run.artifacts}


async def test_every_file_system_and_device_is_there(perform: Perform) -> None:
    body = """
    const char *wanted[] = {"/proc/self", "/sys/kernel", "/dev/null", "/dev/pts", "/dev/shm",
        "/sys/kernel/debug/sleep_time", "/dev/loop0", "/dev/loop7", "/sys/class/net/eth0"};
    for (unsigned i = 0; i < sizeof(wanted) / sizeof(*wanted); i++)
        if (access(wanted[i], F_OK) && !strstr(wanted[i], "debug")) {
            fprintf(stderr, "no %s\\n", wanted[i]);
            exit(1);
        }
    if (mkdir("old", 0755) || mkdir("new", 0755) || mount(0, "new", "tmpfs", 0, 0)) exit(2);
    return getuid();
    """
    result = await perform(program(body), time=3)
    assert result.verdict is Verdict.NO_CRASH, result.reason


@pytest.mark.parametrize("seconds", [0.5, 12])
async def test_cancelled_it_is_gone_within_two_seconds(
    new_step: NewStep, cache: Path, seconds: float
) -> None:
    run = await new_step(program("for (;;) pause();"), time=300, instances=2)
    others = asyncio.all_tasks()
    task = asyncio.create_task(Reproduce(cache)(run))
    while not list(run.folder.glob("reproduce/vm-*/monitor")):
        await asyncio.sleep(0.1)
    await asyncio.sleep(seconds)  # booting, or running
    begin = time.monotonic()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert time.monotonic() - begin < 10  # 2 where nothing else runs
    assert not list(run.folder.glob("reproduce/vm-*"))
    assert asyncio.all_tasks() == others


async def test_an_emulated_guests_clock_is_right(perform: Perform) -> None:
    """The program fails unless a second of its own lasts about as long as one of the host's."""
    result = await perform(program("sleep(4); return 0;"), time=21)
    assert result.verdict is Verdict.NO_CRASH
    assert result.instances[0].runs in (5, 6)


async def test_a_guest_without_network_is_lost(new_step: NewStep, cache: Path) -> None:
    body = """
    struct ifreq request = {.ifr_name = "eth0"};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    sleep(1);
    if (ioctl(fd, SIOCSIFFLAGS, &request)) exit(1);
    for (;;) pause();
    """
    run = await new_step(program(body))
    result = await Reproduce(cache, provider=Qemu(IMPATIENT))(run)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.instances[0].outcome is InstanceOutcome.SSH_LOST


async def test_a_guest_that_does_nothing_else_is_hung(new_step: NewStep, cache: Path) -> None:
    body = """
    struct sched_param most = {.sched_priority = 99};
    FILE *file = fopen("/proc/sys/kernel/sched_rt_runtime_us", "w");
    if (!file || fputs("-1", file) < 0 || fclose(file)) exit(1);
    sleep(1);
    if (sched_setscheduler(0, SCHED_FIFO, &most)) exit(2);
    for (;;);
    """
    run = await new_step(program(body))
    result = await Reproduce(cache, provider=Qemu(IMPATIENT))(run)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.instances[0].outcome is InstanceOutcome.HUNG
