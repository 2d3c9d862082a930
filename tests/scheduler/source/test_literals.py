"""What an expression needs is in every text that it matches."""

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from kgym_scheduler.source.literals import needed

WORDS = st.sampled_from(
    ["abc", "abd", "foo_bar", "x", "q9z", " ", "->", "\\(", "\\.", "\\w", "\\s"]
)
ATOMS = st.recursive(
    st.one_of(WORDS, st.sampled_from([".", "[a-c]", "[^]x]", "[[:alpha:]]", "^", "$", "\\b"])),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda all_: f"({'|'.join(all_)})"),
        st.tuples(inner, st.sampled_from(["*", "?", "+", "{2}", "{0,1}", "*?", ""])).map(
            lambda two: f"(?:{two[0]}){two[1]}" if len(two[0]) > 1 else two[0] + two[1]
        ),
        st.lists(inner, min_size=1, max_size=4).map("".join),
    ),
    max_leaves=12,
)
PATTERNS = st.lists(ATOMS, min_size=1, max_size=3).map("|".join)
TEXTS = st.lists(
    st.sampled_from(["abc", "abd", "foo_bar", "bar", "x", "q9z", " ", "->", "(", ".", "c"]),
    max_size=10,
).map("".join)


@pytest.mark.thorough
@given(PATTERNS, TEXTS)
def test_a_text_that_matches_holds_what_is_needed(pattern: str, text: str) -> None:
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error:
        return
    words = needed(pattern.encode())
    if words is not None and compiled.search(text):
        assert any(all(word.decode() in text for word in branch) for branch in words)


def test_plain_expressions_need_their_words() -> None:
    assert needed(rb"kfree\(\w+->page") == [[b"kfree", b"page"]]
    assert needed(rb"int foo|bar_baz\b") == [[b"foo", b"int"], [b"bar_baz"]]
    assert needed(rb"colou?r_of") == [[b"colo", b"r_of"]]
    assert needed(rb"spin_(un)?lock") == [[b"spin_", b"lock"]]
    for anything in (rb"\w+", rb"foo|b", rb"(?i)foo", rb"\x66oo", rb"a.c"):
        assert needed(anything) is None
