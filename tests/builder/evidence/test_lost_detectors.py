"""Whether a kernel can still tell of bugs is seen in its config, its commands and its objects."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import Finding, Severity
from kgym_builder.evidence import lost_detectors
from kgym_builder.evidence.lost_detectors import CONDENSE, Profile, profile
from kgym_builder.evidence.static_evidence import MEASURE
from tests.tables import json_rows, rows

CONFIG = (
    "CONFIG_KASAN=y\nCONFIG_DEFAULT_HUNG_TASK_TIMEOUT=120\nCONFIG_FS=y\n# CONFIG_NET is not set\n"
)
KASAN = ("-fsanitize=kernel-address", "-fasan-shadow-offset=0xdffffc0000000000")
PARAMETERS = ("--param=asan-globals=1", "--param=asan-stack=1")
FLAGS = ("-O2", *KASAN, *PARAMETERS, "-mcmodel=kernel", "-fno-pie")
SOURCE = Path(__file__).with_name("sum.c").read_text()


def grave(findings: list[Finding]) -> set[str]:
    return {finding.reason for finding in findings if finding.severity is Severity.BLOCKING}


@pytest.mark.parametrize(("old", "new", "reason"), json_rows(__file__, "config_changes.jsonl"))
def test_a_config_that_changes_is_found(old: str, new: str, reason: str) -> None:
    (finding,) = lost_detectors.configs(CONFIG, CONFIG.replace(old, new))
    assert (finding.check, finding.reason) == ("detector", reason)
    assert (finding.severity is Severity.BLOCKING) == (reason == "config_weaker")


def test_the_same_config_is_not() -> None:
    assert list(lost_detectors.configs(CONFIG, CONFIG)) == []


def test_a_flag_less_is_found_and_an_object_less() -> None:
    whole = "gcc -O2 -fsanitize=kernel-address --param asan-stack=1 -c -o a.o a.c"
    for less in (
        whole.replace("-fsanitize=kernel-address ", ""),
        whole + " -fno-sanitize=all",
        whole.replace("--param asan-stack=1", ""),
    ):
        assert grave(list(lost_detectors.commands({"a.o": whole}, {"a.o": less}))) == {
            "flags_weaker"
        }
    (other,) = lost_detectors.commands({"a.o": whole}, {"a.o": f"{whole} -DX"})
    assert other.reason == "flags_changed"
    assert list(lost_detectors.commands({"a.o": whole}, {"a.o": whole, "b.o": "gcc"})) == []
    (gone,) = lost_detectors.linked({"a.o", "b.o"}, {"a.o", "c.o"})
    assert (gone.reason, "b.o" in gone.message) == ("object_dropped", True)


# --- objects ------------------------------------------------------------------------------------


def compiled(folder: Path, source: str, *flags: str) -> Profile:
    """Return the profile of real code, read as in the sandbox."""
    (folder / "it.c").write_text(source)
    argv = ["gcc", *(flags or FLAGS), "-c", "-o", "it.o", "it.c"]
    subprocess.run(argv, cwd=folder, check=True, timeout=60)
    done = subprocess.run(
        ["sh", "-c", MEASURE, "sh", CONDENSE],
        input="it.o\n",
        cwd=folder,
        text=True,
        check=True,
        stdout=subprocess.PIPE,
        timeout=60,
    )
    first, *lines = done.stdout.splitlines()
    assert first == "O it.o"
    return profile(lines)


def compared(before: Profile, after: Profile) -> set[str]:
    return grave(list(lost_detectors.objects("it.o", "it.c", before, after, {"sum"})))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    return compiled(tmp_path_factory.mktemp("whole"), SOURCE.replace("ATTRIBUTE", ""))


def test_checks_are_counted_by_function(whole: Profile) -> None:
    assert whole.functions["sum"].checks["address"] >= 5
    assert whole.functions["sum"].accesses >= 5
    assert "freed" in whole.undefined
    assert compared(whole, whole) == set()


@pytest.mark.parametrize(
    "attribute",
    [
        "__attribute__((no_sanitize_address))",
        '__attribute__((no_sanitize("address"), noinline))',
        '_Pragma("GCC push_options") __attribute__((no_sanitize("kernel-address")))',
    ],
)
def test_a_function_without_checks(tmp_path: Path, whole: Profile, attribute: str) -> None:
    assert compared(whole, compiled(tmp_path, SOURCE.replace("ATTRIBUTE", attribute))) == {
        "checks_lost"
    }


def test_a_new_function_that_has_none_is_found(tmp_path: Path, whole: Profile) -> None:
    moved = SOURCE.replace(
        "ATTRIBUTE long sum(struct item *item)\n{",
        "long out(struct item *);\nlong sum(struct item *item) { return out(item); }\n"
        "__attribute__((no_sanitize_address)) long out(struct item *item)\n{",
    )
    assert compared(whole, compiled(tmp_path, moved)) == {"checks_lost"}


def test_an_object_without_any_check_is_found(tmp_path: Path, whole: Profile) -> None:
    bare = compiled(tmp_path, SOURCE.replace("ATTRIBUTE", ""), "-O2")
    assert "object_unchecked" in compared(whole, bare)
    assert "object_unchecked" in compared(whole, Profile())


def test_a_function_that_moves_to_another_section_is_found(tmp_path: Path, whole: Profile) -> None:
    marked = SOURCE.replace("ATTRIBUTE", '__attribute__((section(".noinstr.text")))')
    assert "other_section" in compared(whole, compiled(tmp_path, marked))


def test_a_silencing_symbol_is_found(tmp_path: Path, whole: Profile) -> None:
    silent = SOURCE.replace("ATTRIBUTE", "").replace(
        "freed(item);", 'extern void harmless(void) __asm__("kasan_disable_current"); harmless();'
    )
    assert compared(whole, compiled(tmp_path, silent)) == {"silencing_symbol"}


@pytest.mark.parametrize(("old", "new"), rows(__file__, "honest_changes.tsv"))
def test_an_honest_change_is_not(tmp_path: Path, whole: Profile, old: str, new: str) -> None:
    changed = SOURCE.replace("ATTRIBUTE", "").replace(old, new)
    assert compared(whole, compiled(tmp_path, changed)) == set()


@given(st.lists(st.text(alphabet="FU .019ax\u0660", max_size=30), max_size=20))
def test_what_a_hostile_object_prints_is_passed_over(lines: list[str]) -> None:
    printed = profile(lines)
    assert compared(printed, printed) <= {"checks_lost"}
