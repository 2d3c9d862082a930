"""A right patch gives the same code in whatever form a model writes it, in the kernel's style."""

import contextlib
import difflib
import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kgym.api.steps import Edit
from kgym_crashfixer.search import written_patch
from kgym_crashfixer.search.answers import UnreadableError
from kgym_crashfixer.search.code import Code, read_patch
from kgym_crashfixer.search.written_patch import Change
from tests.tables import json_rows, rows

PATH = "io_uring/rw.c"
FILE = """\
/* Reads and writes. */
#include <linux/fs.h>

static int loop(int ddir, struct file *file, struct iov_iter *iter,
		loff_t *at)
{
	return -EIO;
}

static inline int io_iter_do_read(struct io_rw *rw, struct iov_iter *iter)
{
	struct file *file = rw->kiocb.ki_filp;

	if (likely(file->f_op->read_iter))
		return call_read_iter(file, &rw->kiocb, iter);
	else
		return loop(READ, file, iter,
\t\t\t    &rw->kiocb.ki_pos);
}

static int other(void)
{
	return -EIO;
}
"""
OLD = FILE[FILE.index("\t\treturn call_read") : FILE.index("\n}\n\nstatic int other")]
RETURN = "\n".join(OLD.splitlines()[-2:])
NEW = f"""\
\t\treturn call_read_iter(file, &rw->kiocb, iter);
\telse if (file->f_op->read) {{
\t\t/* It has one. */
{RETURN}
\t}} else {{
\t\treturn -EINVAL;
\t}}"""
RIGHT = FILE.replace(OLD, NEW)
CODE = Code({PATH: FILE, "fs/other.c": "int other_file;\n"})
FUNCTION = RIGHT[RIGHT.index("static inline") : RIGHT.index("\nstatic int other")].rstrip()
DIFF = "".join(
    difflib.unified_diff(FILE.splitlines(True), RIGHT.splitlines(True), f"a/{PATH}", f"b/{PATH}")
)
HEADERS = DIFF[: DIFF.index("@@")]


def tags(old: str = OLD, new: str = NEW, path: str = PATH, *names: str) -> str:
    original, patched = names or ("original", "patched")
    return (
        f"<reason>\nit is missing\n</reason>\n<file>\n{path}\n</file>\n"
        f"<{original}>\n{old}\n</{original}>\n<{patched}>\n{new}\n</{patched}>\n"
    )


def blanks(text: str, count: int) -> str:
    """Indent by blanks instead of tabs."""
    return re.sub("(?m)^\t+", lambda tabs: " " * count * len(tabs[0]), text)


def search(old: str = OLD, new: str = NEW, fence: str = "") -> str:
    return f"{PATH}\n{fence}\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n{fence[:3]}\n"


def edit(**names: str) -> dict[str, str]:
    values = {"file": PATH, "original": OLD, "replacement": NEW}
    return {names.get(name, name): value for name, value in values.items()}


