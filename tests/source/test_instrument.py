"""Records at the entry of functions: in every form that the kernel writes them, on the same lines.

The forms are compiled by gcc, with macros as those of the kernel, and executed.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.errors import UserError
from kgym.source.instrument import LIMIT, Untraced, UntracedFiles, buffer_size, instrument
from kgym.trace import record_format
from tests.tables import json_rows, rows

PATH = "fs/my-open.c"
HERE = Path(__file__).parent
WARNINGS = ("-Wall", "-Wextra", "-Wdeclaration-after-statement", "-Wno-unused-parameter", "-Werror")


def compiled(folder: Path, source: bytes, *options: str) -> Path:
    (folder / "form.c").write_bytes(source)
    argv = ["gcc", "-std=gnu11", "-O1", f"-I{HERE}", *WARNINGS, *options]
    argv += ["form.c", str(HERE / "tracer.c"), "-o", "form"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "form"


def recorded(folder: Path, text: str, *options: str) -> list[str]:
    """Instrument the text, compile and run it; return the functions that left records."""
    source = f'/* first */\n#include "kernel.h"\n{text}\n'.encode()
    program = compiled(folder, instrument(source, PATH).content, *options)
    output = subprocess.run(
        [program], capture_output=True, text=True, timeout=10, check=True
    ).stdout
    messages = [record_format.message(line) for line in output.splitlines()]
    assert [message.counter for message in messages if message] == list(range(len(messages)))
    functions = [record_format.function(message.text) for message in messages if message]
    assert {function.file for function in functions if function} <= {PATH}
    return [function.name for function in functions if function]


MAIN = "noinstr int main(void) { %s; return 0; }"


def _forms() -> Iterator[tuple[str, tuple[str, str, list[str]]]]:
    """Yield each form's name; its text, the call, and the functions that leave records."""
    for form in (HERE / "forms.txt").read_text().split("\n\n== ")[1:]:
        head, text = form.rstrip("\n").split("\n", 1)
        names, call = head.split(" | ")
        name, *records = names.split()
        yield name, (text, call.replace("\\n", "\n"), records)


FORMS = dict(_forms())


CASES = [(form, ()) for form in FORMS] + [
    (form, ("-DHERE",)) for form, (text, _, _) in FORMS.items() if "HERE" in text
]


@pytest.mark.parametrize(("form", "options"), CASES)
def test_each_form_compiles_without_warnings_and_leaves_its_records(
    form: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    text, call, records = FORMS[form]
    assert recorded(tmp_path, f"{text}\n{MAIN % call}", *options) == records


@pytest.mark.parametrize("options", [(), ("-DHERE",)], ids=["", "HERE"])
def test_every_token_stays_on_its_line(options: tuple[str, ...], tmp_path: Path) -> None:
    texts = "\nint line = __LINE__;\n".join(text for text, _, _ in FORMS.values())
    source = f'/* first */\n#include "kernel.h"\n{texts}\n'.encode()
    argv = ["gcc", "-E", f"-I{HERE}", *options, "-"]
    plain, instrumented = (
        subprocess.run(argv, cwd=tmp_path, input=text, capture_output=True, check=True, timeout=30)
        for text in (source, instrument(source, PATH).content)
    )
    assert instrumented.stdout != plain.stdout
    assert without_records(instrumented.stdout).split() == plain.stdout.split()


REASONS = dict(rows(__file__, "without_record.tsv"))


@pytest.mark.parametrize("reason", REASONS)
def test_a_function_without_a_record_is_told_with_its_line_and_reason(reason: str) -> None:
    done = instrument(REASONS[reason].encode(), PATH)
    skipped = {
        function.name.removeprefix("SHOW(").rstrip(")"): function for function in done.skipped
    }
    assert skipped["f"].reason == reason
    lines = REASONS[reason].splitlines()
    assert "{" in lines[skipped["f"].line - 1]
    assert "f" not in done.functions


def test_a_file_without_functions_stays_as_it_is() -> None:
    source = b"/* f() { } */\n#define F(x) int x(void) { }\nint a = 1;\n"
    assert instrument(source, PATH).content == source


def test_a_file_that_begins_with_directives_is_instrumented_below_them() -> None:
    lines = instrument(b"#include <a.h>\n#define A \\\n\t1\n\nint f(void)\n{\n}\n", PATH)
    first = lines.content.splitlines()
    assert first[:3] == [b"#include <a.h>", b"#define A \\", b"\t1"]
    assert first[3].startswith(b"int __trace_bprintk(")


def test_a_function_behind_long_branches_and_comments_is_found() -> None:
    branch = (
        "#if A\n"
        + "int a;\n" * 5000
        + "#else\n/*"
        + "x" * 20_000
        + "*/\nint f(void)\n{\n}\n#endif\n"
    )
    assert instrument(f"/* */\n{branch}".encode(), PATH).functions == ("f",)


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(UserError, match="MiB"):
        instrument(b" " * (LIMIT + 1), PATH)


# --- properties ---------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        *(text for text, _, _ in FORMS.values()),
        "#if A",
        "#elif B",
        "#else",
        "#endif",
        "#define X {",
        "/*",
        "*/",
        '"',
        "{",
        "}",
        "(",
        ")",
        ";",
        "\\",
        "int g(",
        "\u00ff",
    ]
)


