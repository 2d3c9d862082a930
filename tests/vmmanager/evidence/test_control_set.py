"""What instances raise, and what the controls of a step come to."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import Control, ControlName, ControlOutcome, Severity
from kgym.bugs.detectors import KASAN, Detectors
from kgym_vmmanager.evidence.control_set import ControlSet, findings, shares
from kgym_vmmanager.evidence.controls import Controls, Share
from kgym_vmmanager.guest.console import Console

EVERYTHING = Detectors(lacking={}, ubsan=("shift", "bounds"), panics=True)
SILENT, REPORTED = ControlOutcome.SILENT, ControlOutcome.REPORTED
NOT_TRIED, NOT_CONFIGURED = ControlOutcome.NOT_TRIED, ControlOutcome.NOT_CONFIGURED
NOT_AVAILABLE = ControlOutcome.NOT_AVAILABLE


@given(st.sets(st.sampled_from(ControlName)))
def test_whatever_is_wanted_is_raised_and_ends_in_a_panic(wanted: set[ControlName]) -> None:
    each = shares(wanted)
    raised = {name for share in each for name in share.names}
    assert raised == (wanted | {ControlName.PANIC} if wanted else set())
    assert all(share.names[-1] is ControlName.PANIC for share in each)
    assert all(sum(name in KASAN for name in share.names) <= 1 for share in each)


class Step:
    """A step whose instances find what they are told to."""

    def __init__(self, folder: Path, detectors: Detectors = EVERYTHING, instances: int = 2) -> None:
        self.set = ControlSet(detectors, instances)
        self._console = Console(folder / "console.log")
        self._console.close()
        self._detectors = detectors

    def instance(
        self, share: Share | None, outcome: ControlOutcome, **other: ControlOutcome
    ) -> None:
        """Have an instance find one outcome of all its share, but for some others."""
        assert share is not None
        controls = Controls(self._console, self._detectors, share)
        for name in share.names:
            controls.note(name, other.get(name.name, outcome), None, "told before")
        self.set.add(controls, 1.0)

    def outcomes(self) -> dict[ControlName, ControlOutcome]:
        return {control.name: control.outcome for control in self.set.controls()}


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(tmp_path)


def test_two_instances_are_enough_and_more_raise_nothing(step: Step) -> None:
    step.instance(step.set.share(0), REPORTED)
    step.instance(step.set.share(1), REPORTED)
    assert step.set.share(2) is None
    assert step.outcomes() == dict.fromkeys(ControlName, REPORTED)
    assert step.set.left() == []


def test_the_second_fault_of_kasan_is_left_where_only_one_instance_ran(tmp_path: Path) -> None:
    step = Step(tmp_path, instances=1)
    step.instance(step.set.share(0), REPORTED)
    assert step.set.share(1) is None
    (left,) = step.set.left()
    assert (left.mild, left.fatal) == ((), ControlName.KASAN_USE_AFTER_FREE)
    step.instance(left, REPORTED)
    assert step.outcomes() == dict.fromkeys(ControlName, REPORTED)


def test_the_first_instance_has_least_to_raise_as_its_program_is_traced(step: Step) -> None:
    first, last = step.set.share(0), step.set.share(1)
    assert first is not None
    assert last is not None
    assert (first.mild, first.fatal) == ((), ControlName.KASAN_USE_AFTER_FREE)
    assert ControlName.HUNG_TASK in last.mild


def test_silence_on_one_instance_outweighs_a_report_on_another(step: Step) -> None:
    step.instance(step.set.share(0), REPORTED, PANIC=SILENT)
    step.instance(step.set.share(1), REPORTED)
    assert step.outcomes()[ControlName.PANIC] is SILENT


def test_what_could_not_be_raised_is_raised_on_a_clean_instance_which_says_so(step: Step) -> None:
    step.instance(step.set.share(0), REPORTED)
    step.instance(step.set.share(1), NOT_TRIED)
    (left,) = step.set.left()
    assert ControlName.HUNG_TASK in left.mild
    assert left.fatal is ControlName.KASAN_OUT_OF_BOUNDS
    step.instance(left, REPORTED)
    assert step.outcomes() == dict.fromkeys(ControlName, REPORTED)
    details = {control.name: control.detail for control in step.set.controls()}
    assert "on a clean instance, as told before" in details[ControlName.WARNING]


def test_a_clean_instance_excuses_no_silence(step: Step) -> None:
    step.instance(step.set.share(0), REPORTED)
    step.instance(step.set.share(1), NOT_TRIED, WARNING=SILENT)
    (left,) = step.set.left()
    assert ControlName.WARNING not in left.mild
    step.instance(left, REPORTED)
    assert step.outcomes()[ControlName.WARNING] is SILENT


def test_what_no_instance_could_raise_stays_untried(step: Step) -> None:
    step.instance(step.set.share(0), NOT_TRIED)
    for share in step.set.left():
        step.instance(share, NOT_TRIED)
    assert set(step.outcomes().values()) == {NOT_TRIED}


def test_a_detector_that_the_kernel_never_had_is_not_asked_for(tmp_path: Path) -> None:
    lacking = dict.fromkeys([*KASAN, ControlName.LOCKDEP], "no such thing")
    step = Step(tmp_path, Detectors(lacking=lacking, ubsan=("shift",), panics=True))
    share = step.set.share(0)
    assert share is not None
    assert share.fatal is ControlName.PANIC
    assert step.set.share(1) is None
    step.instance(share, REPORTED)
    outcomes = step.outcomes()
    assert {
        name for name, outcome in outcomes.items() if outcome is NOT_CONFIGURED
    } == lacking.keys()
    assert step.set.left() == []


WORDS = "controls not available on this kernel: it does not compile"


def test_what_cannot_be_raised_on_the_kernel_is_told_and_not_asked_for(tmp_path: Path) -> None:
    gone = dict.fromkeys([*KASAN, ControlName.HUNG_TASK], WORDS)
    step = Step(tmp_path, Detectors({}, ("shift",), panics=True, unavailable=gone))
    share = step.set.share(0)
    assert share is not None
    assert (share.fatal, ControlName.HUNG_TASK in share.mild) == (ControlName.PANIC, False)
    step.instance(share, REPORTED)
    outcomes = step.outcomes()
    assert {name for name, outcome in outcomes.items() if outcome is NOT_AVAILABLE} == gone.keys()
    assert step.set.left() == []
    assert step.set.missing == [WORDS]
    (note,) = findings(step.set.controls())
    assert (note.severity, note.reason) == (Severity.NOTE, "control_not_available")
    assert WORDS in note.message
    assert all(name in note.message for name in gone)


def test_where_none_can_be_raised_no_instance_is_troubled(tmp_path: Path) -> None:
    gone = dict.fromkeys(ControlName, WORDS)
    step = Step(tmp_path, Detectors({}, (), panics=True, unavailable=gone, unwatched="oh"))
    assert (step.set.share(0), step.set.left()) == (None, [])
    assert step.outcomes() == dict.fromkeys(ControlName, NOT_AVAILABLE)
    assert step.set.missing == [WORDS, "whether detectors were off for tasks: oh"]


def test_silence_is_a_finding_that_blocks() -> None:
    controls = [
        Control(name=name, outcome=outcome, title=None, detail="nothing was reported")
        for name, outcome in [(ControlName.LOCKDEP, SILENT), (ControlName.PANIC, NOT_TRIED)]
    ]
    (finding,) = findings(controls)
    assert (finding.check, finding.severity) == ("detector", Severity.BLOCKING)
    assert "lockdep" in finding.message