DRAFT = NEW.replace("-EINVAL", "-EBADF")
FORMS = {
    "as asked": tags(),
    "fences in the tags": tags(f"```c\n{OLD}\n```", f"```c\n{NEW}\n```"),
    "fences around the tags": f"Sure.\n```xml\n{tags()}```\nDone.",
    "tabs as 8 blanks": tags(blanks(OLD, 8), blanks(NEW, 8)),
    "tabs as 4 blanks": tags(blanks(OLD, 4), blanks(NEW, 4)),
    "new lines with blanks": tags(OLD, NEW.replace("\t} else", "        } else")),
    "blanks at line ends": tags(OLD.replace("\n", "  \n"), NEW.replace("\n", " \n")),
    "CRLF": tags().replace("\n", "\r\n"),
    "first line not indented": tags(OLD.lstrip(), NEW.lstrip()),
    "no line indented": tags(re.sub("(?m)^[ \t]+", "", OLD), NEW),
    "an empty line more": tags(f"\n{OLD}\n", f"\n{NEW}\n"),
    "a/": tags(path=f"a/{PATH}"),
    "./": tags(path=f"./{PATH}"),
    "/linux/": tags(path=f"/linux/{PATH}"),
    "the whole path": tags(path=f"/usr/src/linux-6.1/{PATH}"),
    "backticks": tags(path=f"`{PATH}`"),
    "Markdown": tags(path=f"**{PATH}**"),
    "an attribute": tags().replace(f"<file>\n{PATH}\n</file>", f'<file path="{PATH}">'),
    "an element of edits": f'<file name="{PATH}">\n{tags().partition("</file>")[2]}</file>',
    "no file": tags().replace(f"<file>\n{PATH}\n</file>", ""),
    "replacement": tags(OLD, NEW, PATH, "original", "replacement"),
    "search and replace": tags(OLD, NEW, PATH, "search", "replace"),
    "capitals": tags(OLD, NEW, PATH, "ORIGINAL", "PATCHED"),
    "blocks": search(),
    "blocks in a fence": search(fence="```c"),
    "blocks without a file": search().partition("\n")[2],
    "blocks with a heading": f"### `{PATH}`\n\n" + search().partition("\n")[2],
    "blocks with blanks": search(blanks(OLD, 4), blanks(NEW, 4)),
    "JSON": json.dumps([edit()]),
    "JSON in a fence": f"```json\n{json.dumps({'edits': [edit()]}, indent=2)}\n```\nDone.",
    "JSON of an editor": json.dumps(edit(file="path", original="old_str", replacement="new_str")),
    "JSON with raw line ends": json.dumps([edit()]).replace("\\n", "\n").replace("\\t", "\t"),
    "JSON with a diff": json.dumps({"patch": DIFF}),
    "a diff": DIFF,
    "a diff in a tag": f"<patch>\n{DIFF}</patch>",
    "a diff in a tag's line": f"<patch>{DIFF}</patch> That is all.",
    "a diff in a fence": f"Like this:\n\n```diff\n{DIFF}```\n\n- It\n+ is right.\n",
    "a diff of two trees": DIFF.replace(f"a/{PATH}", f"linux.orig/{PATH}").replace(
        f"b/{PATH}", f"linux/{PATH}"
    ),
    "a diff without a/": DIFF.replace(f"a/{PATH}", PATH).replace(f"b/{PATH}", PATH),
    "a diff with CRLF": DIFF.replace("\n", "\r\n"),
    "wrong line numbers": re.sub(r"(?m)^@@ -\d+(,\d+) \+\d+", r"@@ -3\1 +3", DIFF),
    "counts off": re.sub(r"(?m)^@@ -(\d+),\d+ \+(\d+),\d+", r"@@ -\1,5 +\2,6", DIFF),
    "bare @@": re.sub("(?m)^@@.*$", "@@", DIFF),
    "no @@": re.sub("(?m)^@@.*\n", "", DIFF),
    "a diff with tabs as blanks": re.sub(
        "(?m)^([ +-])(\t+)", lambda line: line[1] + " " * 8 * len(line[2]), DIFF
    ),
    "no leading blank": f"```diff\n{re.sub('(?m)^ ', '', DIFF)}```\n",
    "no headers": f"In {PATH}:\n```diff\n" + DIFF.partition("@@\n")[2] + "```\n",
    "no headers but numbers": f"In {PATH}:\n```diff\n{DIFF[DIFF.index('@@') :]}```\n",
    "a function": f"<file>{PATH}</file><function>\n{FUNCTION}\n</function>",
    "a function in a fence": f"<file>{PATH}</file><function>\n```c\n{FUNCTION}\n```\n</function>",
    "a function with a comment": f"<function>\n/* Reads. */\n{FUNCTION}\n</function>",
    "a function with 8 blanks": f"<function>\n{blanks(FUNCTION, 8)}\n</function>",
    "a function with 4 blanks": f"<function>\n{blanks(FUNCTION, 4)}\n</function>",
    "a function further in": "<function>\n"
    + re.sub("(?m)^(?=.)", " " * 8, blanks(FUNCTION, 8))
    + "\n</function>",
    "a function without tags": f"The whole function:\n\n```c\n{FUNCTION}\n```\n\nThat is all.",
    "a function alone": FUNCTION,
    "a function in JSON": json.dumps({"file": PATH, "function": FUNCTION}),
    "a draft": tags(OLD, DRAFT) + "\nFinal answer:\n" + tags(),
    "the same twice": tags() + "So the final patch is\n" + tags(),
    "a draft of other lines": tags("\telse\n", "\telse {\n") + tags(),
    "a draft that is ambiguous": tags("return", "break") + tags(),
    "a draft that does not fit": tags("nothing like it", "x") + "**Final patch**\n\n" + tags(),
    "a draft as a diff": f"```diff\n{DIFF.replace('EINVAL', 'EBADF')}```\nCorrected:\n{tags()}",
    "two diffs": f"```diff\n{DIFF.replace('EINVAL', 'EBADF')}```\nNo:\n```diff\n{DIFF}```\n",
    "a final answer that is cut off": tags() + "Final answer:\n" + tags()[:90],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_code(form: str) -> None:
    candidate, unreadable = read_patch(CODE, FORMS[form])
    assert (candidate.problem, unreadable) == ("", "")
    made = CODE.edited(candidate.edits)
    assert made.texts[PATH] == RIGHT
    assert candidate.diff == made.diff
    # What checkpatch calls errors of white space.
    assert not re.search(r"(?m)^\+(.*[ \t]$|\t* {8}|.* \t)", candidate.diff)


NOTHING = {
    "no patch": "I cannot say what is wrong here.",
    "empty": "",
    "half an edit": tags()[:-40],
    "an original alone": tags().partition("<patched>")[0],
    "a replacement alone": "<patched>\nx\n</patched>",
    "quoted code": f"The bug is in\n```c\n{OLD}\n```\nbut I do not know the fix.",
    "a declaration": "```c\nint x;\n```",
    "a merge": f"```diff\ndiff --cc {PATH}\n@@@ -1,1 -1,1 +1,1 @@@\n--a\n++b\n```",
    "a new file": "--- /dev/null\n+++ b/fs/new.c\n@@ -0,0 +1 @@\n+int n;\n",
}


@pytest.mark.parametrize("form", NOTHING)
def test_what_holds_no_whole_patch_is_reported(form: str) -> None:
    candidate, unreadable = read_patch(CODE, NOTHING[form])
    assert candidate.edits == []
    assert unreadable
    assert unreadable in candidate.problem


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (tags("\treturn -EIO;", "\treturn 0;"), "7: \treturn -EIO;\n23: \treturn -EIO;"),
        (tags("    return -EIO;", "    return 0;"), "7: \treturn -EIO;\n23: \treturn -EIO;"),
        (tags("\t\treturn call_write_iter(file);", "x"), "modification 1"),
        (tags(path="fs/open.c"), f"only these files can be changed: {PATH}, fs/other.c"),
        (tags(path="../rw.c"), "only these files can be changed"),
        (DIFF.replace("call_read_iter", "call_iter"), "nearest in the file, from line"),
        ("<function>\nint nowhere(void)\n{\n}\n</function>", "name its <file>"),
        (tags(OLD, OLD), "changes nothing"),
    ],
)
def test_what_does_not_fit_goes_back_with_the_lines(answer: str, words: str) -> None:
    candidate, _ = read_patch(CODE, answer)
    assert candidate.edits == []
    assert words in candidate.problem