def without_records(content: bytes) -> bytes:
    """Take out what was inserted, which spans no line."""
    record = rb" static const char \*kgym_format [^\n]*?fs_my_open_c, 1, \w+\)\);"
    first = rb"int __trace_bprintk\([^\n]*?kgym_count_fs_my_open_c __attribute__\(\(unused\)\); ?"
    return re.sub(first, b"", re.sub(record, b"", content), count=1)


@given(st.lists(PIECES, max_size=12).map("\n".join) | st.text(max_size=200))
def test_without_what_was_inserted_a_file_is_what_it_was(text: str) -> None:
    source = text.encode("utf-8", "surrogateescape")
    done = instrument(source, PATH)
    assert done.content.count(b"\n") == source.count(b"\n")
    assert without_records(done.content) == source
    assert done.content.count(b"kgym_entry") == len(done.functions)


HEADS = json_rows(__file__, "heads.jsonl")
BETWEEN = json_rows(__file__, "between.jsonl")


@pytest.mark.thorough
@given(st.lists(st.tuples(st.sampled_from(HEADS), st.sampled_from(BETWEEN)), max_size=8))
def test_functions_are_found_whatever_stands_around_them(parts: list[tuple[str, str]]) -> None:
    names = [f"f{number}" for number in range(len(parts))]
    texts = [
        f"{head.format(name)}\n{more}" for name, (head, more) in zip(names, parts, strict=True)
    ]
    done = instrument("\n".join(["", *texts]).encode(), PATH)
    assert (list(done.functions), done.skipped) == (names, ())


# --- the rest -----------------------------------------------------------------------------------


def test_the_list_of_untraced_files_takes_patterns() -> None:
    rule = UntracedFiles(paths=["kernel/trace/*", "lib/*print*.c"], reason="the tracer")
    untraced = Untraced(files=[rule])
    assert untraced.reason("kernel/trace/rv/rv.c") == "the tracer"
    assert untraced.reason("lib/vsprintf.c") == "the tracer"
    assert untraced.reason("kernel/fork.c") is None


@given(st.integers(256, 1 << 20), st.integers(1, 64))
def test_the_ring_buffer_leaves_the_guest_most_of_its_memory(memory: int, cpus: int) -> None:
    size = buffer_size(memory, cpus)
    assert size % 4096 == 0
    assert size >= 512 << 10
    assert size * cpus <= memory << 20 >> 3


def test_a_guest_of_a_gibibyte_keeps_four_million_records() -> None:
    assert buffer_size(1024, 2) == 64 << 20
