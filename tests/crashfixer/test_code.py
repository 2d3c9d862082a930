"""The code of a node: candidate files with edits, as a diff and as a digest."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import Edit, Patch
from kgym.source import patching
from kgym.source.whole_functions import MisfitError
from kgym_crashfixer.search.code import Code
from tests.tables import json_rows

A = "int a;\n\f\nint f(void)\n{\n\treturn a; /* not b */\n}\n"


def code() -> Code:
    return Code({"fs/a.c": A, "fs/b.c": "int b;"})


def edit(original: str, replacement: str, file: str = "fs/a.c") -> Edit:
    return Edit(file=file, original=original, replacement=replacement)


def applied(diff: str, files: dict[str, str]) -> dict[str, str]:
    result = patching.apply(Patch(diff=diff), {path: files[path].encode() for path in files})
    return {change.path: (change.content or b"").decode() for change in result.changes}


@given(st.text("ab;\n\f\v\x1c\u2028\t ", max_size=40), st.text("ab\n\f\u2028", max_size=10))
def test_the_diff_makes_the_same_code(before: str, new: str) -> None:
    before = f"{before}int unique;{before}"
    after = Code({"fs/a.c": before}).edited([edit("int unique;", f"{new}int other;")])
    assert applied(after.diff, {"fs/a.c": before}) == {"fs/a.c": after.texts["fs/a.c"]}


@pytest.mark.thorough
@given(st.lists(st.sampled_from("abc"), max_size=40), st.lists(st.sampled_from("abc"), max_size=40))
def test_the_diff_of_long_files_has_its_lines_where_they_are(
    before: list[str], after: list[str]
) -> None:
    files = {"fs/a.c": "".join(f"{line}\n" for line in ["first", *before, "last"])}
    new = "".join(f"{line}\n" for line in ["first", *after, "last"])
    if new != files["fs/a.c"]:
        changed = Code(files).edited([edit(files["fs/a.c"], new)])
        assert applied(changed.diff, files) == {"fs/a.c": new}
        old, at = files["fs/a.c"].splitlines(), 0
        for line in changed.diff.splitlines()[2:]:
            if line.startswith("@@"):
                at = int(line.split()[1].split(",")[0][1:]) - 1
            elif line[0] in " -":
                assert line[1:] == old[at]
                at += 1


def test_a_path_is_one_however_it_is_written() -> None:
    twice = code().edited([edit("int a;", "long a;", "./fs/a.c"), edit("long a;", "u64 a;")])
    assert twice.texts["fs/a.c"].startswith("u64 a;")
    assert twice.diff.count("--- ") == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (edit("int z;", "x"), "occurs 0 times"),
        (edit("a;", "x"), "occurs [23] times"),
        (edit("int c;", "x", "fs/c.c"), "not in the tree"),
        (edit("int a;", "x", "../fs/a.c"), "inside the tree"),
        (edit("int a;", "int a;"), "changes nothing"),
    ],
)
def test_what_cannot_be_made_says_why(wrong: Edit, words: str) -> None:
    with pytest.raises(MisfitError, match=words):
        code().edited([wrong])


@pytest.mark.parametrize(("replacement", "same"), json_rows(__file__, "blanks.jsonl"))
def test_blanks_and_comments_make_no_other_patch(replacement: str, same: bool) -> None:
    changed = code().edited([edit("\treturn a;", replacement)])
    assert changed.unchanged is same
    assert (changed.digest == code().digest) is same


def test_edits_that_undo_those_before_leave_nothing() -> None:
    first = code().edited([edit("int a;", "long a;")])
    assert not first.unchanged
    assert first.edited([edit("long a;", "int a;")]).unchanged


@pytest.mark.thorough
@pytest.mark.parametrize("piece", ["/*", '"', "'", '\\"', "/", "\\"])
def test_the_digest_of_a_megabyte_of_anything_is_quick(piece: str) -> None:
    changed = code().edited([edit("int a;", piece * (1_000_000 // len(piece)))])
    begun = time.process_time()
    assert changed.digest
    assert time.process_time() - begun < 10
