"""What a patch touches and says: what hides a crash is found, honest code is not."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import Finding, Severity
from kgym_builder.evidence.suspicious_changes import new_words, touched
from tests.tables import json_rows, rows

PATH = "fs/take.c"
BEFORE = Path(__file__).with_name("take.c").read_text()


def after(old: str, new: str) -> list[Finding]:
    assert old in BEFORE
    return new_words({PATH: BEFORE.encode()}, {PATH: BEFORE.replace(old, new).encode()})


def grave(findings: list[Finding]) -> set[str]:
    return {finding.reason for finding in findings if finding.severity is Severity.BLOCKING}


@pytest.mark.parametrize(("new", "reason"), rows(__file__, "hiding_words.tsv"))
def test_a_word_that_hides_a_crash_stands_in_the_way(new: str, reason: str) -> None:
    findings = after("\tcopy(item);\n", f"\t{new}\n\tcopy(item);\n")
    assert reason in grave(findings)
    (finding,) = [finding for finding in findings if finding.reason == reason]
    assert (finding.check, finding.file) == ("detector", PATH)


@pytest.mark.parametrize(("old", "new", "reason"), json_rows(__file__, "notes.jsonl"))
def test_what_honest_fixes_do_as_well_is_a_note(old: str, new: str, reason: str) -> None:
    findings = after(old, new)
    assert (reason, grave(findings)) == (findings[0].reason, set())


@pytest.mark.parametrize("gone", ["fs_initcall(take_init);", "SYSCALL_DEFINE1(take, int, id)"])
def test_what_is_registered_no_more_stands_in_the_way(gone: str) -> None:
    assert grave(after(gone, "int nothing(void)")) == {"registration_removed"}


def test_a_number_that_changes_is_named() -> None:
    (finding,) = new_words({PATH: b"#define MAX 16\n"}, {PATH: b"#define MAX 0\n"})
    assert (finding.reason, finding.line) == ("number_changed", 1)
    assert "`#define MAX 16` becomes `#define MAX 0`" in finding.message


@pytest.mark.parametrize("new", json_rows(__file__, "honest_code.jsonl"))
def test_honest_code_is_no_finding(new: str) -> None:
    assert grave(after("\tcopy(item);\n", f"\t{new}\n\tcopy(item);\n")) == set()


def test_code_that_moves_is_no_finding() -> None:
    silent = "static void f(void)\n{\n\tlockdep_off();\n}\n"
    assert new_words({PATH: (silent + BEFORE).encode()}, {PATH: (BEFORE + silent).encode()}) == []


@pytest.mark.parametrize(("path", "reason"), rows(__file__, "foreign_files.tsv"))
def test_a_file_that_no_fix_elsewhere_touches_stands_in_the_way(path: str, reason: str) -> None:
    (finding,) = touched([path], [PATH])
    assert (finding.check, finding.severity, finding.reason) == ("scope", Severity.BLOCKING, reason)
    (note,) = touched([path], [path])
    assert note.severity is Severity.NOTE


def test_a_file_beside_the_bug_is_a_note_if_it_is_known_where_that_is() -> None:
    (finding,) = touched(["fs/other.c"], [PATH])
    assert (finding.reason, finding.severity) == ("outside_files", Severity.NOTE)
    assert touched(["fs/other.c"], []) == touched([PATH], [PATH]) == []


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_content_makes_it_fail(before: bytes, now: bytes) -> None:
    new_words({PATH: before}, {PATH: now})
    assert new_words({PATH: now}, {PATH: now}) == []


@pytest.mark.parametrize(
    "text", ['"' * 200_000, "/*" * 100_000, "#pragma " * 50_000, "a\\\n" * 100_000, "'" * 200_000]
)
def test_a_patch_that_is_made_to_take_long_does_not(text: str) -> None:
    begin = time.process_time()
    new_words({PATH: b""}, {PATH: text.encode()})
    assert time.process_time() - begin < 5
