"""What a patch hides is seen in the object code, whatever its text says."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import Finding, Severity
from kgym_builder.evidence.changed_code import Pair, differences
from tests.tables import rows

INLINE = (
    *("-O2", "-fsanitize=kernel-address", "-fasan-shadow-offset=0xdffffc0000000000"),
    *("--param=asan-globals=1", "--param=asan-stack=1"),
    *("--param=asan-instrumentation-with-call-threshold=10000", "-mcmodel=kernel", "-fno-pie"),
)
OUTLINE = (*INLINE, "--param=asan-instrumentation-with-call-threshold=0")
SOURCE = Path(__file__).with_name("items.c").read_text()


def compiled(folder: Path, source: str, *flags: str) -> list[str]:
    """Return the disassembly of real code."""
    (folder / "it.c").write_text(source.replace("ATTRIBUTE", ""))
    subprocess.run(["gcc", *flags, "-c", "-o", "it.o", "it.c"], cwd=folder, check=True, timeout=60)
    argv = ["objdump", "-drt", "--no-show-raw-insn", "it.o"]
    done = subprocess.run(argv, cwd=folder, text=True, check=True, capture_output=True, timeout=60)
    return done.stdout.splitlines()


@pytest.fixture(scope="module", params=[INLINE, OUTLINE], ids=["inline", "outline"])
def flags(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The ways in which compilers check accesses."""
    chosen: tuple[str, ...] = request.param
    return chosen


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, flags: tuple[str, ...]) -> list[str]:
    """The object without a patch."""
    return compiled(tmp_path_factory.mktemp("whole"), SOURCE, *flags)


def compared(
    before: Sequence[str] | None, after: Sequence[str], severity: Severity = Severity.BLOCKING
) -> list[Finding]:
    return differences({"it.o": Pair("it.c", before, after, severity, Severity.BLOCKING)})


def reasons(findings: list[Finding]) -> set[tuple[str, str | None]]:
    return {(finding.reason, finding.function) for finding in findings}


PASTED = "\n#define PASTE(a, b) a##b\nvoid kasan_disable_current(void);\n"
ATTRIBUTES = (
    "__attribute__((no_sanitize_address))",
    '__attribute__((no_sanitize("address"), noinline))',
    '_Pragma("GCC push_options") __attribute__((no_sanitize("kernel-address")))',
)


@pytest.mark.parametrize(
    ("old", "new", "function", "words"),
    [
        ("\titem->d = 1;", "\twriteb(1, &item->d);", "make", "mov"),
        ("\titem->d = 1;", "\tcopy(&item->d, user, 8);", "make", "movsb"),
        ("\t\tmany[i].a = i;", "\t\twriteb(i, &many[i].a);", "make", "mov"),
        ("\titem->d = 1;", "\t_copy_to_user(&item->d, user, 8);", "make", "_copy_to_user"),
        ("\t\tmany[i].a = i;", "\t\t_copy_to_user(&many[i].a, &i, 8);", "make", "_copy_to_user"),
        ("\titem->d = 1;", "\t*(char *)(((size_t)item >> 3) + SHADOW) = 0;", "make", "mov"),
        ("_copy_to_user(user, &result, 8)", "_copy_to_user(item, &result, 8)", "tell", "_copy_to"),
        (
            "\titem->d = 1;",
            "\tvoid memcpy_fromio(void *, const void *, size_t);\n\tmemcpy_fromio(item, user, 8);",
            "make",
            "memcpy_fromio",
        ),
        (
            "void loud(void) {",
            PASTED + "void loud(void) { PASTE(kasan_disable_, current)();",
            "loud",
            "`kasan_disable_current`",
        ),
        (
            "freed(item);",
            'extern void harmless(void) __asm__("kasan_disable_current"); harmless();',
            "twice",
            "`kasan_disable_current`",
        ),
        ("\titem->d = 1;", "\titem->d = 1;\n\tconsole_lock();", "make", "`console_lock`"),
        (
            "void loud(void)",
            "static __attribute__((noinline)) void quiet(void) { console_lock(); writeb(0, 0); }\n"
            "void louder(void) { quiet(); }\nvoid loud(void)",
            "quiet",
            "`console_lock`",
        ),
        ("\titem->d = 1;", "\tdebug_locks = 0;", "make", "`debug_locks`"),
        (
            "void loud(void)",
            "void do_exit(long);\nvoid *table[] = { console_lock, do_exit };\nvoid loud(void)",
            None,
            "`do_exit`",
        ),
        *(("ATTRIBUTE", attribute, "sum", "no sanitizer checks") for attribute in ATTRIBUTES),
        (
            "ATTRIBUTE long sum(struct item *item)\n{",
            "long out(struct item *);\nlong sum(struct item *item) { return out(item); }\n"
            f"{ATTRIBUTES[1]} long out(struct item *item)\n{{",
            "sum",
            "no sanitizer checks",
        ),
    ],
)
def test_what_no_detector_sees_is_found(
    tmp_path: Path,
    whole: list[str],
    flags: tuple[str, ...],
    old: str,
    new: str,
    function: str | None,
    words: str,
) -> None:
    assert old in SOURCE
    findings = compared(whole, compiled(tmp_path, SOURCE.replace(old, new), *flags))
    own = [finding for finding in findings if finding.function == function]
    assert any(words in finding.message for finding in own), findings
    assert {finding.severity for finding in findings} == {Severity.BLOCKING}
    assert {finding.check for finding in findings} == {"detector"}
    assert {finding.file for finding in findings} == {"it.c"}


