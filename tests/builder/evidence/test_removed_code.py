"""What a patch cuts off is found; what it mends, moves or rewrites is not."""

import time
from collections import ChainMap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import Finding, Severity
from kgym.bugs import bundle
from kgym.source import patching
from kgym.source.source_folder import SourceFolder
from kgym_builder.evidence.removed_code import amputations
from tests.conftest import ROOT
from tests.tables import json_rows, rows

SYZBOT = ROOT.parent / "shared" / "data" / "syzbot_bugs"

BODY = Path(__file__).with_name("take_body.c").read_text()


def source(body: str, more: str = "") -> dict[str, bytes]:
    head = "static int helper(void)\n{\n\treturn work(1);\n}\n"
    function = f"int take(struct table *table, int id)\n{{{body}}}\n"
    return {"kernel/take.c": (head + more + function).encode()}


def after(old: str, new: str, more: str = "") -> list[Finding]:
    assert old in BODY
    return amputations(source(BODY), source(BODY.replace(old, new), more))


def reasons(findings: list[Finding]) -> list[str]:
    return [finding.reason for finding in findings]


@pytest.mark.parametrize(("old", "new", "reason", "named"), json_rows(__file__, "cut_off.jsonl"))
def test_what_is_cut_off_is_found(old: str, new: str, reason: str, named: str) -> None:
    findings = after(BODY if old == "BODY" else old, new)
    assert reason in reasons(findings)
    (finding,) = [finding for finding in findings if finding.reason == reason]
    assert named in finding.message
    assert (finding.check, finding.function) == ("amputation", "take")
    assert finding.file == "kernel/take.c"


@pytest.mark.parametrize(
    ("new", "grave"),
    [
        ("\treturn ret;\n\tput(item);\n", True),
        ("\tif (0)\n\t\tput(item);\n", True),
        ("", False),
        ("\tkeep(item);\n", False),
    ],
)
def test_what_no_fix_has_to_do_stands_in_the_way(new: str, grave: bool) -> None:
    findings = after("\tput(item);\n", new)
    assert any(finding.severity is Severity.BLOCKING for finding in findings) == grave


def test_a_finding_names_the_line() -> None:
    (finding,) = after("\tput(item);\n", "\treturn ret;\n\tput(item);\n")
    lines = source(BODY.replace("\tput(item);\n", "\treturn ret;\n\tput(item);\n"))
    assert finding.line is not None
    assert lines["kernel/take.c"].splitlines()[finding.line - 1] == b"\tput(item);"


def test_a_function_that_is_gone_is_found() -> None:
    assert reasons(
        amputations(source(BODY, "int f(void)\n{\n\treturn g();\n}\n"), source(BODY))
    ) == ["function_removed"]
    assert reasons(amputations(source(BODY), {})) == ["function_removed"] * 2


@pytest.mark.parametrize(("old", "new"), json_rows(__file__, "mended.jsonl"))
def test_what_is_mended_or_rewritten_is_not(old: str, new: str) -> None:
    assert after(old, new) == []


def test_a_call_that_moved_into_a_new_helper_is_still_there() -> None:
    helper = "static void drop(struct item *item)\n{\n\tWARN_ON_ONCE(!item);\n\tput(item);\n}\n"
    assert after("\tput(item);\n", "\tdrop(item);\n", helper) == []
    assert after("\tWARN_ON_ONCE(!table);\n", "\tdrop(item);\n", helper) == []


def test_two_ifs_that_became_one_are_still_there() -> None:
    apart = "\tif (!item)\n\t\treturn -EINVAL;\n\tif (item->size > MAX_SIZE)\n\t\treturn -EINVAL;\n"
    joined = "\tif (!item || item->size > MAX_SIZE)\n\t\treturn -EINVAL;\n"
    assert amputations(source(BODY.replace(joined, apart)), source(BODY)) == []


def test_a_system_call_is_a_function() -> None:
    test = "\tif (a < 0)\n\t\treturn -EINVAL;\n"
    text = f"SYSCALL_DEFINE2(take, int, a, int, b)\n{{\n{test}\treturn f(b);\n}}\n"
    cut = text.replace(test, "")
    (finding,) = amputations({"a.c": text.encode()}, {"a.c": cut.encode()})
    assert (finding.reason, finding.function) == ("check_removed", "SYSCALL_DEFINE2 take")


def test_other_files_than_c_are_passed_over() -> None:
    assert amputations({"Makefile": b"obj-y += a.o"}, {"Makefile": b""}) == []


@given(st.binary(max_size=400), st.binary(max_size=400))
def test_no_content_makes_it_fail(before: bytes, now: bytes) -> None:
    amputations({"a.c": b"int f(void) {" + before + b"}"}, {"a.c": b"int f(void) {" + now + b"}"})


@given(st.binary(max_size=400))
def test_what_does_not_change_gives_no_finding(content: bytes) -> None:
    whole = {"a.c": b"int f(void) { if (x) " + content + b" }\n"}
    assert amputations(whole, dict(whole)) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "body",
    [
        "if (!" + "(" * 20_000 + "x" + ")" * 20_000 + ") return 1;",
        "if (" + "likely(" * 20_000 + "x" + ")" * 20_000 + ") return 1;",
        "if (x) {" * 20_000 + "}" * 20_000,
        "f" + "(x)" * 20_000 + ";",
        "return ({" * 20_000 + "1;" + "});" * 20_000,
    ],
    ids=["parentheses", "hints", "blocks", "calls", "returns"],
)
def test_a_patch_that_is_made_to_take_long_does_not(body: str) -> None:
    begin = time.process_time()
    amputations(source("\n\treturn 0;\n"), source(body))
    assert time.process_time() - begin < 10


# --- real fixes ---------------------------------------------------------------------------------


def of_patches(source: Path, *patches: patching.Patch) -> list[Finding]:
    """Return what the last of the patches cuts off the kernel's source."""
    files = ChainMap[str, bytes]({}, SourceFolder(source))  # type: ignore[arg-type]
    for each in patches:
        changes = patching.apply(each, files).changes
        before = {change.path: files[change.path] for change in changes}
        files |= {change.path: change.content or b"" for change in changes}
    return amputations(before, {path: files[path] for path in before})


@pytest.mark.parametrize("name", bundle.names())
def test_the_fix_of_a_shipped_bug_cuts_nothing_off(kernel_source: Path, name: str) -> None:
    shipped = bundle.load(name)
    assert shipped.fix is not None
    assert of_patches(kernel_source, *shipped.build.patches, shipped.fix) == []


@pytest.mark.parametrize(("name", "reason"), rows(__file__, "what_brings_back.tsv"))
def test_what_brings_a_shipped_bug_back_is_found(
    kernel_source: Path, name: str, reason: str
) -> None:
    assert reason in reasons(of_patches(kernel_source, *bundle.load(name).build.patches))


@pytest.mark.skipif(not SYZBOT.is_dir(), reason="the reference data is not beside the checkout")
@pytest.mark.parametrize("folder", sorted(SYZBOT.glob("*/")), ids=lambda path: path.name[:8])
def test_the_fix_of_a_syzbot_bug_cuts_nothing_off(kernel_source: Path, folder: Path) -> None:
    regress = patching.Patch(diff=(folder / "regress.patch").read_text())
    assert of_patches(kernel_source, regress, patching.reverse(regress)) == []
