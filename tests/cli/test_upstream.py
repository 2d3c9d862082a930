"""`kgym upstream` and `kgym backports`: a kit for what resolves the bug; a row for each kernel."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgym.api.steps import CheckResult, CheckSpec, PackageSource, StepResult, Upstream
from kgym.errors import UserError
from kgym.worker.context import StepContext
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.conftest import Kgym
from tests.cli.test_sweep import BUG, Farm, diff
from tests.cli.worked import working
from tests.results import checked

pytestmark = pytest.mark.thorough
FACTS = Upstream(prefix="a", release="6.1.9", recipients=["Ann <ann@example.org> (maintainer:A)"])
MAIL = "From: Bob <bob@example.org>\nSubject: [PATCH] fix a\n\nIt was wrong.\n---\n"


class Maintained(Farm):
    """A farm whose checks answer for maintainers; on 5.10, hunks move, on 6.12 nothing is."""

    def check(self, run: StepContext) -> StepResult:
        spec, result = run.assignment.spec, super().check(run)
        assert isinstance(spec, CheckSpec)
        assert isinstance(result, CheckResult)
        assert isinstance(spec.source, PackageSource)
        if "6.12" in spec.source.names[0]:
            raise UserError("patch_does_not_apply", "the base does not apply")
        notes = ["p: hunk 1 of a.c applied +3 lines away"] * ("5.10" in spec.source.names[0])
        more = {"upstream": FACTS if spec.upstream else None, "notes": notes}
        return checked([check.model_copy(update=more) for check in result.patches])


@pytest.fixture
def farm(data: Path) -> Iterator[Farm]:
    farm = Maintained()
    with Platform(data, work=False) as platform, working(platform, data, farm.answers):
        yield farm


def test_a_patch_that_resolves_its_bug_becomes_a_kit(
    farm: Farm, kgym: Kgym, tmp_path: Path
) -> None:
    patch, out = tmp_path / "my.patch", tmp_path / "kit"
    patch.write_text(MAIL + diff("mends"))
    done = kgym("upstream", patch, BUG, "--out", out, "--json")
    assert done.status == 0, done.err
    mail, note = out / "0001-a-fix-a.patch", out / "cover-note.md"
    assert done.json["written"] == [str(mail), str(note)]
    assert mail.read_text() == done.json["patch"]
    assert "\nTo: Ann <ann@example.org>\n" in mail.read_text()
    assert "\n\nIt was wrong.\n\n---\nTested by kGymSuite: " in mail.read_text()
    assert note.read_text().count("crash resolved") == 1
    again = kgym("upstream", patch, BUG, "--out", out, "--author", "Eve <eve@example.org>")
    assert (again.status, f"written: {mail}" in again.out) == (0, True)
    assert farm.done.count("show") == 1

    patch.write_text(diff("useless"))
    assert kgym("upstream", patch, BUG, "--out", out).status == 2  # nobody wrote it
    useless = ("upstream", patch, BUG, "--author", "A <a@b.c>", "--out", tmp_path / "none")
    assert (kgym(*useless).status, (tmp_path / "none").exists()) == (1, False)
    patch.write_text(diff("mends"))
    other = kgym("upstream", patch, BUG, "--author", "A <a@b.c>", "--out", out, "--json")
    assert (other.status, other.json["reason"]) == (2, "cannot_write")


def test_a_row_for_each_kernel_says_what_the_patch_does_there(
    farm: Farm, kgym: Kgym, tmp_path: Path
) -> None:
    patch = tmp_path / "my.patch"
    patch.write_text(diff("mends"))
    done = kgym("backports", patch, BUG, "--json")
    rows = {row["kernel"]: row for row in map(json.loads, done.out.splitlines())}
    assert {
        kernel: (row["reproduces"], row["applies"], row["resolves"]) for kernel, row in rows.items()
    } == {
        "linux-5.10": (True, "with_offsets", True),
        "linux-6.1": (True, "as_is", True),
        "linux-6.12": (None, None, None),
    }
    assert "the base does not apply" in rows["linux-6.12"]["reason"]
    assert done.status == 3
    patch.write_text(diff("broken"))
    done = kgym("backports", patch, BUG)
    assert (done.status, "no" in done.out) == (1, True)