def test_modifications_that_build_on_each_other() -> None:
    both = tags("\treturn -EIO;\n}\n\nstatic inline", "\treturn 0;\n}\n\nstatic inline") + tags()
    candidate, _ = read_patch(CODE, both)
    assert CODE.edited(candidate.edits).texts[PATH] == RIGHT.replace("-EIO", "0", 1)
    mixed = f"<function>\n{FUNCTION}\n</function>" + tags("#include <linux/fs.h>", "#include <a.h>")
    candidate, _ = read_patch(CODE, mixed)
    assert CODE.edited(candidate.edits).texts[PATH] == RIGHT.replace("<linux/fs.h>", "<a.h>")


def test_a_modification_that_replaces_the_one_before_leaves_the_others() -> None:
    include = tags("#include <linux/fs.h>", "#include <linux/io.h>")
    answer = (
        include + tags("\telse\n", "\telse {\n").replace("it is", "the corrected code is") + tags()
    )
    candidate, _ = read_patch(CODE, answer)
    assert CODE.edited(candidate.edits).texts[PATH] == RIGHT.replace("fs.h", "io.h")


def test_words_after_several_diffs_are_not_between_them() -> None:
    bodies = (DIFF.partition("@@\n")[2], "-static int other(void)\n+int other(void)\n")
    fenced = [f"In {PATH}:\n```diff\n{body}```\n" for body in bodies]
    tagged = [f"<patch>\n{HEADERS}@@\n{body}</patch>\n" for body in bodies]
    for first, second in (fenced, tagged):
        candidate, _ = read_patch(CODE, f"{first}{second}Final patch.\n")
        both = RIGHT.replace("static int other", "int other")
        assert CODE.edited(candidate.edits).texts[PATH] == both
        candidate, _ = read_patch(CODE, f"{first}The final patch:\n{second}")
        other = FILE.replace("static int other", "int other")
        assert CODE.edited(candidate.edits).texts[PATH] == other