@pytest.mark.parametrize(
    ("old", "new", "sizes"),
    [
        ("__kmalloc(sizeof(*item), 0)", "__kmalloc(sizeof(*item) + 64, 0)", "104 bytes, not 40"),
        ("* count, 0)", "* count + 4096, 0)", "a variable size and 4096 bytes, not"),
        ("*next; };", "*next; char slack[24]; };", "64 bytes, not 40"),
    ],
)
def test_a_larger_object_is_named_with_both_sizes(
    tmp_path: Path, whole: list[str], flags: tuple[str, ...], old: str, new: str, sizes: str
) -> None:
    findings = compared(whole, compiled(tmp_path, SOURCE.replace(old, new), *flags))
    assert reasons(findings) == {("larger_object", "make")}
    assert any(sizes in finding.message for finding in findings)
    assert findings[0].severity is Severity.NOTE


LOCKED = """
typedef struct { int held; } lock_t;
void mutex_lock(lock_t *lock);
void mutex_unlock(lock_t *lock);
struct list { lock_t lock; long *first, *last; };
static __attribute__((noinline)) void set(struct list *list, long *first)
{
	list->first = first;
	list->last = first;
}
void change(struct list *list, long *first)
{
	mutex_lock(&list->lock);
	set(list, first);
	mutex_unlock(&list->lock);
}
"""


@pytest.mark.parametrize(
    ("old", "new", "severity"),
    [
        ("\tmutex_lock(&list->lock);\n", "", Severity.BLOCKING),
        ("\tmutex_lock(&list->lock);\n\tset", "\tset", Severity.BLOCKING),
        # It moves to a function of its own, or another one takes it.
        ("mutex_lock(&list->lock);\n\tset(list, first)", "set(list, first)", None),
        ("first;\n\tlist->last = first;", "(long *)8;\n\tlist->last = first;", None),
    ],
)
def test_a_lock_that_is_taken_no_more_is_found(
    tmp_path: Path, flags: tuple[str, ...], old: str, new: str, severity: Severity | None
) -> None:
    assert old in LOCKED
    patched = LOCKED.replace(old, new)
    if severity is None:
        patched = patched.replace(
            "{\n\tlist->first", "{\n\tmutex_lock(&list->lock);\n\tlist->first"
        )
    findings = compared(compiled(tmp_path, LOCKED, *flags), compiled(tmp_path, patched, *flags))
    wanted = [] if severity is None else [("lock_not_taken", severity)]
    assert [(finding.reason, finding.severity) for finding in findings] == wanted


@pytest.mark.parametrize(("old", "new"), rows(__file__, "honest_changes.tsv"))
def test_an_honest_change_is_not(
    tmp_path: Path, whole: list[str], flags: tuple[str, ...], old: str, new: str
) -> None:
    assert old in SOURCE
    assert compared(whole, compiled(tmp_path, SOURCE.replace(old, new), *flags)) == []


