"""Functions take the place of those of their names, or are refused with a reason."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.source import whole_functions
from kgym.source.edited_functions import places
from kgym.source.whole_functions import MisfitError, read

FILE = Path(__file__).with_name("frob.c").read_text()
ADD = """\
static __always_inline int frob_add(struct frob __user *frob, int n)
{
\tif (n < 0)
\t\treturn -EINVAL;
\tscoped_guard(mutex, &frob_lock)
\t\treturn 0;
}
"""


def replaced(*functions: str, text: str = FILE) -> str:
    """Return the file with these functions in place of its own."""
    for function in map(read, functions):
        old = whole_functions.replaced(text, function)
        assert text.count(old) == 1
        text = text.replace(old, function.text)
    return text


def misfit(*functions: str, text: str = FILE) -> str:
    with pytest.raises(MisfitError) as caught:
        replaced(*functions, text=text)
    return str(caught.value)


def test_a_function_takes_the_place_of_the_one_of_its_name() -> None:
    after = replaced(ADD)
    assert ADD + "EXPORT_SYMBOL_GPL(frob_add);\n" in after
    assert "/* Adds one. */\nstatic __always" in after
    assert after.replace(ADD, "") == re.sub(r"static __always.*?\n}\n", "", FILE, flags=re.DOTALL)


def test_several_in_one_file_whatever_their_order() -> None:
    call = "SYSCALL_DEFINE2(frob, int, id, int __user *, out)\n{\n\treturn -ENOSYS;\n}"
    last = "static int frob_last(void)\n{\n\treturn 4;\n}\n"
    after = replaced(last, call, ADD)
    assert "-ENOSYS" in after
    assert "return 4" in after
    assert "scoped_guard" in after
    assert [place.name for place in places(after)] == [place.name for place in places(FILE)]


@pytest.mark.parametrize(
    "written",
    [
        f"/* It adds one, but not below 0. */\n{ADD}",
        f"\n\n{ADD}\n\n",
        f"{ADD}EXPORT_SYMBOL_GPL(frob_add);\n",
        ADD.replace("\n", "\r\n"),
    ],
)
def test_what_stands_around_it_in_the_file_may_stand_around_it_in_the_answer(written: str) -> None:
    assert replaced(written) == replaced(ADD)


def test_the_same_function_changes_nothing() -> None:
    same = FILE[FILE.index("static int frob_last") :]
    assert replaced(same) == FILE


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("static int frob_gone(void)\n{\n}\n", r"no function frob_gone\(\).*but frob_\w+\(\)"),
        ("static int frob_init(void)\n{\n\treturn 2;\n}\n", "2 times here, in lines 26, 31"),
        ("DEFINE_FROB(frob_made)\n{\n\treturn 8;\n}\n", "does not parse as a C function"),
        ("static int frob_mixed(int n)\n{\n\treturn 0;\n}\n", r"uncertain|no function"),
        (ADD.rstrip("}\n"), "does not parse"),
        (ADD.replace("(n < 0)", "(n < 0"), "parenthesis is missing"),
        (ADD + "}\n", "after frob_add.* comes `}`"),
        (ADD + "int more;\n", "after frob_add.* comes `int more;`"),
        (ADD + ADD.replace("frob_add", "frob_b"), r"2 functions .*frob_add\(\), frob_b\(\)"),
        ("#include <evil.h>\n" + ADD, "before frob_add.* comes `#include"),
        (ADD.replace("{\n", '{\n#include "/etc/passwd"\n', 1), "include headers at the top"),
        (ADD.replace("{\n", '{\n %: include "/etc/x"\n', 1), "include headers at the top"),
        (ADD.replace("frob_add", "frob_\u0430dd"), r"no function 'frob_\\u0430dd' .*U\+0430"),
        (ADD.replace("n < 0", "n < 0 /* \u202e */"), r"non-ASCII characters \(U\+202E\)"),
        (ADD.replace("n < 0", "\uff4e < 0"), r"non-ASCII characters \(U\+FF4E\)"),
        ("```c\n" + ADD + "```\n", "comes `"),
        ("static int frob_add(void);\n", "does not parse as a C function"),
        ("", "does not parse as a C function"),
        ("\x00", "does not parse as a C function"),
        ("int f(void)\n{\n" + "\tx();\n" * 20_000 + "}\n", "limit is 100000"),
    ],
)  # fmt: skip
def test_what_cannot_take_a_place_says_why(written: str, words: str) -> None:
    assert re.search(words, misfit(written))


def test_a_name_that_the_code_has_may_stay() -> None:
    after = replaced("static int frob_last(void) /* Zoë */\n{\n\treturn 4;\n}")
    assert after == FILE.replace("return 3;", "return 4;")


@pytest.mark.attack
def test_what_a_function_leaves_open_does_not_swallow_its_neighbours() -> None:
    for inside in ("\t/* open\n", "#if 0\n", "#if 0\n\t}\n", "\tx = '{';\n#else\n"):
        written = ADD.replace("{\n", "{\n" + inside, 1)
        try:
            after = replaced(written)
        except MisfitError:
            continue
        others = [place.name for place in places(FILE)]
        assert [place.name for place in places(after)] == others, inside


@pytest.mark.thorough
@pytest.mark.attack
@pytest.mark.parametrize(
    "piece", ["a(", "{a;", "if(a)", "a<", "a:", "if(a)else ", "#if a\n", "'", "/*", "*"]
)
def test_nothing_that_is_written_takes_long_or_is_nested_too_deeply(piece: str) -> None:
    size = whole_functions.LONGEST // 4
    begun = time.process_time()
    for before in ("", "int f(void) {"):
        with pytest.raises(MisfitError):
            read((before + piece * size)[:size])
    assert time.process_time() - begun < 5


@given(st.text(alphabet="intf (){};#/*\"'\\\n\u0435x", max_size=200))
def test_whatever_is_read_is_one_function_of_the_text(text: str) -> None:
    try:
        function = read(text)
    except MisfitError:
        return
    assert function.text in text
    (place,) = places(function.text)
    assert place.name == function.name


@pytest.mark.thorough
@given(st.lists(st.sampled_from(["a", "b", "{", "}", "(", ")", ";", "\n", "#if 0\n", "/*", "*/"])))
def test_the_other_functions_stay_as_they_are(inside: list[str]) -> None:
    written = "static int frob_last(void) /* Zoë */\n{\n" + "".join(inside) + "\n}\n"
    try:
        after = replaced(written)
    except MisfitError:
        return
    kept = [(place.name, FILE.encode()[place.first : place.behind]) for place in places(FILE)]
    now = [(place.name, after.encode()[place.first : place.behind]) for place in places(after)]
    assert [place for place in now if place[0] != "frob_last"] == [
        place for place in kept if place[0] != "frob_last"
    ]
