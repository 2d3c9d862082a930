"""Patches apply strictly or not at all."""

import contextlib
import difflib
import quopri
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kgym.api.steps import Edit, Patch
from kgym.errors import UserError
from kgym.source import diff_text, unified_diff
from kgym.source.patching import apply, files, reverse
from tests.tables import json_rows, rows

TREE = {"kernel/a.c": b"int a;\nint b;\nint c;\nint d;\nint e;\n", "twice.c": b"x\ny\nz\n" * 2}


def diff(old: str, new: str, path: str = "kernel/a.c") -> Patch:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    text = "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )
    return Patch(diff=text)


def hunk(path: str, header: str, body: str) -> Patch:
    return Patch(diff=f"--- a/{path}\n+++ b/{path}\n@@ {header} @@\n{body}")


def result(patch: Patch, tree: dict[str, bytes] = TREE) -> dict[str, bytes | None]:
    return {change.path: change.content for change in apply(patch, tree).changes}


def refusal(patch: Patch, tree: dict[str, bytes] = TREE) -> UserError:
    with pytest.raises(UserError) as caught:
        apply(patch, tree)
    return caught.value


text = st.lists(st.sampled_from(["a", "b", "c", "", "\tif (x)"]), max_size=12).flatmap(
    lambda lines: st.sampled_from(["\n".join(lines), "\n".join(lines) + "\n"])
)


@pytest.mark.thorough
@given(text, text)
def test_applying_a_diff_gives_the_new_text_and_its_reverse_the_old(old: str, new: str) -> None:
    assume(old and new and old != new)
    patch = diff(old, new)
    assert result(patch, {"kernel/a.c": old.encode()}) == {"kernel/a.c": new.encode()}
    undone = result(reverse(patch), {"kernel/a.c": new.encode()})
    assert undone == {"kernel/a.c": old.encode()}


def test_a_hunk_moves_to_the_only_other_place_and_says_so() -> None:
    patch = hunk("kernel/a.c", "-1,2 +1,2", " int d;\n-int e;\n+int f;\n")
    applied = apply(patch, TREE)
    assert applied.changes[0].content == b"int a;\nint b;\nint c;\nint d;\nint f;\n"
    assert "+3 lines away" in applied.notes[0]


def test_a_hunk_that_could_go_to_two_places_is_refused() -> None:
    error = refusal(hunk("twice.c", "-9,2 +9,2", " y\n-z\n+Z\n"))
    assert "occur at several places" in error.message


def test_many_hunks_that_all_stand_elsewhere_are_refused() -> None:
    lines = [f"int a{n};\n" for n in range(5000)]
    hunks = "".join(f"@@ -{n} +{n} @@\n-{lines[2 * n]}+int b;\n" for n in range(1, 2000))
    patch = Patch(diff=f"--- a/kernel/a.c\n+++ b/kernel/a.c\n{hunks}")
    error = refusal(patch, {"kernel/a.c": "".join(lines).encode()})
    assert "over 1000 hunks" in error.message


def test_hunks_that_stand_where_they_say_are_not_counted_as_moved() -> None:
    lines = [f"int a{n};\r\n" for n in range(1500)]
    hunks = "".join(f"@@ -{n} +{n} @@\n-int a{n - 1};\n+int b;\n" for n in range(1, 1501))
    patch = Patch(diff=f"--- a/kernel/a.c\n+++ b/kernel/a.c\n{hunks}")
    assert result(patch, {"kernel/a.c": "".join(lines).encode()})


@pytest.mark.thorough
@pytest.mark.timeout(20)
@pytest.mark.parametrize("last", ["int b;\n", "int b;\n\\ No newline at end of file\n"])
def test_lines_that_repeat_take_no_time_to_search(last: str) -> None:
    many = 100_000
    header = f"-1,{many + 1} +1,{many + 2}"
    patch = hunk("kernel/a.c", header, " int a;\n" * many + f"+int c;\n {last}")
    content = b"int a;\n" * 3 * many
    assert refusal(patch, {"kernel/a.c": content}).reason == "patch_does_not_apply"


