"""The functions of C files as the kernel writes them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgym_builder.patches.changed_functions import changed, functions
from tests.tables import rows

ORDINARY = Path(__file__).with_name("ordinary.c").read_text()
KINDS = rows(__file__, "definitions.tsv")


def names(text: str) -> list[str]:
    return [function.name for function in functions(text)]


def test_only_definitions_of_functions_are_found() -> None:
    (first,) = functions(ORDINARY)
    assert first.name == "first"
    assert first.text.startswith("static inline int first")
    assert first.text.endswith("return 0;\n}")


@pytest.mark.parametrize(("text", "name", "symbols"), KINDS, ids=[row[1] for row in KINDS])
def test_what_the_kernel_writes_has_its_name_and_symbols(
    text: str, name: str, symbols: str
) -> None:
    (function,) = functions(text)
    assert (function.name, set(symbols.split()) <= set(function.symbols)) == (name, True)


def test_both_branches_of_a_conditional_hold_a_function() -> None:
    text = "#ifdef A\nint f(void)\n{\n\treturn 1;\n}\n#else\nint f(void) { return 0; }\n#endif\n"
    assert names(text) == ["f", "f"]
    assert [change.name for change in changed(text, text.replace("return 0", "return 2"))] == ["f"]


def test_a_change_touches_the_functions_that_it_adds_removes_or_alters() -> None:
    before = ORDINARY + "int gone(void)\n{\n}\n"
    after = ORDINARY.replace("return 1", "return 2") + "int come(void)\n{\n}\n"
    assert {change.name for change in changed(before, after)} == {"first", "gone", "come"}


def test_a_change_between_functions_touches_none() -> None:
    assert changed(ORDINARY, ORDINARY.replace("1, 2", "1, 2, 3") + "\nint x;\n") == []


PIECES = st.lists(st.sampled_from([ORDINARY, *(row[0] for row in KINDS)]), max_size=8)


@given(PIECES)
def test_the_functions_of_a_concatenation_are_those_of_its_parts(pieces: list[str]) -> None:
    assert names("".join(pieces)) == [name for piece in pieces for name in names(piece)]


@pytest.mark.thorough
@settings(max_examples=300)
@given(
    PIECES,
    st.lists(st.tuples(st.integers(0, 2000), st.sampled_from("{}()#\"'*/\\;=\n,")), max_size=20),
)
def test_mutated_c_is_read_to_its_end(pieces: list[str], mutations: list[tuple[int, str]]) -> None:
    text = "".join(pieces)
    for at, mark in mutations:
        text = text[:at] + mark + text[at:]
    functions(text)
    changed(text, ORDINARY)


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    functions(text)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "piece", ["f(", "#if\n", "{", "}", "a\n", "/*", "'", '"\\', "f() {};", "x = {};", "A() "]
)
def test_time_is_linear(piece: str) -> None:
    functions(piece * (100_000 // len(piece)))
