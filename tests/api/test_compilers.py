"""Which compiler is meant by a name or by its own words, and where it can be had."""

import contextlib
import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.capabilities import Capabilities, lacking
from kgym.api.steps import BuildSpec, compiler_words, compilers
from tests.conftest import ROOT
from tests.tables import json_rows, rows

BUGS = ROOT.parent / "shared" / "data"
NEEDS_BUGS = pytest.mark.skipif(not BUGS.is_dir(), reason="no reference data here")
# Family, version, first place (or -), and the line that contains them.
LINES = [
    row.split("\t")
    for row in Path(__file__).with_name("version_lines.tsv").read_text().splitlines()
]


@pytest.mark.parametrize(("family", "version", "place", "line"), LINES)
def test_a_date_a_commit_or_a_linker_is_never_the_version(
    family: str, version: str, place: str, line: str
) -> None:
    parsed = compiler_words.read(line)
    assert parsed is not None
    assert (parsed.family, parsed.version) == (family, version)
    request = compilers.asked(line)
    assert (request.family, request.version, request.described) == (family, version, True)
    assert place in {"-", compilers.places(line)[0]}


def lines_of_bugs() -> list[str]:
    """All compilers' words of kBenchSyz's and syzbot's bugs."""
    files = [*BUGS.glob("kbenchsyz/*.json"), *BUGS.glob("syzbot_bugs/*/bug.json")]
    bugs = [json.loads(path.read_text()) for path in files]
    return sorted({crash["compiler-description"] for bug in bugs for crash in bug["crashes"]})


@NEEDS_BUGS
@pytest.mark.parametrize("words", lines_of_bugs())
def test_the_words_of_all_known_bugs_are_read(words: str) -> None:
    (version,) = re.findall(r"(?:version |\) )([0-9]+\.[0-9]+\.[0-9]+)", words.partition(",")[0])
    line = compiler_words.read(words)
    assert line is not None
    assert (line.family, line.version) == ("clang" if "clang" in words else "gcc", version)
    ld = re.search(r"GNU ld .* ([0-9.]+)$", words)
    assert line.binutils == (ld[1] if ld else "")


@pytest.mark.thorough
@given(
    st.sampled_from(["gcc ({}) {}", "Debian clang version {1}-{0}", "clang version {1} ({0})"]),
    st.text(alphabet="0123456789abcdef.+~- ", min_size=1, max_size=60),
    st.lists(st.integers(0, 999), min_size=2, max_size=3),
    st.sampled_from(["", " 20210110", " 20181231 (experimental)", ", GNU ld (GNU Binutils) 2.40"]),
)
def test_the_version_is_read_whatever_was_packaged(
    form: str, packaged: str, numbers: list[int], behind: str
) -> None:
    version = ".".join(map(str, numbers))
    line = compiler_words.read(form.format(packaged, version) + behind)
    assert line is not None
    assert line.version == version


@pytest.mark.attack
@pytest.mark.parametrize(("compiler", "target"), rows(__file__, "cross_compilers.tsv"))
def test_a_compiler_for_another_target_is_refused_and_never_a_hosts_own(
    compiler: str, target: str
) -> None:
    with pytest.raises(ValueError, match="only x86-64 kernels are") as caught:
        compilers.places(compiler)
    assert f"is a compiler for {target}, " in str(caught.value)
    assert compiler_words.read(compiler) is None


def test_a_name_is_the_hosts_own_or_a_suites_and_nothing_else() -> None:
    assert compilers.places("gcc") == ("gcc",)
    assert compilers.places("gcc-10") == ("gcc-10", "bullseye/gcc-10")
    assert compilers.places("clang-16") == ("clang-16", "bookworm/clang-16", "bullseye/clang-16")
    assert compilers.places("bookworm/gcc-12") == ("bookworm/gcc-12",)
    assert compilers.places("gcc-99") == ("gcc-99",)


def test_what_nobody_has_is_the_nearest_and_of_two_the_newer() -> None:
    images = [
        place for place in compilers.places("clang version 10.0.0 (https://x y)") if "/" in place
    ]
    assert images[:3] == ["bullseye/clang-11", "buster/clang-11", "bullseye/clang-9"]


def test_another_version_than_was_described_is_told_and_a_name_is_no_description() -> None:
    notice = compilers.substitution(
        "gcc (GCC) 10.1.0-syz 1", "gcc 10.2.1", "10.2.1", "bullseye/gcc-10"
    )
    assert notice.endswith("instead of gcc (GCC) 10.1.0-syz 1: the same major version")
    assert "nearest" in compilers.substitution("gcc (GCC) 7.1.1 1", "gcc 9", "9.3.0", "x")
    assert compilers.substitution("gcc (GCC) 10.2.1 1", "gcc 10.2.1", "10.2.1", "x") == ""
    assert compilers.substitution("gcc-10", "gcc 10.2.1", "10.2.1", "bullseye/gcc-10") == ""


@pytest.mark.attack
@pytest.mark.parametrize(("words", "complaint"), json_rows(__file__, "no_compilers.jsonl"))
def test_what_is_no_compiler_is_refused(words: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"compiler|suite|there is no") as caught:
        compilers.asked(words)
    assert complaint in str(caught.value)
    with pytest.raises(ValueError, match="compiler"):
        BuildSpec.model_validate(
            {
                "source": {"kind": "git", "url": "https://g.example/l.git", "commit": "v6"},
                "config": {"base": "defconfig"},
                "compiler": words,
            }
        )


@pytest.mark.thorough
@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        request = compilers.asked(text)
    except ValueError:
        return
    assert request.family in {"gcc", "clang"}
    assert compilers.places(text)


@pytest.mark.attack
@given(
    st.sampled_from(
        ["gcc (", "gcc-9 (", "clang version ", "gcc version ", "Debian clang version ", "a", "A"]
    ),
    st.text(alphabet="().0123456789 a-", max_size=280),
)
def test_words_that_almost_fit_take_no_time(begin: str, rest: str) -> None:
    before = time.monotonic()
    with contextlib.suppress(ValueError):
        compilers.asked(begin + rest)
    assert time.monotonic() - before < 1.0


@given(st.integers(0, 999), st.integers(0, 99), st.integers(0, 99))
def test_any_version_has_places_and_those_of_its_major_come_first(a: int, b: int, c: int) -> None:
    places = compilers.places(f"gcc (GCC) {a}.{b}.{c}")
    names = [place.rpartition("/")[2] for place in places]
    same = [name == f"gcc-{a}" for name in names]
    assert any(same)
    assert same == sorted(same, reverse=True)
    assert len(set(places)) == len(places)


def test_a_worker_fits_that_has_any_of_the_places() -> None:
    needs = compilers.needed("gcc-10")
    assert lacking(needs, Capabilities(compilers=["gcc", "bullseye/gcc-10"])) == []
    assert lacking(needs, Capabilities(compilers=["gcc-10"])) == []
    assert lacking(needs, Capabilities(compilers=["gcc", "bullseye/gcc-9"])) == ["gcc-10"]