def test_a_line_without_an_end_stands_only_at_the_end_of_a_file() -> None:
    patch = hunk("kernel/a.c", "-9 +9", "-int e;\n\\ No newline at end of file\n+int f;\n")
    assert refusal(patch).reason == "patch_does_not_apply"
    tree = {"kernel/a.c": b"int e;\nint d;\nint e;"}
    assert result(patch, tree) == {"kernel/a.c": b"int e;\nint d;\nint f;\n"}


def test_a_hunk_is_never_applied_fuzzily_and_its_nearest_place_is_shown() -> None:
    error = refusal(hunk("kernel/a.c", "-2,3 +2,3", " int b;\n-int X;\n+int Y;\n int d;\n"))
    assert error.reason == "patch_does_not_apply"
    assert error.details["hunk"] == 1
    assert "from line 2" in error.message
    assert "-int X;" in error.message
    assert "+int c;" in error.message


def test_hunks_of_one_file_see_each_other() -> None:
    patch = Patch(
        diff="--- a/kernel/a.c\n+++ b/kernel/a.c\n"
        "@@ -1 +1,3 @@\n int a;\n+int a2;\n+int a3;\n@@ -5 +7 @@\n-int e;\n+int E;\n"
    )
    assert result(patch)["kernel/a.c"] == (
        b"int a;\nint a2;\nint a3;\nint b;\nint c;\nint d;\nint E;\n"
    )


def test_files_are_added_removed_and_renamed() -> None:
    added = Patch(diff="--- /dev/null\n+++ b/new.c\n@@ -0,0 +1,2 @@\n+one\n+two\n")
    assert result(added) == {"new.c": b"one\ntwo\n"}
    removed = Patch(diff="--- a/new.c\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n")
    assert result(removed, {"new.c": b"one\n"}) == {"new.c": None}
    renamed = Patch(
        diff="diff --git a/old.c b/new.c\nrename from old.c\nrename to new.c\n"
        "--- a/old.c\n+++ b/new.c\n@@ -1 +1 @@\n-one\n+two\n"
    )
    assert result(renamed, {"old.c": b"one\n"}) == {"old.c": None, "new.c": b"two\n"}


def test_a_new_file_does_not_replace_one_that_is_there() -> None:
    error = refusal(Patch(diff="--- /dev/null\n+++ b/twice.c\n@@ -0,0 +1 @@\n+one\n"))
    assert "already exists" in error.message


@pytest.mark.parametrize(
    "path", ["../etc/passwd", "/etc/passwd", "a/../../x", ".git/config", "sub/.git/hooks/x"]
)
def test_a_path_outside_the_tree_is_refused(path: str) -> None:
    body = "@@ -0,0 +1 @@\n+x\n"
    for patch in (
        Patch(diff=f"--- /dev/null\n+++ b/{path}\n{body}"),
        Patch(diff=f"--- /dev/null\n+++ {path}\n{body}"),
        Patch(edits=[Edit(file=path, original="x", replacement="y")]),
    ):
        assert refusal(patch).reason == "unsafe_patch"
        with pytest.raises(UserError):
            files(patch)


def test_a_symbolic_link_and_a_submodule_are_refused() -> None:
    for mode in ("120000", "160000"):
        patch = Patch(
            diff=f"diff --git a/l b/l\nnew file mode {mode}\n--- /dev/null\n+++ b/l\n"
            "@@ -0,0 +1 @@\n+/etc/passwd\n\\ No newline at end of file\n"
        )
        assert refusal(patch).reason == "unsafe_patch"


@pytest.mark.parametrize(("text", "reason"), json_rows(__file__, "no_patches.jsonl"))
def test_what_is_no_patch_is_refused_with_its_reason(text: str, reason: str) -> None:
    assert refusal(Patch(diff=text)).reason == reason


@given(st.text(max_size=200))
def test_any_text_is_applied_or_refused_as_the_users_error(text: str) -> None:
    with contextlib.suppress(UserError):
        apply(Patch(diff="--- a/twice.c\n+++ b/twice.c\n@@ -1,3 +1,3 @@\n" + text), TREE)


