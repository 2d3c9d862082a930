"""What kbuild wrote down, read back."""

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgym_builder.kbuild import saved_commands

KERNEL = Path(__file__).with_name("fork.o.cmd").read_text()


def read(text: str) -> list[saved_commands.Recipe]:
    recipes: list[saved_commands.Recipe] = []
    reader = saved_commands.Reader("/kgym/linux", recipes.append)
    for line in text.split("\n"):
        reader.line(line)
    reader.end()
    return recipes


def test_a_recipe_has_command_source_and_the_files_of_the_tree() -> None:
    fork, archive = read(KERNEL)
    assert (fork.target, fork.source) == ("kernel/fork.o", "kernel/fork.c")
    assert fork.dependencies == (
        "kernel/fork.c",
        "include/linux/kconfig.h",
        "mm/slab.h",
        "include/linux/slab.h",
    )
    assert (archive.target, archive.source, archive.dependencies) == ("kernel/built-in.a", "", ())


def condensed(*texts: str) -> str:
    with TemporaryDirectory() as folder:
        paths = [Path(folder, str(number)) for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        return awk(*paths).decode()


def awk(*paths: Path) -> bytes:
    names = "".join(f"{path}\n" for path in paths).encode()
    return subprocess.run(
        ["awk", saved_commands.CONDENSE], input=names, capture_output=True, check=True, timeout=20
    ).stdout


def cmd_file(number: int, headers: list[int]) -> str:
    depends = "".join(f"  include/{header}.h \\\n" for header in headers)
    return (
        f"cmd_{number}.o := gcc -c -o {number}.o {number}.c\n\nsource_{number}.o := {number}.c\n\n"
        f"deps_{number}.o := \\\n    $(wildcard include/config/X) \\\n{depends}\n"
        f"{number}.o: $(deps_{number}.o)\n\n$(deps_{number}.o):\n"
    )


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=8))
def test_condensed_they_say_the_same(files: list[list[int]]) -> None:
    texts = [KERNEL, *(cmd_file(number, headers) for number, headers in enumerate(files))]
    plain, short = read("".join(texts)), read(condensed(*texts))
    assert [replace(recipe, dependencies=()) for recipe in short] == [
        replace(each, dependencies=()) for each in plain
    ]
    assert [set(each.dependencies) for each in short] == [set(each.dependencies) for each in plain]


def test_what_many_read_is_named_once() -> None:
    text = condensed(*(cmd_file(number, list(range(1200))) for number in range(20)))
    assert (text.count("include/7.h"), text.count("wildcard")) == (1, 0)
    assert [len(each.dependencies) for each in read(text)] == [1201] * 20


def test_a_file_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "one").write_text(KERNEL)
    assert awk(tmp_path / "one")
    with pytest.raises(subprocess.CalledProcessError):
        awk(tmp_path / "one", tmp_path / "two")


def test_a_number_that_nothing_had_is_passed_over() -> None:
    (recipe,) = read("cmd_a.o := gcc\n  a.h \\\n= 7 0 999999999\n=\n= x\n")
    assert recipe.dependencies == ("a.h",)


def test_what_follows_the_compiler_is_left_out() -> None:
    words = saved_commands.compile_words(
        "gcc -DX='\"a;b\"' -c -o a.o a.c ; ./tools/objtool/objtool a.o"
    )
    assert words == ("gcc", '-DX="a;b"', "-c", "-o", "a.o", "a.c")


def test_a_command_that_only_a_shell_can_run_is_none() -> None:
    for command in (
        "gcc -c -o a.o a.c > log",
        "gcc $(flags) -c -o a.o a.c",
        "gcc `flags` -c -o a.o a.c",
        "(gcc -c -o a.o a.c)",
        "gcc -c a.c | tee",
        "gcc -c -o 'a.o a.c",
        "ld -r -o a.o b.o",
        "",
    ):
        assert saved_commands.compile_words(command) is None, command


def test_the_depfile_is_found_and_read() -> None:
    assert saved_commands.depfile(("gcc", "-Wp,-MMD,a/.b.o.d", "-c")) == "a/.b.o.d"
    assert saved_commands.depfile(("gcc", "-Wp,-MD,a/.b.o.d", "-c")) == "a/.b.o.d"
    assert saved_commands.depfile(("gcc", "-c")) is None
    text = "a/b.o: a/b.c ./include/x.h \\\n /kgym/linux/y.h /usr/include/z.h\n"
    assert saved_commands.depfile_paths(text, "/kgym/linux") == ["a/b.c", "include/x.h", "y.h"]


# One that starts like an operator of the shell is taken for one, quoted or not.
WORD = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0$`"))
WORDS = st.lists(WORD.filter(lambda word: word[:1] not in tuple("();<>|&")), max_size=6)


@given(WORDS)
def test_words_come_back_as_make_and_shell_were_given_them(words: list[str]) -> None:
    command = shlex.join(["gcc", *words, "-c", "-o", "a.o"])
    escaped = command.replace("$", "$$").replace("#", "$(pound)")
    for name in ("cmd", "savedcmd"):
        (recipe,) = read(f"{name}_a.o := {escaped} ; : objtool a.o")
        assert saved_commands.compile_words(recipe.command) == ("gcc", *words, "-c", "-o", "a.o")


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    read(text)
    saved_commands.compile_words(text)
    saved_commands.depfile_paths(text, "/kgym/linux")
