"""`--compare-fix`: the known fix runs once for each bug, and no agent learns what it does."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgym.api.steps import (
    ENGINE,
    Equivalence,
    LearnedVariants,
    Pace,
    QuietVariant,
    ReproduceSpec,
    StepRef,
    StepResult,
    VariantRun,
    Verdict,
)
from kgym.bugs.bug import REFERENCE
from kgym.errors import UserError
from kgym.worker.context import StepContext
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.conftest import Kgym
from tests.cli.test_run_kernel import Told
from tests.cli.test_sweep import BUG, diff
from tests.cli.worked import working
from tests.results import ran

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

LEARNED = LearnedVariants(
    engine=ENGINE,
    pace=Pace(calls=2, milliseconds=1, pause=1),
    quiet=[QuietVariant(seed=1, digest="0", failed=0)],
)
SHARE = {"value": 0.9, "compared": 40, "same": 36, "crashed": 1, "equivalent": False}


class Compared(Told):
    """A farm that compares variants where it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: list[ReproduceSpec] = []
        self.fixes = True

    def reproduce(self, run: StepContext) -> StepResult:
        """Learn variants, run them with the known fix, or compare."""
        spec = run.assignment.spec
        assert isinstance(spec, ReproduceSpec)
        self.specs.append(spec)
        if spec.name == REFERENCE:
            if not self.fixes:
                raise UserError("bad_reproducer", "it does not compile")
            return ran(reference=LEARNED)
        result = super().reproduce(run)
        if spec.baseline is None:
            return result.model_copy(update={"learned": LEARNED if spec.variants else None})
        apart = Equivalence(same=36, crashed=[3], different=[4, 5, 6])
        alike = apart if spec.reference else None
        variants = VariantRun(ran=9, equivalence=alike) if spec.variants else None
        quiet = result.verdict is Verdict.NO_CRASH
        return result.model_copy(update={"variants": variants if quiet else None})


@pytest.fixture
def farm(data: Path) -> Iterator[Compared]:
    given = Compared()
    with Platform(data, work=False) as platform, working(platform, data, given.answers):
        given.url = platform.url
        yield given


def test_a_fix_is_compared_with_the_known_one_and_no_agent_sees_it(
    farm: Compared, kgym: Kgym, tmp_path: Path
) -> None:
    (tmp_path / "mends.diff").write_text(diff("mends"))
    mine, server = ("--fix", tmp_path / "mends.diff"), ("--server", farm.url)
    reproduced = kgym(*server, "bug", "reproduce", BUG, *mine, "--compare-fix", "--json")
    assert reproduced.status == 0, reproduced.err
    alike = reproduced.json["after"]["behavioural_equivalence"]
    assert SHARE.items() <= alike.items()
    assert alike["low"] < 0.9 < alike["high"]
    again = kgym(*server, "bug", "reproduce", BUG, *mine, "--compare-fix")
    assert "36 of 40 variants do the same as with the known fix: 90.0%" in again.out
    words = ("sweep", BUG, "--patches", tmp_path, "--compare-fix", "--csv", tmp_path / "t.csv")
    swept = kgym(*server, *words, "--json")
    pair = json.loads(swept.out.splitlines()[0])
    assert SHARE.items() <= pair["behavioural_equivalence"].items()
    [row] = csv.DictReader((tmp_path / "t.csv").read_text().splitlines())
    assert row["behavioural_equivalence"] == "0.9"
    # The fix ran in the first job, and later ones found it.
    assert [spec.name for spec in farm.specs].count(REFERENCE) == 1
    job = reproduced.json["job"]
    compared = [spec.reference for spec in farm.specs if spec.reference is not None]
    assert compared == [StepRef(step=REFERENCE), *[StepRef(job=job, step=REFERENCE)] * 2]

    asked = len(farm.specs)
    patch = ("--bug", BUG, "--patch", tmp_path / "mends.diff")
    for form in ((), ("--json",)):
        answered = kgym(*server, "run-kernel", *patch, "--thorough", *form)
        assert answered.status == 0, answered.err
        for word in ("equivalen", "known fix", "reference", "compar", "36"):
            assert word not in answered.out
    assert len(farm.specs) > asked
    assert [spec.reference for spec in farm.specs[asked:] if spec.reference] == []


def test_patches_are_tried_even_if_the_known_fix_cannot_be_run(
    farm: Compared, kgym: Kgym, tmp_path: Path
) -> None:
    farm.fixes = False
    (tmp_path / "mends.diff").write_text(diff("mends"))
    words = ("--server", farm.url, "sweep", BUG, "--patches", tmp_path, "--compare-fix", "--json")
    pair = json.loads(kgym(*words).out.splitlines()[0])
    assert pair["outcome"] == "resolved", pair
    alike = pair["behavioural_equivalence"]
    assert (alike["value"], alike["equivalent"]) == (None, None)
    assert alike["missing"].startswith("the known fix was not run")


def test_what_cannot_be_compared_is_refused(kgym: Kgym) -> None:
    for other in ("--no-variants", "--no-fix"):
        refused = kgym("bug", "reproduce", BUG, "--compare-fix", other)
        assert (refused.status, other in refused.err) == (2, True)