@pytest.mark.thorough
@given(text, st.data())
def test_hunks_that_stand_elsewhere_apply_as_those_that_stand_where_they_say(
    old: str, data: st.DataObject
) -> None:
    """The one walk over a file gives what hunk by hunk on the file so far gives."""
    lines = [f"{number} {line}" for number, line in enumerate(old.splitlines(keepends=True))]
    assume(lines and all(line.endswith("\n") for line in lines))
    new = [
        changed
        for line in lines
        for changed in data.draw(st.sampled_from([[line], [], ["X\n"], [line, "Y\n", "Z\n"]]))
    ]
    assume(new and new != lines)
    diffed = "".join(difflib.unified_diff(lines, new, "a/kernel/a.c", "b/kernel/a.c", n=1))
    before = ["first\n"] * data.draw(st.integers(0, 4))
    tree = {"kernel/a.c": "".join(before + lines).encode()}
    assume("@@ -0,0" not in diffed)
    with contextlib.suppress(UserError):  # an addition at the end has no lines to find it by
        assert result(Patch(diff=diffed), tree) == {"kernel/a.c": "".join(before + new).encode()}


@pytest.mark.thorough
@pytest.mark.timeout(60)
def test_many_hunks_that_change_the_number_of_lines_take_one_walk() -> None:
    many = 300_000
    lines = [f"int a{number};\n" for number in range(many)]
    step = 10
    hunks = "".join(
        f"@@ -{at + 1} +{at + 1 + at // step},2 @@\n {lines[at]}+int b;\n"
        for at in range(0, many, step)
    )
    patch = Patch(diff=f"--- a/a.c\n+++ b/a.c\n{hunks}")
    content = result(patch, {"a.c": "".join(lines).encode()})["a.c"]
    assert content is not None
    assert content.count(b"\n") == many + many // step


def test_two_names_of_a_file_are_one_file() -> None:
    edits = [
        Edit(file="kernel/a.c", original="int a;", replacement="long a;"),
        Edit(file="./kernel//a.c", original="int b;", replacement="long b;"),
        Edit(file="kernel/./a.c", original="long a;", replacement="char a;"),
    ]
    expected = b"char a;\nlong b;\nint c;\nint d;\nint e;\n"
    assert result(Patch(edits=edits)) == {"kernel/a.c": expected}
    assert files(Patch(edits=edits)) == ["kernel/a.c"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("patch", "tree"),
    [
        (  # 43 KB of edits on a large file
            Patch(
                edits=[
                    Edit(file="a.c", original=f"int a{n};", replacement=f"int b{n};")
                    for n in range(900)
                ]
            ),
            {"a.c": b"".join(b"int a%d;\n" % n for n in range(900)) + b"int b;\n" * 1_300_000},
        ),
        (Patch(diff="--- a/a.c\n+++ b/a.c\n" + "@@ -1 +1 @@\n-a\n+b\n" * 100_000), TREE),
        (
            Patch(
                diff="".join(
                    f"--- /dev/null\n+++ b/{n}.c\n@@ -0,0 +1 @@\n+a\n" for n in range(5001)
                )
            ),
            TREE,
        ),
    ],
)
def test_what_would_take_too_long_is_refused(patch: Patch, tree: dict[str, bytes]) -> None:
    assert refusal(patch, tree).reason == "patch_too_large"


@pytest.mark.parametrize("digits", [10, 5000])
def test_a_number_of_many_digits_is_the_users_error_if_any(digits: int) -> None:
    long = "1" * digits
    for header in (f"-{long} +1", f"-1 +1,{long}", f"-1,{long} +{long}"):
        with contextlib.suppress(UserError):  # a first line far away is looked for elsewhere
            result(hunk("kernel/a.c", header, "-int a;\n+int b;\n"))


def test_an_edit_replaces_the_one_place_that_reads_so() -> None:
    patch = Patch(edits=[Edit(file="kernel/a.c", original="int c;", replacement="long c;")])
    assert b"long c;\n" in (result(patch)["kernel/a.c"] or b"")


