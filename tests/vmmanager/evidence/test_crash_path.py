"""The functions on the way to a crash, and where a kernel has them."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import InstanceOutcome, InstanceResult, Reached, Verdict
from kgym_vmmanager.evidence.crash_path import LONGEST, addresses, functions, reached, report_of
from tests.results import ran

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
