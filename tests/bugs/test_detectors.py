"""What a kernel detects follows from its config and its command line."""

import pytest

from kgym.api.steps import ControlName
from kgym.bugs import bundle
from kgym.bugs.detectors import KASAN, SYMBOLS, WATCH, WHOLE, detectors, needed, symbols
from tests.tables import json_rows

EVERYTHING = dict.fromkeys(SYMBOLS - {"UBSAN_TRAP"}, "y") | {"DEBUG_KMEMLEAK_DEFAULT_OFF": "n"}
QUIET = "console=ttyS0 panic_on_warn=1 oops=panic kasan.fault=panic panic=0"


def test_only_what_matters_is_read_from_a_config_set_or_not() -> None:
    text = (
        'CONFIG_KASAN_GENERIC=y\n# CONFIG_UBSAN is not set\nCONFIG_LOCALVERSION="KASAN"\n'
        "CONFIG_DETECT_HUNG_TASK=y\n# CONFIG_KASAN_SW_TAGS is set by nobody\nCONFIG_BUG\n"
    )
    assert symbols(text) == {"KASAN_GENERIC": "y", "UBSAN": "n", "DETECT_HUNG_TASK": "y"}


def test_a_kernel_with_everything_lacks_nothing() -> None:
    available = detectors(EVERYTHING, QUIET)
    assert (available.lacking, available.ubsan, available.panics) == ({}, ("shift", "bounds"), True)


def test_a_kernel_with_nothing_still_oopses_and_panics() -> None:
    lacking = detectors({}, QUIET).lacking
    assert set(ControlName) - lacking.keys() == {ControlName.PANIC, ControlName.OOPS}


@pytest.mark.parametrize(
    ("without", "lacking"),
    [
        ("BUG", {ControlName.WARNING}),
        ("PROVE_LOCKING", {ControlName.LOCKDEP}),
        ("DETECT_HUNG_TASK", {ControlName.HUNG_TASK}),
        ("UBSAN", {ControlName.UBSAN}),
        ("UBSAN_SANITIZE_ALL", {ControlName.UBSAN}),
        ("DEBUG_KMEMLEAK", {ControlName.LEAK}),
        ("DEBUG_FS", {ControlName.LEAK}),
        ("UBSAN_BOUNDS", set()),  # shifts are still checked
        ("KASAN_GENERIC", set()),  # software tags detect the same
    ],
)
def test_each_detector_has_its_symbol(without: str, lacking: set[ControlName]) -> None:
    assert detectors(EVERYTHING | {without: "n"}, QUIET).lacking.keys() == lacking


def test_kfence_alone_is_no_kasan() -> None:
    available = detectors(EVERYTHING | {"KASAN_GENERIC": "n", "KASAN_SW_TAGS": "n"}, QUIET)
    assert available.lacking.keys() == set(KASAN)


def test_a_kernel_that_checks_all_files_since_6_9_has_no_symbol_for_that() -> None:
    without = {name: "y" for name in EVERYTHING if name != "UBSAN_SANITIZE_ALL"}
    assert ControlName.UBSAN not in detectors(without, QUIET).lacking


@pytest.mark.parametrize(
    ("words", "on"), [("", False), ("kmemleak=on", True), ("kmemleak=on kmemleak=off", False)]
)
def test_kmemleak_may_wait_for_the_command_line(words: str, on: bool) -> None:
    asked = EVERYTHING | {"DEBUG_KMEMLEAK_DEFAULT_OFF": "y"}
    assert (ControlName.LEAK not in detectors(asked, words).lacking) == on


@pytest.mark.parametrize(("words", "panics"), json_rows(__file__, "panicking.jsonl"))
def test_the_last_word_of_the_command_line_decides_whether_a_report_panics(
    words: str, panics: bool
) -> None:
    assert detectors(EVERYTHING, words).panics == panics


def test_the_shipped_config_has_what_the_bugs_need() -> None:
    config = "".join(bundle.load("watch-queue-filter").build.config.fragments)
    known = dict.fromkeys(SYMBOLS, "n") | symbols(config)
    assert not detectors(known, QUIET).lacking.keys() & {*KASAN, ControlName.UBSAN}


def test_what_raises_a_fault_may_not_compile() -> None:
    available = detectors(EVERYTHING, QUIET, {"kasan": "oh: no", "lockdep": "hm"})
    assert available.unavailable.keys() == {*KASAN, ControlName.LOCKDEP}
    assert available.unavailable[KASAN[0]] == "controls not available on this kernel: oh: no"
    assert (available.lacking, available.unwatched) == ({}, "")


def test_a_detector_that_is_not_there_is_not_missed_where_its_fault_cannot_be_raised() -> None:
    available = detectors(EVERYTHING | {"PROVE_LOCKING": "n"}, QUIET, {"lockdep": "hm"})
    assert (available.lacking.keys(), available.unavailable) == ({ControlName.LOCKDEP}, {})


@pytest.mark.parametrize("part", [WHOLE, "a part of another version"])
def test_without_the_object_nothing_can_be_raised(part: str) -> None:
    available = detectors(EVERYTHING, QUIET, {part: "oh"})
    assert available.unavailable.keys() == set(ControlName)
    assert ("oh" in available.unwatched) == (part == WHOLE)


def test_whether_tasks_that_end_are_seen_depends_on_kernel_and_object() -> None:
    assert detectors(EVERYTHING, QUIET).unwatched == ""
    assert "oh" in detectors(EVERYTHING, QUIET, {WATCH: "oh"}).unwatched
    assert detectors(EVERYTHING, QUIET, {WATCH: "oh"}).unavailable == {}
    without = detectors(EVERYTHING | {"TRACEPOINTS": "n"}, QUIET)
    assert without.unwatched == "no CONFIG_TRACEPOINTS"


ALWAYS = {ControlName.WARNING, ControlName.PANIC, ControlName.OOPS}


@pytest.mark.parametrize(
    ("titles", "more"),
    [
        (["WARNING in f"], set()),
        (["kernel BUG in f"], set()),
        (["KASAN: use-after-free Read in f"], set(KASAN)),
        (["general protection fault in f"], set(KASAN)),
        (["possible deadlock in f"], {ControlName.LOCKDEP}),
        (["INFO: task hung in f"], {ControlName.HUNG_TASK}),
        (["memory leak in f"], {ControlName.LEAK}),
        (["UBSAN: shift-out-of-bounds in f"], {ControlName.UBSAN}),
        (["WARNING in f", "possible deadlock in f"], {ControlName.LOCKDEP}),
        (["something of its own in f"], set(ControlName)),
        ([], set(ControlName)),
    ],
)
def test_a_crash_is_told_by_the_detectors_of_its_class(
    titles: list[str], more: set[ControlName]
) -> None:
    assert needed(titles) == ALWAYS | more