def test_an_edit_may_spell_bytes_that_are_not_utf8_as_readers_show_them() -> None:
    content = b"/* caf\xe9 \xff */\nint a;\n"
    for original, replacement in (
        ("/* caf\ufffd \ufffd */\nint a;", "/* caf\ufffd \ufffd */\nint b;"),
        ("/* caf\u00e9 \u00ff */\nint a;", "/* caf\u00e9 \u00ff */\nint b;"),
    ):
        patch = Patch(edits=[Edit(file="a.c", original=original, replacement=replacement)])
        assert result(patch, {"a.c": content}) == {"a.c": content.replace(b"a;", b"b;")}
        diff = Patch(diff=unified_diff.between("a.c", f"{original}\n", f"{replacement}\n"))
        if "\ufffd" in original:  # a diff in Latin-1 says so in a mail
            assert result(diff, {"a.c": content}) == {"a.c": content.replace(b"a;", b"b;")}
    two = b"/* \xfe */\n/* \xff */\n"
    diff = Patch(diff=unified_diff.between("a.c", "/* \ufffd */\n", "/* */\n"))
    assert refusal(diff, {"a.c": two}).reason == "patch_does_not_apply"
    for unclear in (("caf\ufffd \ufffd", "\ufffd"), ("\ufffd */", "*/")):
        edit = Edit(file="a.c", original=unclear[0], replacement=unclear[1])
        assert "0 times" in refusal(Patch(edits=[edit]), {"a.c": content + b"/* \xfe */\n"}).message


def test_an_edit_with_other_white_space_is_shown_the_lines() -> None:
    edit = Edit(file="kernel/a.c", original="  int line3  = 3;\n  int line4 = 4;", replacement="x")
    assert (
        "\tint line3 = 3;\n\tint line4 = 4;\n"
        in refusal(Patch(edits=[edit]), {"kernel/a.c": FULL}).message
    )


@pytest.mark.parametrize(("original", "count"), [("int ", "5 times"), ("int z;", "0 times")])
def test_an_edit_whose_original_is_not_there_once_is_refused(original: str, count: str) -> None:
    patch = Patch(edits=[Edit(file="kernel/a.c", original=original, replacement="")])
    assert count in refusal(patch).message


def test_a_file_that_is_not_in_the_tree_is_named() -> None:
    assert "no.c is not in the tree" in refusal(hunk("no.c", "-1 +1", "-a\n+b\n")).message


FULL = b"".join(b"\tint line%d = %d;\n" % (n, n) for n in range(9))
CHANGE = Path(__file__).with_name("change.diff").read_text()
CHANGED = FULL.replace(b"line3 = 3", b"line3 = 4")


@pytest.mark.parametrize(("old", "new"), rows(__file__, "paths_in_diffs.tsv"))
def test_a_files_path_is_known_however_the_diff_was_made(old: str, new: str) -> None:
    patch = Patch(diff=CHANGE.replace("a/kernel/a.c", old, 1).replace("b/kernel/a.c", new, 1))
    tree = {path: FULL for path in files(patch) if path == "kernel/a.c"}
    assert result(patch, tree) == {"kernel/a.c": CHANGED}


@pytest.mark.parametrize(
    ("old", "new"), [("mm/a.c", "kernel/a.c"), ("kernel/a.c", "kernel/b.c"), ("k/a.c", "mm/a.c")]
)
def test_a_diff_of_two_files_is_no_change(old: str, new: str) -> None:
    patch = Patch(diff=f"--- {old}\n+++ {new}\n@@ -1 +1 @@\n-a\n+b\n")
    tree = dict.fromkeys([old, new, "a.c"], b"a\n")
    assert "changes no single file" in refusal(patch, tree).message


def test_of_two_files_that_may_be_meant_none_is_changed() -> None:
    patch = Patch(diff="--- lib.orig/a.c\n+++ lib/a.c\n@@ -1 +1 @@\n-a\n+b\n")
    assert "may mean" in refusal(patch, {"lib/a.c": b"a\n", "a.c": b"a\n"}).message


