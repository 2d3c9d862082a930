"""The functions of C files as the kernel writes them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgym_builder.patches.changed_functions import changed, functions

ORDINARY = Path(__file__).with_name("ordinary.c").read_text()

KINDS = {
    "SYSCALL_DEFINE3(read, unsigned int, fd, char __user *, buf, size_t, n)\n{\n\treturn 0;\n}\n": (
        "__do_sys_read",
        {"__do_sys_read", "__se_sys_read", "__x64_sys_read", "__ia32_sys_read"},
    ),
    "COMPAT_SYSCALL_DEFINE1(nice, int, by)\n{\n}\n": (
        "__do_compat_sys_nice",
        {"__do_compat_sys_nice", "__se_compat_sys_nice", "__ia32_compat_sys_nice"},
    ),
    "SYSCALL_DEFINE0(fork)\n{\n}\n": ("__do_sys_fork", {"__x64_sys_fork"}),
    "DEFINE_IDTENTRY(exc_divide_error)\n{\n}\n": ("exc_divide_error", {"__exc_divide_error"}),
    "BPF_CALL_2(bpf_get, void *, p, u64, n)\n{\n}\n": ("bpf_get", {"bpf_get", "____bpf_get"}),
    "static noinline_for_stack int __sched plain(int a)\n{\n}\n": ("plain", {"plain"}),
    "asmlinkage __visible void __init __no_sanitize_address start(void)\n{\n}\n": (
        "start",
        {"start"},
    ),
    "static struct file *get(int a)\n\t__acquires(lock) __releases(x)\n{\n}\n": ("get", {"get"}),
    "__printf(1, 2) int say(const char *f, ...)\n{\n}\n": ("say", {"say"}),
    'void __attribute__((section(".x"))) placed(void)\n{\n}\n': ("placed", {"placed"}),
    "int (*chosen(int a))(int)\n{\n}\n": ("chosen", {"chosen"}),
    "late_initcall(begin)\nint after_macro(int a)\n{\n}\n": ("after_macro", {"after_macro"}),
    "static void AES_INIT(void)\n{\n}\n": ("AES_INIT", {"AES_INIT"}),
    "#ifdef A\nint q(int a)\n#else\nint q(long a)\n#endif\n{\n}\n": ("q", {"q"}),
    "void u(void)\n{\n#ifdef A\n\tif (x) {\n#else\n\tif (y) {\n#endif\n\t}\n}\n": ("u", {"u"}),
    "void odd(void)\n{\n\tBEGIN {\n}\n": ("odd", {"odd"}),
}


def names(text: str) -> list[str]:
    return [function.name for function in functions(text)]


def test_only_definitions_of_functions_are_found() -> None:
    (first,) = functions(ORDINARY)
    assert first.name == "first"
    assert first.text.startswith("static inline int first")
    assert first.text.endswith("return 0;\n}")


@pytest.mark.parametrize("text", KINDS, ids=[name for name, _ in KINDS.values()])
def test_what_the_kernel_writes_has_its_name_and_symbols(text: str) -> None:
    name, symbols = KINDS[text]
    (function,) = functions(text)
    assert (function.name, symbols <= set(function.symbols)) == (name, True)


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


PIECES = st.lists(st.sampled_from([ORDINARY, *KINDS]), max_size=8)


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


@pytest.mark.parametrize(
    "piece", ["f(", "#if\n", "{", "}", "a\n", "/*", "'", '"\\', "f() {};", "x = {};", "A() "]
)
def test_time_is_linear(piece: str) -> None:
    functions(piece * (100_000 // len(piece)))
