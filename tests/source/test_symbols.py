"""Definitions are found by the form of kernel code; whatever a file holds, in linear time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.source.symbols import Placed, symbols
from tests.tables import json_rows, rows


def named(text: str) -> list[tuple[str, str, int, int]]:
    return [
        (symbol.name.decode(), symbol.kind, symbol.line, symbol.last)
        for symbol in symbols(text.encode())
    ]


@pytest.mark.parametrize(("head", "name"), rows(__file__, "heads.tsv"))
def test_a_function_goes_by_its_name(head: str, name: str) -> None:
    lines = head.count("\n") + 4
    assert named(f"{head}\n{{\n\tif (a) {{\n\t}}\n}}\n")[0] == (name, "function", 1, lines + 1)


def test_what_defines_nothing_is_left_out() -> None:
    assert named(
        "extern int a;\nint proto(int b);\nEXPORT_SYMBOL(c);\n/* int d(void)\n{\n} */\n"
        "struct e;\n#include <f.h>\nmodule_init(g);\n"
    ) in ([], [("d", "function", 4, 6)])


def test_variables_and_types_are_found() -> None:
    assert named(
        "static int a;\nconst char *b[] = {\n\t1,\n};\nstruct s c = { 1 };\n"
        "typedef int (*d)(int);\ntypedef unsigned long e;\nstatic struct list_head f __initdata;\n"
    ) == [
        ("a", "variable", 1, 1),
        ("b", "variable", 2, 4),
        ("c", "variable", 5, 5),
        ("d", "typedef", 6, 6),
        ("e", "typedef", 7, 7),
        ("f", "variable", 8, 8),
    ]


PARTS = json_rows(__file__, "parts.jsonl")


@given(st.lists(st.sampled_from(PARTS), max_size=60).map("".join))
def test_places_are_within_the_file_and_in_order(text: str) -> None:
    placed: list[Placed] = symbols(text.encode())
    lines = text.count("\n") + 1
    assert all(1 <= symbol.line <= symbol.last <= lines for symbol in placed)
    assert [symbol.line for symbol in placed] == sorted(symbol.line for symbol in placed)


@pytest.mark.thorough
@pytest.mark.attack
@pytest.mark.parametrize(
    "part", [*PARTS, "int a(\n", "typedef\n", "enum x {\n", "a b;\n", "a(\n)\n", "a" * 4000]
)
def test_a_hostile_file_takes_no_longer_than_others(part: str) -> None:
    text = (part * (1 << 20))[: 1 << 20].encode()
    begin = time.process_time()
    symbols(text)
    assert time.process_time() - begin < 20  # quadratic would be minutes


@pytest.mark.attack
@pytest.mark.parametrize(
    "text", ["int " + "a" * (1 << 20) + " (b) {", "f(" + "a " * (1 << 19) + ") {"]
)
def test_long_words_and_heads_take_no_longer(text: str) -> None:
    begin = time.process_time()
    symbols(text.encode())
    assert time.process_time() - begin < 20