def test_line_ends_are_the_files() -> None:
    crlf = CHANGE.replace("\n", "\r\n")
    body = "".join(
        line + ("\r\n" if number > 2 else "\n") for number, line in enumerate(CHANGE.splitlines())
    )
    for text in (CHANGE, crlf, body, "\ufeff" + CHANGE, "\ufeff" + crlf):
        for end in (b"\n", b"\r\n"):
            before, after = FULL.replace(b"\n", end), CHANGED.replace(b"\n", end)
            assert result(Patch(diff=text), {"kernel/a.c": before}) == {"kernel/a.c": after}
    mixed = FULL.replace(b"\n", b"\r\n", 1)
    assert refusal(Patch(diff=body), {"kernel/a.c": mixed}).reason == "patch_does_not_apply"


OTHER_BYTES = b"/* \xff\xfe */\n"
NATIONAL = b"\xe1\xe9 %d\n"
DIFF_OF_BYTES = b"--- a/kernel/a.c\n+++ b/kernel/a.c\n@@ -1,3 +1,3 @@\n" + (
    b" %s-%s+%s %s" % tuple(NATIONAL % n for n in (0, 1, 4, 2))
)


def mailed(data: bytes, charset: str) -> str:
    head = f"Subject: x\nContent-Type: text/plain; charset={charset}\nContent-Transfer-Encoding: "
    return f"{head}quoted-printable\n\n{quopri.encodestring(data).decode()}"


@pytest.mark.parametrize(
    "text",
    [
        diff_text.decode(DIFF_OF_BYTES, "bytes"),
        mailed(DIFF_OF_BYTES, "iso-8859-1"),
        mailed(DIFF_OF_BYTES, "koi8-r"),
        mailed(DIFF_OF_BYTES, "utf-8"),
        mailed(DIFF_OF_BYTES.decode("latin-1").encode(), "utf-8"),
    ],
    ids=["bytes", "Latin-1", "KOI8-R", "called UTF-8", "UTF-8"],
)
def test_lines_that_are_not_utf8_are_compared_and_written_as_bytes(text: str) -> None:
    content = b"".join(NATIONAL % n for n in range(4)) + OTHER_BYTES
    assert result(Patch(diff=text), {"kernel/a.c": content}) == {
        "kernel/a.c": content.replace(b"1\n", b"4\n", 1)
    }


def test_lines_that_are_utf8_in_a_file_that_is_not_stay_so() -> None:
    before, after = ("caf\u00e9\n".encode() + b"caf\xe9 %d\n" % n + OTHER_BYTES for n in (0, 1))
    text = diff_text.decode(
        b"--- a/kernel/a.c\n+++ b/kernel/a.c\n@@ -1,3 +1,3 @@\n caf\xc3\xa9\n"
        b"-caf\xe9 0\n+caf\xe9 1\n /* \xff\xfe */\n",
        "bytes",
    )
    assert result(Patch(diff=text), {"kernel/a.c": before}) == {"kernel/a.c": after}
    error = refusal(Patch(diff=text), {"kernel/a.c": after})
    assert "nearest in the file" in error.message
    assert error.message.encode()


def test_a_new_file_of_a_patch_with_crlf_has_none() -> None:
    patch = Patch(diff="--- /dev/null\r\n+++ b/new.c\r\n@@ -0,0 +1 @@\r\n+one\r\n")
    assert result(patch) == {"new.c": b"one\n"}


@pytest.mark.parametrize(("text", "words"), json_rows(__file__, "unapplied.jsonl"))
def test_what_kept_a_patch_from_applying_is_called_by_its_name(text: str, words: str) -> None:
    assert words in refusal(Patch(diff=text), {"kernel/a.c": FULL}).message


@pytest.mark.parametrize(
    "patch",
    [
        Patch(diff=CHANGE.replace("line3 = 4", "line3 = 3")),
        Patch(diff="--- a/kernel/a.c\n+++ b/kernel/a.c\n@@ -1 +1 @@\n \tint line0 = 0;\n"),
        Patch(edits=[Edit(file="kernel/a.c", original="line3", replacement="line3")]),
        Patch(
            edits=[
                Edit(file="kernel/a.c", original="line3", replacement="x"),
                Edit(file="kernel/a.c", original="x", replacement="line3"),
            ]
        ),
    ],
)
def test_a_patch_that_changes_nothing_says_so(patch: Patch) -> None:
    error = refusal(patch, {"kernel/a.c": FULL})
    assert (error.reason, "changes nothing" in error.message) == ("empty_patch", True)
