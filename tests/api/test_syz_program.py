"""Syzkaller's programs: options of every age of header, and the flags of every age of binary."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api import syz_program
from kgym.api.steps import Reproducer
from kgym.api.syz_program import Executed, Options
from tests.tables import rows

CALLS = "r0 = socket(0x10, 0x3, 0x0)\nsendmsg(r0, 0x0, 0x0)\n"
# What `-help` of Go's flag package prints, with syz-execprog's flags of 2017 and of 2025.
OLD = Path(__file__).with_name("execprog_help.txt").read_text()
NEW = OLD.replace("  -fault_call int", "  -sandbox_arg int").replace("-fault_nth", "-slowdown")


def with_header(header: str, note: str = "# See https://goo.gl/kgGztJ\n") -> str:
    return f"{note}{header}\n{CALLS}"


ALL_ON = (
    '#{"threaded":true,"collide":true,"repeat":true,"procs":8,"sandbox":"namespace",'
    '"fault_call":-1,"tun":true,"tmpdir":true,"cgroups":true,"close_fds":true,"segv":true}'
)
MOSTLY_OFF = "#{Threaded:false Collide:false Repeat:false Procs:1 Sandbox: Fault:false}"
OFF = Options(threaded=False, collide=False, repeat=False, procs=1, features=())
SET_UP = ("cgroups", "close_fds", "tun")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (
            with_header(ALL_ON),
            Options(procs=8, sandbox="namespace", fault_call=-1, features=SET_UP),
        ),
        (with_header('# {"procs":1,"sandbox":"","close_fds":false}'), OFF),
        (with_header(MOSTLY_OFF), replace(OFF, features=("close_fds",))),
        (CALLS, Options()),
        ("# a remark\n" + CALLS, Options()),
        (CALLS + '#{"procs":99,"sandbox":"none"}\n', Options()),  # below the first call
    ],
)
def test_a_header_says_how_to_run(text: str, options: Options) -> None:
    assert syz_program.options(text) == options


@pytest.mark.parametrize("fields", [line for (line,) in rows(__file__, "older_headers.txt")])
def test_older_headers_list_their_fields(fields: str) -> None:
    made = syz_program.options(with_header("#{" + fields + "}"))
    assert (made.threaded, made.collide, made.repeat, made.procs) == (True, True, True, 8)
    assert (made.sandbox, made.fault) == ("setuid", False)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ('#{"procs":0,"sandbox":"none"}', "procs is 0"),
        ('#{"procs":"many","sandbox":"none"}', "procs is 'many'"),
        ('#{"procs":true,"sandbox":"none"}', "procs is True"),
        ('#{"procs":1,"sandbox":"$(reboot)"}', r"sandbox is '\$\(reboot\)'"),
        ("#{Threaded:perhaps Procs:1 Sandbox:none}", "threaded is 'perhaps'"),
        ('#{"procs":1,"usb":"yes"}', "usb is 'yes'"),
        ("#{nothing to read}", "cannot read the options"),
        ("#{" + "[" * 100_000 + "]" * 100_000 + "}", "cannot read the options"),
        ('#{"fault":' + "[" * 100_000 + "]" * 100_000 + "}", "cannot read the options"),
        ('#{"repeat":true,"repeat_times":-4,"procs":1,"sandbox":"none"}', "negative"),
    ],
)
def test_a_bad_header_is_refused_with_what_is_wrong(header: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Reproducer(kind="syz", text=with_header(header))


def test_a_program_without_a_call_is_refused() -> None:
    with pytest.raises(ValueError, match="no call"):
        Reproducer(kind="syz", text="# only remarks\n")


def test_the_options_become_the_flags_that_the_binary_knows() -> None:
    wanted = Options(procs=8, sandbox="namespace", fault=True, fault_call=1, fault_nth=3)
    old = syz_program.arguments(wanted, syz_program.flags(OLD))
    assert {"-procs=8", "-repeat=0", "-sandbox=namespace", "-threaded=true"} <= set(old)
    assert {"-collide=true", "-fault_call=1", "-fault_nth=3"} <= set(old)
    new = syz_program.arguments(
        Options(sandbox="android", sandbox_arg=5, slowdown=3), syz_program.flags(NEW)
    )
    assert {"-sandbox_arg=5", "-slowdown=3"} <= set(new)
    assert not any("fault" in word for word in new)


def test_a_program_that_runs_once_runs_once() -> None:
    flags = syz_program.flags(OLD)
    assert "-repeat=1" in syz_program.arguments(Options(repeat=False), flags)
    assert "-repeat=7" in syz_program.arguments(Options(repeat_times=7), flags)


def test_collide_needs_threads() -> None:
    assert "-collide=false" in syz_program.arguments(
        Options(threaded=False), syz_program.flags(OLD)
    )


def test_a_fault_becomes_a_property_of_the_call_where_the_flag_is_gone() -> None:
    wanted = Options(fault=True, fault_call=1, fault_nth=3)
    text = with_header("#{}")
    assert syz_program.program(text, wanted, syz_program.flags(OLD)) == text
    assert syz_program.program(text, wanted, syz_program.flags(NEW)).endswith(
        "0x0, 0x0) (fail_nth: 4)\n"
    )
    already = text.replace("0x0, 0x0)\n", "0x0, 0x0) (fail_nth: 9)\n")
    assert syz_program.program(already, wanted, syz_program.flags(NEW)) == already


@pytest.mark.parametrize("earlier", ["(async)", "(rerun: 10, async)", "(remote)"])
def test_a_fault_joins_the_other_properties_of_its_call(earlier: str) -> None:
    text = f"#{{}}\ngetpid() {earlier}\n"
    wanted = Options(fault=True, fault_call=0, fault_nth=6)
    made = syz_program.program(text, wanted, syz_program.flags(NEW))
    assert made == f"#{{}}\ngetpid() {earlier[:-1]}, fail_nth: 7)\n"
    assert syz_program.program(text, Options(), syz_program.flags(NEW)) == text


NESTED = (
    "# {Threaded:true Repeat:true RepeatTimes:0 Procs:1 Sandbox:none NetInjection:true USB:true"
    " KCSAN:true UseTmpDir:true LegacyOptions:{Collide:true Fault:true FaultCall:2 FaultNth:7}}"
)
ODD = Path(__file__).parents[2].parent / "shared" / "data" / "odd_inputs" / "programs"


def test_options_of_older_headers_are_read_where_newer_ones_nest_them() -> None:
    texts = [NESTED, *(path.read_text() for path in ODD.glob("legacy-nested-collide.syz"))]
    for text in texts:
        made = syz_program.options(text)
        assert (made.collide, made.fault, made.fault_call, made.fault_nth) == (True, True, 2, 7)
        assert made.features is not None
        assert {"tun", "close_fds"} <= {*made.features}
        assert not {"collide", "kcsan", "tmpdir", "segv"} & {*made.features}


LISTED = (
    '  -enable string\n    \tenable only listed additional features (default "none")\n'
    "available features for -enable and -disable:\n"
    "  close_fds - close fds after each program\n  net_dev - setup more network devices\n"
    "  tun - setup and use /dev/tun for packet injection\n"
)


@pytest.mark.parametrize(
    ("spelling", "name"), [line.split("=") for (line,) in rows(__file__, "features.txt")]
)
def test_a_feature_has_one_name_however_a_header_spells_it(spelling: str, name: str) -> None:
    for header in (f'#{{"procs":1,"{spelling}":true}}', f"#{{Threaded:true {spelling}:true}}"):
        assert {*(syz_program.options(header).features or ())} == {"close_fds", name}


def test_features_are_enabled_as_far_as_this_syzkaller_knows_them() -> None:
    wanted = Options(features=("net_dev", "swap", "tun", "usb"))
    known = syz_program.flags(NEW + LISTED)
    assert "-enable=net_dev,tun" in syz_program.arguments(wanted, known)
    assert syz_program.unknown(wanted, known) == ["swap", "usb"]
    assert "-enable=" in syz_program.arguments(OFF, known)
    assert not any("enable" in word for word in syz_program.arguments(Options(), known))
    older = syz_program.flags(OLD)
    assert not any("enable" in word for word in syz_program.arguments(wanted, older))
    assert syz_program.unknown(wanted, older) == []


@given(st.text(), st.sampled_from(["#{", "# {", ""]))
def test_no_text_makes_it_fail_otherwise(text: str, start: str) -> None:
    try:
        made = syz_program.options(start + text)
    except ValueError:
        return
    assert made.sandbox in syz_program.SANDBOXES
    assert all(" " not in word for word in syz_program.arguments(made, syz_program.flags(OLD)))


@given(
    st.fixed_dictionaries(
        {"procs": st.integers(1, 128), "sandbox": st.sampled_from(["", *syz_program.SANDBOXES])},
        optional={
            "threaded": st.booleans(),
            "collide": st.booleans(),
            "repeat": st.booleans(),
            "repeat_times": st.integers(0, 1000),
        },
    )
)
def test_both_forms_of_a_header_say_the_same(fields: dict[str, object]) -> None:
    names = {"repeat_times": "RepeatTimes"}
    words = [
        f"{names.get(name, name.capitalize())}:{str(value).lower()}"
        for name, value in fields.items()
    ]
    assert syz_program.options(f"#{json.dumps(fields)}\n") == syz_program.options(
        f"#{{{' '.join(words)}}}\n"
    )


# What syz-execprog of 2021 prints with -output=true and -vv=1, but for most features.
OUTPUT = Path(__file__).with_name("execprog_output.txt").read_text()


def test_what_was_executed_is_read() -> None:
    executed = Executed.read(OUTPUT.encode())
    assert executed.calls == ("socket", "sendmsg")
    assert executed.lacks(with_header("#{}")) is None
    assert executed.summary() == (
        "2 of 2 calls came back at first; not well: sendmsg errno 14 blocked; the kernel lacks:"
        " code coverage (debugfs is not enabled or not mounted), 802.15.4 emulation"
        " (/sys/bus/platform does not exist)"
    )


@pytest.mark.parametrize(
    "output",
    ["", "2026/11/23 03:43:11 parsed 0 programs\n", "executing program 0:\n", "panic: x\n"],
)
def test_nothing_executed_is_no_work(output: str) -> None:
    why = Executed.read(output.encode()).lacks(with_header("#{}"))
    assert why == "syz-execprog printed no executed program"


@pytest.mark.attack
def test_calls_that_were_left_out_are_named() -> None:
    text = with_header("#{}") + "sendmsg(r0, 0x0, 0x0)\nopenat$none(0x0)\n"
    why = Executed.read(OUTPUT.encode()).lacks(text)
    assert why == "this syzkaller left out 2 of the program's calls: openat$none, sendmsg"


@pytest.mark.parametrize(
    ("header", "lacks"),
    [
        ('{"procs":1,"ieee802154":true}', "802.15.4 emulation (/sys/bus/platform does not exist)"),
        ('{"procs":1,"swap":true}', "swap (this syzkaller does not know it)"),
        ('{"procs":1,"fault":true,"fault_call":0}', "fault injection (CONFIG_X is not enabled)"),
        ('{"procs":1,"tun":true,"ieee802154":false}', None),
        ("no header", None),
    ],
)
def test_a_program_without_what_its_header_requires_proves_nothing(
    header: str, lacks: str | None
) -> None:
    first = "swap                    : this syzkaller does not know it\n"
    first += "2026/11/23 03:43:12 fault injection         : CONFIG_X is not enabled\n"
    executed = Executed.read((first + OUTPUT).encode())
    why = executed.lacks(with_header(f"#{header}"))
    assert why == (lacks and f"the program needs what is not there: {lacks}")
    assert "802.15.4 emulation" in executed.summary()


def test_an_executor_that_executed_nothing_proves_nothing() -> None:
    output = OUTPUT.partition("2026/11/23 03:43:12 CALL")[0] + "x RESULT: no calls executed\n"
    why = Executed.read(output.encode()).lacks(with_header("#{}"))
    assert why == "the executor executed no call"


def test_a_first_run_tells_of_itself_as_far_as_the_binary_can() -> None:
    known = {"procs", "repeat", "output", "vv"}
    wanted = Options(repeat=True, procs=4)
    assert syz_program.first_run(wanted, known) == [
        "-procs=1",
        "-repeat=1",
        "-output=true",
        "-vv=1",
    ]
    assert syz_program.first_run(wanted, {"procs"}) == ["-procs=1"]


@given(st.binary(max_size=2000) | st.text(max_size=2000).map(lambda text: (OUTPUT + text).encode()))
def test_any_output_can_be_read(output: bytes) -> None:
    executed = Executed.read(output)
    assert isinstance(executed.summary(), str)
    assert executed.calls or executed.lacks("getpid()\n")