def test_how_an_answer_was_read_is_noted() -> None:
    assert read_patch(CODE, FORMS["as asked"])[0].notes == []
    for form in ("a draft of other lines", "a draft", "two diffs"):
        assert "1 modifications of an earlier draft" in read_patch(CODE, FORMS[form])[0].notes[0]
    assert "white space" in read_patch(CODE, FORMS["tabs as 4 blanks"])[0].notes[0]
    assert read_patch(CODE, FORMS["as asked"])[0].reasons == ["it is missing"]


def test_one_file_and_reason_count_for_several_edits() -> None:
    more = tags() + "<original>\nx\n</original><patched>\n</patched>"
    (first, second), _ = written_patch.read(more)
    assert (second.file, second.reason, second.patched) == (first.file, first.reason, "")


@pytest.mark.parametrize("rest", [line for (line,) in rows(__file__, "half_patches.txt")])
def test_a_patch_of_which_a_part_is_missing_is_none(rest: str) -> None:
    with pytest.raises(UnreadableError, match="not whole"):
        written_patch.read(f"{tags()}{rest}")


def test_a_removed_line_leaves_no_empty_one() -> None:
    candidate, _ = read_patch(CODE, tags("\t\treturn call_read_iter(file, &rw->kiocb, iter);", ""))
    line = "\t\treturn call_read_iter(file, &rw->kiocb, iter);\n"
    assert CODE.edited(candidate.edits).texts[PATH] == FILE.replace(line, "")


def test_a_file_with_other_white_space_keeps_it() -> None:
    code = Code({"a.py": "def f():\n    if x:\n        return 1\n    return 2\n"})
    candidate, _ = read_patch(code, tags("return 1", "y = 3\n        return 1", "a.py"))
    made = code.edited(candidate.edits).texts["a.py"]
    assert made == "def f():\n    if x:\n        y = 3\n        return 1\n    return 2\n"


# --- properties -----------------------------------------------------------------------------

STATEMENTS = st.lists(
    st.sampled_from(["a();", "b(1, 2);", "if (c)", "d = e;", "for (;;)", "/* f */", "", "g:"]),
    min_size=1,
    max_size=6,
)


def body(statements: list[str]) -> str:
    """Write statements in the kernel's style: one after `if` or `for` is further in."""
    lines, depth = [], 1
    for statement in statements:
        lines.append(statement if statement in {"", "g:"} else "\t" * depth + statement)
        depth = depth + 1 if statement.startswith(("if", "for")) else 1
    return "\n".join(lines)


