"""`bug calibrate`, and what `bug reproduce` makes of what was measured."""

from pathlib import Path

from kgym.api.steps import InstanceOutcome, StepKind, Verdict
from kgym_cli.embedded_platform import Platform
from tests.bugs.test_trial_result import BUG, crash, instance, measured
from tests.cli.conftest import Kgym
from tests.cli.worked import working
from tests.results import built, ran


def test_a_short_calibration_does_not_take_the_place_of_a_better_one(
    kgym: Kgym, data: Path
) -> None:
    survived = instance(InstanceOutcome.SURVIVED, 20)
    answers = iter(
        [
            measured(*[crash(2)] * 10, survived),
            measured(crash(1)),
            ran(Verdict.SAME_CRASH, BUG.file.title),
            ran(Verdict.NO_CRASH),
        ]
    )
    given = {StepKind.BUILD: lambda _: built(), StepKind.REPRODUCE: lambda _: next(answers)}
    with Platform(data, work=False) as idle, working(idle, data, given):
        for runs in (11, 1):
            shown = kgym("--server", idle.url, "bug", "calibrate", BUG.name, "--runs", runs)
        done = kgym("--server", idle.url, "bug", "reproduce", BUG.name)
    assert "1 of 1 runs showed the bug" in shown.out
    assert "with what was measured before: 11 of 12 runs showed the bug" in shown.out
    assert "for 99% confidence in a fix: 3 instances x 20 s" in shown.out
    assert "calibrated: 11 of 12 runs showed the bug; 2 x 20 s" in done.err
