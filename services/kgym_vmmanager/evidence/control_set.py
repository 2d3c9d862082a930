"""The controls of all instances of a step, and their combined outcome."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kgym.api.steps import Control, ControlName, ControlOutcome, Finding, Severity
from kgym.bugs.detectors import KASAN, Detectors
from kgym_vmmanager.evidence.controls import Controls, Share, gravity

# Faults that the kernel survives; the first two are the slowest and run in the background.
_MILD = (
    *(ControlName.HUNG_TASK, ControlName.LEAK, ControlName.WARNING, ControlName.LOCKDEP),
    *(ControlName.UBSAN, ControlName.OOPS),
)


def shares(names: Iterable[ControlName]) -> list[Share]:
    """Distribute the faults over instances."""
    # KASAN reports once in a kernel's life, so its two faults take two instances.
    wanted = set(names)
    fatal = [name for name in KASAN if name in wanted] or [ControlName.PANIC] * bool(wanted)
    mild = tuple(name for name in _MILD if name in wanted)
    return [Share(() if at else mild, name) for at, name in enumerate(fatal)]


@dataclass(slots=True)
class ControlSet:
    """The controls of a step, as its `instances` raise them."""

    detectors: Detectors
    instances: int
    seconds: float = 0.0
    _raised: list[Controls] = field(default_factory=list)
    _untried: dict[ControlName, str] = field(default_factory=dict)

    def share(self, number: int) -> Share | None:
        """Return the faults that instance `number` raises once it has survived."""
        # The first instance also traces the program, so the last one raises the most.
        each = shares(self._wanted)[: self.instances][::-1]
        return each[number] if number < len(each) else None

    def add(self, controls: Controls, seconds: float) -> None:
        """Add an instance's controls, and the seconds that its evidence took."""
        self._raised.append(controls)
        self.seconds = max(self.seconds, seconds)

    def left(self) -> list[Share]:
        """Return the faults that were not raised, for clean instances; drop their outcomes."""
        # Clean instances raise the faults that were not raised. They never excuse a silent control.
        untried = [
            control for control in self.controls() if control.outcome is ControlOutcome.NOT_TRIED
        ]
        self._untried = {control.name: control.detail for control in untried}
        for raised in self._raised:
            for control in untried:
                raised.outcomes.pop(control.name, None)
        return shares(self._untried)

    def controls(self) -> list[Control]:
        """Return each control with its worst outcome over all instances."""
        return [self._worst(name) for name in ControlName]

    @property
    def missing(self) -> list[str]:
        """What could not be checked, with reasons."""
        reasons = dict.fromkeys(self.detectors.unavailable.values())
        if why := self.detectors.unwatched:
            reasons[f"whether detectors were off for tasks: {why}"] = None
        return list(reasons)

    @property
    def _wanted(self) -> list[ControlName]:
        gone = {*self.detectors.lacking, *self.detectors.unavailable}
        return [name for name in ControlName if name not in gone]

    def _worst(self, name: ControlName) -> Control:
        if why := self.detectors.lacking.get(name):
            return _control(name, ControlOutcome.NOT_CONFIGURED, why)
        if why := self.detectors.unavailable.get(name):
            return _control(name, ControlOutcome.NOT_AVAILABLE, why)
        untried = _control(name, ControlOutcome.NOT_TRIED, "no instance was left for it")
        outcomes = [done.outcomes[name] for done in self._raised if name in done.outcomes]
        worst = max(outcomes, key=gravity, default=untried)
        if name not in self._untried or worst.outcome is ControlOutcome.NOT_TRIED:
            return worst
        words = [f"on a clean instance, as {self._untried[name]}", worst.detail]
        return worst.model_copy(update={"detail": "; ".join(filter(None, words))})


def _control(name: ControlName, outcome: ControlOutcome, detail: str) -> Control:
    return Control(name=name, outcome=outcome, title=None, detail=detail)


def summary(controls: Controls) -> str:
    """Return the outcomes in one line for the log."""
    each = (
        f"{control.name} {control.outcome}"
        + f" ({control.title or control.detail})" * bool(control.title or control.detail)
        for control in controls.outcomes.values()
    )
    return f"controls in {controls.seconds:.1f} s: " + (", ".join(each) or "none raised")


def findings(controls: Iterable[Control]) -> Iterator[Finding]:
    """Yield a blocking finding for each silent control, and a note for those that are missing."""
    gone: dict[str, list[str]] = {}
    for control in controls:
        if control.outcome is ControlOutcome.NOT_AVAILABLE:
            gone.setdefault(control.detail, []).append(control.name)
        if control.outcome is ControlOutcome.SILENT:
            yield Finding(
                check="detector",
                severity=Severity.BLOCKING,
                reason="control_silent",
                message=f"the kernel no longer reports a {control.name} fault: {control.detail}",
            )
    for why, names in gone.items():
        yield Finding(
            check="detector",
            reason="control_not_available",
            message=f"no {', '.join(names)} fault can be raised: {why}",
        )
