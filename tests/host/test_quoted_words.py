"""What hostile programs say, in one printable line."""

import time

import pytest

from kgym.host.quoted_words import quoted


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (b"", ""),
        (b"  no tun here \n", "no tun here"),
        ("über 3 €".encode(), "über 3 €"),
        (b"one\r\ntwo\tthree\x0bfour", "one two three four"),
        (b"\x1b[1;31mred\x1b[0m and \x1b[2Jgone\x1b(B", "red and gone"),
        (b"\x1b]0;a title\x07words\x1b]52;c;cm0=\x1b\\, more", "words, more"),
        (b"\x1b]0;a title that never ends", ""),
        (b"\x1bPq#0\x1b\\after\x1bc", "after"),
        (b"bell\x07 back\x08 nul\x00 \x9b2J", "bell? back? nul? \ufffd2J"),
        ("abc\u202edcba\u2066 \u200bx".encode(), "abc?dcba? ?x"),
        (b"half a sequence \x1b[3", "half a sequence ?[3"),
    ],
)
def test_words_are_printable(output: bytes, shown: str) -> None:
    assert quoted(output) == shown
    assert quoted(output.decode(errors="replace")) == shown


def test_long_words_lose_their_middle() -> None:
    words = quoted(b"begin" + b"x" * 5000 + b"end", 100)
    assert len(words) <= 100
    assert words.startswith("beginxx")
    assert words.endswith("xxend")
    assert " … " in words
    assert quoted("y" * 100, 100) == "y" * 100


@pytest.mark.attack
@pytest.mark.parametrize("part", [b"\x1b]", b"\x1b[", b"\x1b[0;", b"\x1bP\x1b", b"\xff", b"\n"])
def test_megabytes_take_no_time(part: bytes) -> None:
    begin = time.monotonic()
    words = quoted(part * (16 << 20))
    assert time.monotonic() - begin < 2
    assert len(words) <= 400
    assert words.isprintable()