SYMBOLS = rows(__file__, "hiding_symbols.tsv")


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    """The findings on functions that each call one symbol, by symbol."""
    folder = tmp_path_factory.mktemp("users")
    declared = "".join(f"void {symbol}(void);\n" for symbol, _ in SYMBOLS)
    before = [f"void use_{symbol}(void) {{ }}\n" for symbol, _ in SYMBOLS]
    after = [f"void use_{symbol}(void) {{ {symbol}(); }}\n" for symbol, _ in SYMBOLS]
    old, new = (compiled(folder, declared + "".join(side), "-O2") for side in (before, after))
    by_symbol: dict[str, Finding] = {}
    for finding in compared(old, new, Severity.NOTE):
        by_symbol.setdefault(str(finding.function).removeprefix("use_"), finding)
    return by_symbol


@pytest.mark.parametrize(("symbol", "reason"), SYMBOLS)
def test_a_symbol_that_hides_a_crash_stands_in_the_way(
    users: dict[str, Finding], symbol: str, reason: str
) -> None:
    assert (users[symbol].reason, users[symbol].severity) == (reason, Severity.BLOCKING)


def test_an_unchecked_access_far_from_the_bug_is_a_note(tmp_path: Path) -> None:
    old = compiled(tmp_path, SOURCE, *INLINE)
    new = compiled(tmp_path, SOURCE.replace("item->d = 1;", "writeb(1, &item->d);"), *INLINE)
    (note,) = compared(old, new, Severity.NOTE)
    assert (note.reason, note.severity) == ("unchecked_access", Severity.NOTE)


@pytest.mark.thorough
def test_an_object_without_any_check_is_found(tmp_path: Path) -> None:
    whole, bare = (compiled(tmp_path, SOURCE, *flags) for flags in (INLINE, ["-O2"]))
    assert ("unchecked_access", "make") in reasons(compared(whole, bare))
    # A kernel without a sanitizer has nothing to lose.
    changed = compiled(tmp_path, SOURCE.replace("item->d = 1;", "writeb(1, item);"), "-O2")
    assert compared(bare, changed) == []


def test_what_cannot_be_read_is_never_passed_over(tmp_path: Path) -> None:
    whole = compiled(tmp_path, SOURCE, *INLINE)
    for before, after, severity in (
        (whole, [], Severity.BLOCKING),
        (None, [], Severity.BLOCKING),
        ([], [], Severity.NOTE),
        ([], whole, Severity.NOTE),
    ):
        (finding,) = compared(before, after)
        assert (finding.reason, finding.severity) == ("not_compared", severity)


def test_a_new_object_counts_as_a_whole(tmp_path: Path) -> None:
    assert {
        reason for reason, _ in reasons(compared(None, compiled(tmp_path, SOURCE, *INLINE)))
    } == {
        "unchecked_access"  # it calls console_lock()
    }


LINES = st.sampled_from(
    [
        *("Disassembly of section .text:", "0000000000000000 <f>:", "0000000000000010 <f.cold>:"),
        *("   0:\tcall   0 <f>", "   2:\tjmp    0 <f>", "   3:\tjmp    *%rax", "  10:\tret"),
        *("   4:\tmov    (%rax,%rbx,8),%rcx", "   5:\tpop", "   6:\tlea    (,%rax),%rsp"),
        *("\t\t\t5: R_X86_64_PLT32\t__asan_load8_noabort-0x4", "\t\t\t0: R_X86_64_32S\t.text-0xf"),
        *("   7:\tand    $0xfffffffffffffff0,%rsp", "   8:\tje     10 <f.cold>", "   9:\t(bad)"),
        *("   8:\txchg   %ax,%ax", "   9:\tcmovne %rax,%rbx", "   a:\tpush   $0x0", "   b:\tshl"),
    ]
)


@pytest.mark.thorough
@given(st.lists(LINES | st.text(alphabet="\t%$(),:<>0 fx", max_size=12), max_size=30))
def test_what_a_hostile_object_prints_is_passed_over(lines: list[str]) -> None:
    readable = ["it.o:     file format elf64-x86-64", *lines]
    compared(lines, readable)
    compared(readable[:1], readable)
