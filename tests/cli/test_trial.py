"""`bug calibrate`, and what `bug reproduce` makes of what was measured."""

from pathlib import Path

import pytest

from kgym.api.steps import (
    DroppedSymbol,
    InstanceOutcome,
    ReproduceResult,
    ReproduceSpec,
    StepKind,
    Verdict,
)
from kgym.worker.context import StepContext
from kgym_cli.platforms.embedded_platform import Platform
from tests.bugs.test_trial_result import BUG, crash, instance, measured
from tests.cli.conftest import Kgym
from tests.cli.worked import working
from tests.results import built, ran

pytestmark = pytest.mark.thorough


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
    assert "including earlier runs: 11 of 12 runs showed the bug" in shown.out
    assert "for 99% confidence in a fix: 3 instances x 20 s" in shown.out
    assert "calibrated: 11 of 12 runs showed the bug; 2 x 20 s" in done.err


def test_a_trial_measures_the_bug_and_the_next_one_knows_it(kgym: Kgym, data: Path) -> None:
    instances = [
        crash(seconds).model_copy(update={"number": number})
        for number, seconds in enumerate((1, 2, 3, 2, 1))
    ]
    first = measured(*instances).model_copy(update={"sample": [2, 3, 4]})
    wrong = ran(Verdict.SAME_CRASH, BUG.file.title)
    seen: list[ReproduceSpec] = []

    def answer(run: StepContext) -> ReproduceResult:
        assert isinstance(run.assignment.spec, ReproduceSpec)
        seen.append(run.assignment.spec)
        return first if run.assignment.spec.measure else wrong

    given = {StepKind.BUILD: lambda _: built(), StepKind.REPRODUCE: answer}
    with Platform(data, work=False) as idle, working(idle, data, given):
        trials = [kgym("--server", idle.url, "bug", "reproduce", BUG.name) for _ in range(2)]
        sure = kgym("--server", idle.url, "bug", "reproduce", BUG.name, "--confidence", 0.99)
    assert [trial.status for trial in (*trials, sure)] == [1, 1, 1]
    for trial in (*trials, sure):
        assert "before: same_crash" in trial.out
        assert "Not resolved in " in trial.out
        assert "before: same_crash" not in trial.err
    assert "not calibrated: a bug that shows soon is measured first" in trials[0].err
    assert "calibrated: 3 of 3 runs showed the bug; 3 x 5 s for 95%" in trials[1].err
    assert "calibrated: 3 of 3 runs showed the bug; 7 x 5 s for 99%" in sure.err
    assert [spec.measure is not None for spec in seen] == [True, *[False] * 5]
    assert [spec.confidence for spec in seen[:2]] == [None, 0.95]


def test_a_trial_says_how_its_kernel_differs_from_the_config(kgym: Kgym, data: Path) -> None:
    dropped = [DroppedSymbol(symbol=f"A{n}", wanted="y", got="n") for n in range(7)]
    kernel = built(
        dropped_symbols=dropped, built_in=["TUN", "VETH"], modules=3, config_version="5.15.0"
    )
    wrong = ran(Verdict.SAME_CRASH, BUG.file.title)
    given = {StepKind.BUILD: lambda _: kernel, StepKind.REPRODUCE: lambda _: wrong}
    with Platform(data, work=False) as idle, working(idle, data, given):
        shown = kgym("--server", idle.url, "bug", "reproduce", BUG.name)
        answer = kgym("--server", idle.url, "bug", "reproduce", BUG.name, "--json").json
    assert "config: A0=n, not y, A1=n, not y, " in shown.out
    assert "A4=n, not y, and 2 more (--json)" in shown.out
    assert " config: written for 5.15.0, converted to this kernel's version\n" in shown.out
    assert answer["config_version"] == "5.15.0"
    assert "built in, instead of as modules: TUN, VETH\n" in shown.out
    assert "modules: 3, loaded on demand" in shown.out
    assert [dropped["symbol"] for dropped in answer["dropped_symbols"]] == [
        f"A{n}" for n in range(7)
    ]
    assert (answer["built_in"], answer["modules"]) == (["TUN", "VETH"], 3)
