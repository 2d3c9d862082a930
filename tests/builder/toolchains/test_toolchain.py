"""A compiler that is there: which version it is taken for."""

import pytest

from kgym_builder.toolchains.toolchain import described


@pytest.mark.parametrize(
    ("name", "words", "number"),
    [
        ("gcc-12", "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright (C) 2022 F", "12.2.0"),
        ("gcc", "gcc (GCC) 9.0.0 20181231 (experimental)\nCopyright (C) 2018 F", "9.0.0"),
        ("clang", "clang version 11.0.0 (https://g.example/llvm ca2dcbd030ea)\n", "11.0.0"),
        ("clang", "clang version 16.0.6 (Fedora 16.0.6-3.fc38)\nTarget: x86_64", "16.0.6"),
        ("gcc", "a program that says nothing of itself 2.0", "0"),
        ("gcc", "", "0"),
    ],
)
def test_its_number_is_the_version_that_it_says(name: str, words: str, number: str) -> None:
    assert described(name, words).number == number
