"""Whether a fix resolves a bug, from verdicts, evidence and findings. Pure.

No other module decides that a bug is `resolved`. The expected verdicts, a crash without the fix and
none with it, are not enough: `no_crash` proves nothing if the kernel could no longer report the
crash, or if the program no longer did its work. A finding blocks a fix if no honest fix causes it;
otherwise, it is a note. A blocking finding of the build decides whatever the VMs show.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kgym.api.steps import ControlOutcome, Evidence, Finding, ReproduceResult, Severity, Verdict

# In `accepted`: accepts every finding.
EVERYTHING = "all"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a bug is not resolved despite the expected verdicts; users may accept a `reason`."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """Whether a fix resolves its bug, with the obstacles if it does not."""

    verdicts: bool
    """Whether the bug showed before the fix, and no crash after it."""
    obstacles: tuple[Obstacle, ...]
    refuted: bool = False
    """Whether the patch itself shows that it is no fix: no verdict could make it resolved."""

    @property
    def resolved(self) -> bool:
        """Whether both verdicts are as expected and there is no obstacle."""
        return self.verdicts and not self.obstacles

    def deciding(self, crash: str | None) -> tuple[Obstacle, ...]:
        """Return the obstacles if they decide; `crash` is the patched kernel's crash title."""
        # A crash tells the author of a patch more than a finding on its text.
        return self.obstacles if (self.verdicts or self.refuted) and crash is None else ()


def resolution(
    before: Verdict | None,
    after: ReproduceResult | None,
    findings: Sequence[Finding],
    *,
    asked: bool,
    accepted: Collection[str] = (),
    built: Sequence[Finding] = (),
) -> Resolution:
    """Return the resolution of a trial, from the verdict without the fix and the result with it.

    `findings` are those of the patched kernel's build and of its run. `asked` says whether evidence
    was requested. `accepted` holds reasons that do not block, or `EVERYTHING`. None stands for a
    missing verdict. `built` are the findings of the build.
    """
    quiet = after is not None and after.verdict is Verdict.NO_CRASH
    verdicts = quiet and before is Verdict.SAME_CRASH
    obstacles = list(_blocking(findings))
    if verdicts and asked:
        known = {obstacle.reason for obstacle in obstacles}
        lacking = _lacking(after.evidence if after else None)
        obstacles += [obstacle for obstacle in lacking if obstacle.reason not in known]
    kept = [obstacle for obstacle in obstacles if not is_accepted(obstacle.reason, accepted)]
    refuted = any(obstacle in kept for obstacle in _blocking(built))
    return Resolution(verdicts, tuple(dict.fromkeys(kept)), refuted)


def is_accepted(reason: str, accepted: Collection[str]) -> bool:
    """Return whether a reason was accepted."""
    return reason in accepted or EVERYTHING in accepted


def _blocking(findings: Sequence[Finding]) -> Iterator[Obstacle]:
    for finding in findings:
        if finding.severity is Severity.BLOCKING:
            yield Obstacle(finding.reason, placed(finding))


def placed(finding: Finding) -> str:
    """Return the finding's message with its file and line, if it has them."""
    if finding.file is None or (finding.line is None and finding.file in finding.message):
        return finding.message
    line = f":{finding.line}" if finding.line else ""
    return f"{finding.message}, {finding.file}{line}"


def _lacking(evidence: Evidence | None) -> Iterator[Obstacle]:
    if evidence is None or not evidence.controls:
        why = f": {'; '.join(evidence.missing)}" if evidence and evidence.missing else ""
        yield Obstacle("no_evidence", f"nothing shows that the kernel would report a crash{why}")
        return
    for control in evidence.controls:
        if control.outcome is ControlOutcome.SILENT:
            yield Obstacle("control_silent", f"the kernel no longer reports a {control.name} fault")
        elif control.outcome is ControlOutcome.NOT_TRIED:
            why = f"no {control.name} fault was raised: {control.detail}"
            yield Obstacle("control_not_tried", why)