@pytest.mark.thorough
@given(STATEMENTS, STATEMENTS, st.data())
def test_a_right_change_in_any_form_gives_the_same(
    old: list[str], new: list[str], data: st.DataObject
) -> None:
    before = f"int f(int n)\n{{\n\tstart(n);\n{body(old)}\n\tend(n);\n}}\n"
    after = before.replace(f"{body(old)}\n\tend", f"{body(new)}\n\tend")
    assume(before != after)
    own, wanted = (text.split("{\n")[1].rpartition("\n}")[0] for text in (before, after))
    space = data.draw(st.sampled_from([None, 8, 4]))
    if space is not None:
        own, wanted = blanks(own, space), blanks(wanted, space)
    diff = "".join(
        difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a/f.c", "b/f.c")
    )
    whole = after.strip() if space is None else blanks(after.strip(), space)
    answer = data.draw(
        st.sampled_from(
            [
                tags(own, wanted, "f.c"),
                f"f.c\n<<<<<<< SEARCH\n{own}\n=======\n{wanted}\n>>>>>>> REPLACE\n",
                json.dumps({"file": "f.c", "original": own, "replacement": wanted}),
                f"```diff\n{diff}```",
                re.sub("(?m)^@@.*$", "@@", diff),
                re.sub(r"(?m)^(@@ -\d+),\d+ (\+\d+),\d+", r"\1,2 \2,2", diff),
                f"<file>f.c</file><function>\n{whole}\n</function>",
                f"```c\n{whole}\n```",
            ]
        )
    )
    code = Code({"f.c": before})
    candidate, unreadable = read_patch(code, answer)
    assert not unreadable
    if candidate.problem.startswith("With these modifications"):
        assert code.edited([Edit(file="f.c", original=before, replacement=after)]).unchanged
        return
    assert candidate.problem == ""
    assert code.edited(candidate.edits).texts["f.c"] == after


PIECES = st.sampled_from(
    [
        *json_rows(__file__, "pieces.jsonl"),
        *("<function>", "</function>", "<replace>", "<file path='x'>", "{", "}", '"a": ', "[", "]"),
        *(
            "<<<<<<< SEARCH\n",
            "=======\n",
            ">>>>>>> REPLACE\n",
            "```diff\n",
            "```json\n",
            *FORMS.values(),
        ),
        *DIFF.splitlines(keepends=True),
    ]
)


@given(st.lists(PIECES | st.text(max_size=5), max_size=30).map("".join))
def test_no_answer_makes_it_raise_anything_else(text: str) -> None:
    candidate, unreadable = read_patch(CODE, text)
    assert candidate.edits or candidate.problem
    assert not unreadable or unreadable in candidate.problem


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [100, 900, 5000])
def test_json_that_is_nested_deeply_is_no_patch(depth: int) -> None:
    assert read_patch(CODE, '[{"a": ' * depth + "1" + "}]" * depth)[1]


COSTLY = [
    *[line for (line,) in rows(__file__, "costly_pieces.txt")],
    *("<<<<<<< SEARCH\n", "[", '[{"a":', "<file x='", "```diff\n", "@@\n+a\n", "{\n", "<original>"),
    *(
        "<original>a</original>",
        "<patch>",
        "/*",
        "a/",
        "<original>a</original><patched>b</patched>",
    ),
]


@pytest.mark.thorough
@pytest.mark.attack
@pytest.mark.parametrize("piece", COSTLY)
def test_ten_megabytes_are_read_in_time(piece: str) -> None:
    begun = time.process_time()
    with contextlib.suppress(UnreadableError):
        written_patch.read("diff --git a b\n" + piece * (10_000_000 // len(piece)), [PATH])
    assert time.process_time() - begun < 20  # quadratic would be hours


def test_a_function_is_named_by_its_first_line() -> None:
    (change,), _ = written_patch.read(f"<function>{FUNCTION}</function>")
    assert change == Change("", "", FUNCTION)
    assert Path(PATH).name == "rw.c"
