"""Real programs of syzkaller's crash real kernels, and prove fixes. Minutes each."""

import shutil
from typing import Any

import pytest

from kgym.bugs import bundle as bug
from tests.conftest import ROOT, kgym
from tests.kernel.test_bugs import assert_resolved

SOURCES = ROOT.parent / "shared" / "data" / "syzkaller"
COMMIT = "1d849ab4d892af13a249f75628790b47e42b7c74"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not SOURCES.is_dir(), reason="syzkaller's source is not beside the checkout"
    ),
    pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go (golang-go)"),
]


@pytest.fixture(scope="module", autouse=True)
def built() -> dict[str, Any]:
    """Syzkaller, built from its source where workers of this checkout find it."""
    (tarball,) = SOURCES.glob("syzkaller-*.tar.xz")
    status, answer = kgym("syzkaller", "build", tarball, "--commit", COMMIT)
    assert (status, answer["commit"]) == (0, COMMIT), answer
    return answer


@pytest.mark.exhaustive
def test_a_program_that_runs_once_shows_a_bug_and_proves_its_fix() -> None:
    status, outcome = kgym(
        "bug", "reproduce", "--no-variants", "watch-queue-filter", "--repro", "syz"
    )
    assert_resolved(status, outcome, [bug.load("watch-queue-filter").file.title])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("futex-op-shift", "syz", id="repeated"),
        pytest.param("shm-remap-removed", "syz", id="threaded"),
        pytest.param("watch-queue-filter", "all", id="with-the-C-program"),
    ],
)
def test_programs_of_other_kinds_show_a_bug_and_prove_its_fix(name: str, kind: str) -> None:
    status, outcome = kgym("bug", "reproduce", "--no-variants", name, "--repro", kind)
    assert_resolved(status, outcome, [bug.load(name).file.title])
