"""Files that do not fit a model's window are cut by function, nearest to the crash first."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym_crashfixer.context import Near, cut, tokens

MARK = re.compile(r"/\* \[lines \d+ to \d+ are left out here[^\n]*\] \*/\n")


def function(name: str, body: str = "", lines: int = 20) -> str:
    inner = "".join(f"\ttotal += table[{number}] * n;\n" for number in range(lines))
    return (
        f"/* {name} does this. */\nstatic int {name}(int n)\n{{\n{body}{inner}\treturn n;\n}}\n\n"
    )


HEAD = "#include <linux/fs.h>\n\n#define LIMIT 16\n\nstruct thing {\n\tint a;\n};\n\n"
FILE = HEAD + "".join(
    function(name, body)
    for name, body in (
        ("far_away", ""),
        ("caller", "\tcrashes(n);\n"),
        ("crashes", "\tn = helper(n);\n"),
        ("helper", "\tn = LIMIT;\n"),
        ("other", ""),
        ("last", ""),
    )
)
REPORT = (
    "BUG: KASAN: use-after-free in crashes+0x10/0x20 fs/a.c:58\n"
    "Read of size 4 at addr ffff888100000000 by task a/7\n"
    "Call Trace:\n crashes+0x10/0x20\n entry_SYSCALL_64_after_hwframe+0x63/0xcd\n"
)


def test_what_fits_is_left_alone() -> None:
    result = cut({"fs/a.c": FILE}, Near.of(REPORT), tokens(FILE))
    assert result.files == {"fs/a.c": FILE}
    assert result.left_out == ()


def test_the_function_of_the_stack_stays_then_what_it_uses_then_its_callers() -> None:
    first: dict[str, int] = {}
    for most in range(100, tokens(FILE), 50):
        shown = cut({"fs/a.c": FILE}, Near(("crashes",)), most).files["fs/a.c"]
        for name in re.findall(r"^static int (\w+)\(", shown, re.MULTILINE):
            first.setdefault(name, most)
            assert f"/* {name} does this. */" in shown
    assert next(iter(first)) == "crashes"
    assert first["crashes"] < first["helper"] < first["caller"]
    small = cut({"fs/a.c": FILE}, Near(("crashes",)), first["crashes"]).files["fs/a.c"]
    assert "far_away()" in small  # it is named in place of its text


def test_it_is_said_what_was_left_out() -> None:
    (summary,) = cut({"fs/a.c": FILE}, Near(("crashes",)), tokens(FILE) // 2).left_out
    assert re.fullmatch(r"fs/a\.c: \d+ of \d+ lines left out, \d functions among them", summary)


def test_names_and_lines_come_from_report_trace_and_changes() -> None:
    diff = "--- a/fs/b.c\n+++ b/fs/b.c\n@@ -3,2 +5,3 @@\n a\n+b\n c\n"
    near = Near.of(REPORT, "first() [returned]\nsecond() x 3 [active]", diff)
    assert near.functions[-2:] == ("second", "first")
    assert near.functions[0] == "crashes"
    assert set(near.lines["fs/b.c"]) == {4, 5, 6}


def test_of_a_function_longer_than_the_window_the_line_that_crashed_stays() -> None:
    long = HEAD + function("huge", lines=3000)
    shown = cut({"fs/a.c": long}, Near(lines={"fs/a.c": {2000}}), 2_000).files["fs/a.c"]
    assert long.splitlines()[2000] in shown
    assert tokens(shown) <= 2_000


def test_system_calls_and_clones_are_known_by_their_own_names() -> None:
    frames = "".join(f" {name}+0x1/0x2\n" for name in ("work.part.0", "__x64_sys_close"))
    near = Near.of(REPORT.replace("Call Trace:\n", f"Call Trace:\n{frames}"))
    assert {"work", "sys_close"} <= set(near.functions)


def pieces_of(text: str) -> list[str]:
    return [piece for piece in MARK.split(text) if piece]


PARTS = st.one_of(
    st.builds(function, st.from_regex(r"[a-z]{1,8}", fullmatch=True), lines=st.integers(0, 400)),
    st.text(alphabet=st.characters(codec="utf-8"), max_size=200),
    st.sampled_from(["#ifdef A\n", "#endif\n", "int a[] = {\n", "};\n", "}\n", "\f\n", HEAD]),
)


@pytest.mark.thorough
@given(st.lists(PARTS, max_size=12), st.integers(0, 8_000), st.integers(0, 400))
def test_cutting_only_leaves_out(parts: list[str], most: int, line: int) -> None:
    text = "".join(parts)
    files = {"a.c": text, "b.h": HEAD}
    near = Near.of(REPORT)
    near = Near(near.functions, {"a.c": {line}})
    result = cut(files, near, most)
    assert result == cut(files, near, most)
    assert list(result.files) == list(files)
    assert sum(map(tokens, result.files.values())) <= max(most, 60 * len(files))
    if not result.left_out:
        assert result.files == files
    at = 0
    for piece in pieces_of(result.files["a.c"]):
        if piece == "\n" and piece not in text[at:]:
            continue  # the end of the last line, which had none
        at = text.index(piece, at) + len(piece)


def test_only_what_is_named_is_kept_if_that_is_wanted() -> None:
    near = Near.of(REPORT, names=["thing", "last"])
    result = cut(
        {"fs/a.c": FILE, "fs/b.c": FILE.replace("crashes", "works")}, near, 100_000, only=True
    )
    shown = result.files["fs/a.c"]
    assert re.findall(r"^static int (\w+)\(", shown, re.MULTILINE) == ["crashes", "last"]
    assert "struct thing {" in shown
    assert "static int works" not in result.files["fs/b.c"]
    assert "works()" in result.files["fs/b.c"]  # it is named in place of its text
    pieces = MARK.split(shown)
    assert all(piece in FILE for piece in pieces)


def test_files_of_which_nothing_is_named_are_cut_as_otherwise() -> None:
    result = cut({"fs/a.c": FILE}, Near(("elsewhere",)), tokens(FILE), only=True)
    assert result.files == {"fs/a.c": FILE}
    small = cut({"fs/a.c": FILE}, Near(("elsewhere",)), 200, only=True)
    assert small == cut({"fs/a.c": FILE}, Near(("elsewhere",)), 200)
