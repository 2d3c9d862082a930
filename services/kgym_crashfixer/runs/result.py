"""Results of a run: a patch for its maintainers, and the evidence for it."""

import re
from dataclasses import dataclass

from kgym.api.agent.nodes import Candidate, Node
from kgym.api.agent.report import Evidence, OtherFix, Report
from kgym.api.agent.runs import FixView, RunView
from kgym.bugs.bug_file import BugFile
from kgym.bugs.patch_kit import PatchKit, line, prose
from kgym_crashfixer.platform_protocol import Begun
from kgym_crashfixer.prompts import environment

AUTHOR = "CrashFixer <crashfixer@kgymsuite.invalid>"


@dataclass(frozen=True, slots=True)
class RunFix:
    """A fix with its run, node and bug."""

    run: RunView
    fix: FixView
    node: Node
    bug: BugFile
    begun: Begun

    @property
    def candidate(self) -> Candidate:
        """The patch as the model made it."""
        return self.node.candidates[self.node.chosen or 0]


def kit(run_fix: RunFix, author: str | None = None) -> PatchKit:
    """Return the fix for its maintainers."""
    run, fix, node = run_fix.run, run_fix.fix, run_fix.node
    sure = f"{fix.confidence:.0%} sure" if fix.confidence is not None else "not measured"
    # A hypothesis may describe changes that the diff does not have.
    why = "\n\n".join(run_fix.candidate.reasons) or node.hypothesis or ""
    # The name of a replayed model is a path on this machine, which means nothing to a maintainer.
    model = "a recorded model" if run.model.startswith("replay:") else run.model
    return PatchKit(
        bug=run_fix.bug,
        crash=run_fix.begun.crash.title,
        diff=fix.diff,
        author=author or AUTHOR,
        date=run.ended_at or run.created_at,
        message=node.message or f"\n\n{why}",
        notes=f"Written by a program (kGymSuite's CrashFixer, run {run.id}, {model}). Tested:"
        f" the reproducer no longer crashes the kernel ({sure}). Review it, and sign it off.",
        upstream=node.upstream,
        cause=run_fix.begun.cause,
    )


# --- the report ---------------------------------------------------------------------------


def report(run_fix: RunFix) -> Report:
    """Return the evidence for a fix, as data and as Markdown."""
    run, node = run_fix.run, run_fix.node
    ended: dict[str, int] = {}
    for other in run.nodes:
        if other.name != node.name:
            outcome = other.outcome or "not over"
            ended[outcome] = ended.get(outcome, 0) + 1
    made = Report(
        run=run.id,
        bug=run.bug,
        crash=run_fix.begun.crash.title,
        job=run_fix.begun.job,
        fix=run_fix.fix,
        hypothesis=node.hypothesis,
        reasons=run_fix.candidate.reasons,
        mended=run_fix.candidate.mended,
        evidence=[Evidence.model_validate(tried, from_attributes=True) for tried in node.runs],
        rejected=ended,
        others=[
            OtherFix.model_validate(fix, from_attributes=True)
            for fix in run.ranked
            if fix.number != run_fix.fix.number
        ],
        strategy=run.strategy,
        model=run.model,
        spent=run.spent,
        notes=run.notes,
    )
    return made.model_copy(update={"markdown": _markdown(made, kit(run_fix).note)})


def _markdown(made: Report, note: str) -> str:
    # Longer than any run of backticks in the diff, which could otherwise end the block.
    fence = "`" * (3 + max((len(run) for run in re.findall("`+", made.fix.diff)), default=0))
    values = {"made": made, "note": note, "fence": fence, "line": line, "prose": prose}
    return environment().get_template("report.md").render(values)
