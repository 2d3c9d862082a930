"""The guest's tracer, run on this host, and what is understood of what it tells."""

import itertools
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import InstanceOutcome, InstanceResult, Reached, Verdict, Work
from kgym_vmmanager.evidence.call_profile import TracerLog, why_unknown
from kgym_vmmanager.evidence.crash_path import LONGEST, addresses, functions, reached, report_of
from kgym_vmmanager.evidence.syscall_names import call_name, result_name
from kgym_vmmanager.vm.instance_ending import InstanceEnding
from tests.results import ran
from tests.vmmanager.conftest import guest_program

TALK = (
    b"enter 59\ncall 59 0\nenter 16\ncall 16 0\nenter 16\ncall 16 22\ndied 3\nend exit 0 12\n"
    b"total 59 0 1\ntotal 16 0 7\ntotal 16 22 2\npending 0\nstuck 233\nover 1\n"
)
INCLUDES = Path(__file__).with_name("includes.h").read_text()


@pytest.fixture(scope="session")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guest's tracer, as a program of the host."""
    return guest_program("trace", tmp_path_factory.mktemp("tracer"))


class Traced:
    def __init__(self, tracer: Path, folder: Path) -> None:
        self.tracer, self.folder = tracer, folder

    def run(self, body: str, before: str = "", *, seconds: int = 1, until: str = "") -> Work:
        """Trace a program; its tracer is killed when it says `until`, as if the kernel crashed."""
        source, program = self.folder / "program.c", self.folder / "program"
        source.write_text(f"{INCLUDES}{before}int main(void) {{ {body} return 0; }}\n")
        argv = ["gcc", "-static", "-pthread", "-o", program, source]
        subprocess.run(argv, check=True, timeout=60)
        log = TracerLog()
        with subprocess.Popen(
            [self.tracer, str(seconds), self.folder / "runs", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            answered = 0
            for line in process.stdout:
                log.feed(line)
                if until and re.fullmatch(until, line.decode().strip()):
                    process.kill()
                    break
                process.stdin.write(b"." * (log.answers - answered))
                answered = log.answers
        assert log.over is not bool(until)
        return log.work(crashed=bool(until))


@pytest.fixture
def traced(tracer: Path, tmp_path: Path) -> Traced:
    return Traced(tracer, tmp_path)


def results(work: Work, name: str) -> set[str]:
    return {call.result for call in work.calls if call.name == name}


def test_calls_are_told_with_their_results(traced: Traced) -> None:
    work = traced.run('open("/", 0); open("/missing", 0); close(77); chdir("/"); chdir("/");')
    assert results(work, "openat") == {"ok", "ENOENT"}
    assert results(work, "close") == {"EBADF"}
    (chdir,) = [call for call in work.calls if call.name == "chdir"]
    (exits,) = work.ends
    assert (exits.how, exits.value) == ("exit", 0)
    assert chdir.count == 2 * exits.count


@pytest.mark.thorough
def test_processes_and_threads_are_followed(traced: Traced) -> None:
    before = "static void *call(void *none) { sync(); return none; }"
    body = """
    pthread_t thread;
    pthread_create(&thread, NULL, call, NULL);
    pthread_join(thread, NULL);
    if (!fork()) { getppid(); if (!fork()) { setsid(); _exit(0); } wait(NULL); _exit(3); }
    wait(NULL);
    """
    work = traced.run(body, before)
    for name in ("sync", "getppid", "setsid"):
        assert results(work, name) == {"ok"}, name
    assert [end.value for end in work.ends] == [0]


def test_the_call_in_which_the_kernel_crashed_is_known(traced: Traced) -> None:
    work = traced.run("getppid(); syscall(SYS_request_key, 1, 2, 3, 4);", until="enter 249")
    assert work.unfinished == "request_key"
    assert results(work, "getppid") == {"ok"}


@pytest.mark.thorough
def test_a_call_that_does_not_come_back_is_told(traced: Traced) -> None:
    work = traced.run("pause();", seconds=3)
    assert results(work, "pause") == {"pending"}
    assert work.ends == []


@pytest.mark.thorough
def test_threads_that_end_with_their_process_died_of_nothing(traced: Traced) -> None:
    before = "static void *call(void *none) { for (;;) pause(); return none; }"
    work = traced.run("pthread_t t; pthread_create(&t, NULL, call, NULL); usleep(9000);", before)
    assert results(work, "pause") == set()
    assert "died" not in {call.result for call in work.calls}


def test_a_program_that_is_killed_and_one_that_stops_itself(traced: Traced) -> None:
    work = traced.run("raise(SIGSTOP); raise(SIGKILL);")
    assert {(end.how, end.value) for end in work.ends} == {("signal", int(signal.SIGKILL))}


@pytest.mark.thorough
def test_a_storm_of_calls_and_processes_is_bounded(traced: Traced) -> None:
    body = "for (int i = 0; i < 40; i++) fork(); for (long i = 0;; i++) syscall(i, i, -1, -1, -1);"
    body = body.replace("i < 40", "i < 5").replace("syscall(i,", "syscall(i % 7 + 330,")
    work = traced.run(body)
    assert len(work.calls) < 1200
    assert "pending" not in {call.result for call in work.calls}  # the end came, that is all


def test_a_talk_is_understood() -> None:
    log = TracerLog()
    log.feed(TALK)
    calls = {(call.name, call.result): call.count for call in log.work(crashed=False).calls}
    assert calls == {
        ("execve", "ok"): 1,
        ("ioctl", "ok"): 7,
        ("ioctl", "EINVAL"): 2,
        ("close", "died"): 1,
        ("read", "pending"): 1,
        ("epoll_ctl", "stuck"): 1,
    }
    assert (log.over, log.answers) == (True, 7)


def test_names() -> None:
    assert (call_name(0), call_name(462), call_name(999)) == ("read", "mseal", "syscall_999")
    assert call_name((1 << 16) + 11) == "i386_11"
    assert [result_name(n) for n in (0, 22, 512, 3000)] == ["ok", "EINVAL", "EINTR", "error_3000"]


@given(st.lists(st.integers(0, len(TALK)), max_size=10).map(sorted))
def test_it_is_the_same_cut_anywhere(cuts: list[int]) -> None:
    edges, whole, log = [0, *cuts, len(TALK)], TracerLog(), TracerLog()
    whole.feed(TALK)
    for a, b in itertools.pairwise(edges):
        log.feed(TALK[a:b])
    assert log == whole


WORDS = st.sampled_from(["enter", "call", "died", "total", "pending", "end", "exit", "over", "1"])


@pytest.mark.thorough
@given(st.lists(st.lists(WORDS | st.integers(-1, 10**17).map(str), max_size=5), max_size=50))
def test_nothing_that_a_guest_says_makes_it_raise(lines: list[list[str]]) -> None:
    log = TracerLog()
    log.feed("".join(" ".join(line) + "\n" for line in lines).encode())
    log.work(crashed=True)


def test_a_hostile_tracer_fills_no_memory() -> None:
    log = TracerLog()
    for number in range(20_000):
        log.feed(f"call {number} {number}\nend exit {number} 1\n".encode() + b"x" * 500)
    work = log.work(crashed=False)
    assert len(work.calls) <= 2048
    assert len(work.ends) <= 256


@pytest.mark.parametrize(
    ("outcome", "detail", "why"),
    [
        (InstanceOutcome.SURVIVED, "the program's last words: no tun", "its trace broke off"),
        (InstanceOutcome.SURVIVED, "", "its trace broke off"),
        (InstanceOutcome.SSH_LOST, "after 3 s: reset", "after 3 s: reset"),
        (InstanceOutcome.CRASH, "", "its trace broke off"),
    ],
)
def test_reasons_for_missing_evidence(outcome: InstanceOutcome, detail: str, why: str) -> None:
    assert why_unknown(InstanceEnding(outcome, detail)) == why


SYSTEM_MAP = Path(__file__).with_name("system_map.txt").read_text()


def frame(function: str, *, inlined: bool = False, uncertain: bool = False) -> dict[str, Any]:
    return {"function": function, "inlined": inlined, "uncertain": uncertain}


def test_the_way_begins_where_it_crashed() -> None:
    frames = [
        *(frame("kasan_report"), frame("old", uncertain=True), frame("vfs_ioctl", inlined=True)),
        *(frame("watch_queue_set_filter.isra.0"), frame("pipe_ioctl"), frame("pipe_ioctl")),
    ]
    report = {"frame": "watch_queue_set_filter", "frames": frames}
    assert functions(report) == ["watch_queue_set_filter", "pipe_ioctl"]
    whole = functions({"frame": None, "frames": frames})
    assert whole == ["kasan_report", "watch_queue_set_filter", "pipe_ioctl"]
    assert functions({}) == []


def test_functions_are_found_by_their_names() -> None:
    places = addresses(SYSTEM_MAP, ["watch_queue_set_filter", "gone", "twin", "pipe_ioctl"])
    assert places == {
        "watch_queue_set_filter": (0xFFFFFFFF81000100,),
        "twin": (0xFFFFFFFF81000400, 0xFFFFFFFF81000500),
        "pipe_ioctl": (0xFFFFFFFF81000000,),
    }


def test_names_of_many_functions_and_ways_without_end_are_cut() -> None:
    many = "".join(f"{0xFFFFFFFF81000000 + n:016x} t {'same' if n % 2 else n}\n" for n in range(80))
    places = addresses(many, ["same", *(str(n) for n in range(80))])
    assert len(places) == LONGEST
    assert "same" not in places


def test_what_everybody_goes_through_says_nothing() -> None:
    functions = reached(["a", "b", "c"], frozenset("b"), frozenset("ab"))
    assert functions == [Reached(function="a", reached=True), Reached(function="c", reached=False)]


@pytest.mark.thorough
@given(st.text(max_size=300), st.lists(st.text(max_size=20), max_size=20))
def test_no_map_makes_it_raise(text: str, names: list[str]) -> None:
    assert set(addresses(text, names)) <= set(names)


def test_the_report_is_that_of_the_crash_not_of_a_boot_that_failed_before_it() -> None:
    ends = [
        (11, InstanceOutcome.CRASH, "KASAN: a"),
        (1, InstanceOutcome.BOOT_FAILED, "kernel panic: timer"),
        (0, InstanceOutcome.CRASH, "WARNING in b"),
        (2, InstanceOutcome.CRASH, "KASAN: a"),
    ]
    instances = [InstanceResult(number=n, outcome=how, title=title) for n, how, title in ends]
    baseline = ran(Verdict.SAME_CRASH, "KASAN: a", instances=instances[1:])
    kept = ["report-1.json", "report-0.json", "report-2-retry-1.txt", "report-2-retry-1.json"]
    assert report_of(baseline, kept) == "report-2-retry-1.json"
    assert report_of(baseline, ["report-1.json", "report-11.json"]) is None
    assert report_of(ran(Verdict.SAME_CRASH, "KASAN: a", instances=instances), kept) == kept[-1]
