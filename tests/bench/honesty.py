"""Whether verdicts can be gamed or are wrong: patches of tests/honesty are tried as fixes.

The red team's patches hide a crash on purpose. Those of the labelled set look plausible:
`wrong_resolved` is the share of its wrong ones that are resolved, `honest_refused` counts right
ones of either set that are not. In `wrong_resolved_fix_known`, those that do something else than
the developers' fix are not resolved either; `honest_unlike` are the right ones that do.
A patch is flagged by findings that no honest fix of the same bug draws, by evidence that is
lacking, and by verdicts other than `no_crash`. No VM is started for a patch that something
stands in the way of when it is built (but with `--all`): whatever it does there, it cannot be
resolved. `--static` starts none at all: what would have crashed is then not known, and counts.
Each bug is crashed once; all of its patches share that.
"""

import argparse
import logging
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kgym.api.jobs import JobRequest, JobView
from kgym.api.steps import (
    BuildResult,
    BuildSpec,
    Finding,
    Patch,
    ReproduceResult,
    ReproduceSpec,
    Severity,
    StepRef,
    Verdict,
)
from kgym.bugs import bundle
from kgym.bugs.bug import (
    AFTER,
    BEFORE,
    BUILD_AFTER,
    BUILD_BEFORE,
    DEFAULT_OPTIONS,
    REFERENCE,
    Bug,
    TrialOptions,
)
from kgym.bugs.equivalence import BehaviouralEquivalence
from kgym.bugs.resolution import resolution
from kgym.client import Client
from kgym.configs import data_folder
from kgym.host import process_logs
from tests.alone import alone
from tests.figures import parser, show
from tests.honesty.labelled import Right, Wrong, labelled
from tests.honesty.redteam import Trick, tricks

KNOWN = "known-fix"
# Bugs whose fixes are tried for a minute.
SLOW = ("udp-cmsg-leak", "epoll-loop")
QUICK = [name for name in bundle.names() if name not in SLOW]


@dataclass(slots=True)
class Trial:
    """What came of one patch; `verdict` is None where no VM was started."""

    bug: str
    name: str
    honest: bool
    wrong: bool = False
    """Whether it is a wrong one of the labelled set."""
    verdict: str | None = None
    resolved: bool = False
    failure: str = ""
    findings: list[Finding] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)
    seconds: float = 0.0
    variants_s: float = 0.0
    variant_crashed: bool = False
    alike: BehaviouralEquivalence | None = None
    once_s: float = 0.0
    """What learning the bug's variants took, once for all its trials."""

    @property
    def reasons(self) -> set[str]:
        """What was found, and what is lacking."""
        return {finding.reason for finding in self.findings} | set(self.obstacles)

    @property
    def blocking(self) -> set[str]:
        """What stands in the way."""
        grave = {
            finding.reason for finding in self.findings if finding.severity is Severity.BLOCKING
        }
        return grave | set(self.obstacles)


class Team:
    """The trials of one bug's patches."""

    def __init__(self, client: Client, bug: Bug, vms: str, options: TrialOptions) -> None:
        self.client, self.bug, self.vms, self.options = client, bug, vms, options
        self.before: JobView | None = None

    def trial(self, patch: Patch, *, honest: bool, wrong: bool = False) -> Trial:
        """Try one patch."""
        request = self.bug.job(patch, self.options)
        steps = {step.name: step for step in request.steps}
        build, reproduce = steps[BUILD_AFTER], steps[AFTER]
        assert isinstance(build, BuildSpec)
        assert isinstance(reproduce, ReproduceSpec)
        trial = Trial(self.bug.name, patch.name, honest, wrong)
        if self.vms != "all":
            self._judge(trial, self._run([build]), None)
            if self.vms == "none" or trial.failure or (trial.blocking and not honest):
                return trial
            trial.findings.clear()
        first = self._before(request)
        baseline = StepRef(job=first.id, step=BEFORE)
        after = reproduce.model_copy(update={"baseline": baseline})
        if after.variants:
            unpatched = StepRef(job=first.id, step=BUILD_BEFORE)
            after = after.model_copy(update={"unpatched": unpatched})
        if after.reference is not None:
            reference = StepRef(job=first.id, step=REFERENCE)
            after = after.model_copy(update={"reference": reference})
        asked = after.evidence
        self._judge(trial, self._run([build, after]), first, asked=asked)
        return trial

    def _before(self, request: JobRequest) -> JobView:
        if self.before is None:
            patched = (BUILD_AFTER, AFTER)
            self.before = self._run([step for step in request.steps if step.name not in patched])
        return self.before

    def _run(self, steps: Sequence[Any]) -> JobView:
        request = JobRequest(steps=list(steps), tags=["bench=honesty"])
        return self.client.wait(self.client.submit(request).id)

    def _judge(
        self, trial: Trial, job: JobView, first: JobView | None, *, asked: bool = False
    ) -> None:
        built, *others = [step.result for step in job.steps]
        for step in job.steps:
            if step.failure is not None:
                trial.failure = f"{step.failure.reason}: {step.failure.message}"[:300]
        if isinstance(built, BuildResult):
            trial.findings += built.findings
            names = ("review", "evidence")
            trial.seconds = sum(built.seconds.get(name, 0.0) for name in names)
        after = others[0] if others else None
        if first is None or not isinstance(after, ReproduceResult):
            return
        trial.findings += after.findings
        trial.verdict = str(after.verdict)
        trial.seconds += after.evidence.seconds if after.evidence else 0.0
        if after.variants is not None:
            trial.variants_s = after.variants.seconds
            trial.variant_crashed = bool(after.variants.crashes)
            trial.alike = BehaviouralEquivalence.of(after.variants)
        run = first.step(BEFORE)
        before = run.result if run else None
        assert isinstance(before, ReproduceResult), f"job {first.id}: {run and run.failure}"
        trial.once_s = before.learned.seconds if before.learned else 0.0
        resolved = resolution(before.verdict, after, trial.findings, asked=asked)
        trial.resolved = resolved.resolved
        trial.obstacles = [obstacle.reason for obstacle in resolved.obstacles]


def unflagged(trials: Sequence[Trial], *, static: bool) -> Iterator[Trial]:
    """Give the dishonest patches against which there is nothing."""
    for trial in trials:
        usual = {
            reason
            for other in trials
            if other.honest and other.bug == trial.bug
            for reason in other.reasons
        }
        quiet = trial.verdict == Verdict.NO_CRASH or static or bool(trial.blocking)
        hides = not trial.honest and not trial.wrong and not trial.failure
        if hides and quiet and not trial.reasons - usual:
            yield trial


def figures(trials: Sequence[Trial], *, static: bool) -> dict[str, Any]:
    """Return what is printed."""
    hidden = [f"{trial.bug}/{trial.name}" for trial in unflagged(trials, static=static)]
    refused = [trial for trial in trials if trial.honest and (trial.blocking or trial.failure)]
    if not static:
        refused = [trial for trial in trials if trial.honest and not trial.resolved]
    seconds = [trial.seconds for trial in trials if not trial.failure]
    dishonest = [trial for trial in trials if not trial.honest and not trial.wrong]
    # A patch that could not be tried says nothing about verdicts.
    wrong = [trial for trial in trials if trial.wrong and not trial.failure]
    varied = [trial for trial in trials if trial.variants_s]
    quiet_s = [trial.variants_s for trial in varied if not trial.variant_crashed]
    crash_s = [trial.variants_s for trial in varied if trial.variant_crashed]
    resolved = [f"{trial.bug}/{trial.name}" for trial in wrong if trial.resolved]
    unlike = {
        f"{trial.bug}/{trial.name}": trial.alike.value
        for trial in trials
        if trial.alike is not None and trial.alike.equivalent is False
    }
    alike = [name for name in resolved if name not in unlike]
    honest = [f"{trial.bug}/{trial.name}" for trial in trials if trial.honest]
    return {
        "dishonest": len(dishonest),
        "honest": sum(trial.honest for trial in trials),
        "wrong": len(wrong),
        "wrong_resolved": None if static or not wrong else _share(resolved, wrong),
        "resolved_wrong": resolved,
        "wrong_resolved_fix_known": None if static or not wrong else _share(alike, wrong),
        "resolved_wrong_fix_known": alike,
        "honest_unlike": {name: unlike[name] for name in honest if name in unlike},
        "hidden_unflagged": len(hidden),
        "unflagged": hidden,
        "resolved_dishonest": [
            f"{trial.bug}/{trial.name}" for trial in dishonest if trial.resolved
        ],
        "not_blocked": [f"{trial.bug}/{trial.name}" for trial in dishonest if not trial.blocking],
        "failed": {f"{trial.bug}/{trial.name}": trial.failure for trial in trials if trial.failure},
        "honest_refused": len(refused),
        "refused": [f"{trial.bug}/{trial.name}" for trial in refused],
        "evidence_s": round(statistics.median(seconds), 2) if seconds else None,
        "evidence_max_s": round(max(seconds), 2) if seconds else None,
        "variants_s": _median(quiet_s),
        "variants_crash_s": _median(crash_s),
        "variants_once_s": max((trial.once_s for trial in varied), default=None),
    }


def _share(part: Sequence[object], whole: Sequence[object]) -> float:
    return round(len(part) / len(whole), 3)


def _median(seconds: Sequence[float]) -> float | None:
    return round(statistics.median(seconds), 2) if seconds else None


def line_of(trial: Trial) -> str:
    """Return a trial in one line."""
    grave = trial.blocking
    reasons = [f"{reason}!" if reason in grave else reason for reason in sorted(trial.reasons)]
    side = "honest" if trial.honest else "wrong" if trial.wrong else "dishonest"
    verdict = trial.failure or trial.verdict or "built"
    word = "resolved" if trial.resolved else verdict
    alike = f"; {trial.alike}" if trial.alike is not None else ""
    about = f"{trial.bug}/{trial.name} ({side}): {word}; {', '.join(reasons)}"
    return f"{about}{alike}; {trial.seconds:.1f} s"


def run(
    client: Client,
    bugs: Sequence[str],
    wanted: Callable[[Trick], bool],
    *,
    vms: str,
    say: Callable[[str], None],
    labels: Callable[[Right], bool] = lambda patch: False,
    options: TrialOptions = DEFAULT_OPTIONS,
) -> list[Trial]:
    """Try the wanted patches of these bugs, those of the labelled set too, and the known fixes."""
    trials = []
    for name in bugs:
        bug = bundle.load(name)
        assert bug.fix is not None
        team = Team(client, bug, vms, options)
        fix = bug.fix.model_copy(update={"name": KNOWN})
        of_bug = labelled(name)
        chosen = [(fix, True, False)]
        chosen += [(each.patch, each.honest, False) for each in tricks(name) if wanted(each)]
        for label in (*of_bug.wrong, *of_bug.right):
            if labels(label):
                wrong = isinstance(label, Wrong)
                chosen.append((label.patch, not wrong, wrong))
        for patch, honest, wrong in chosen:
            trials.append(team.trial(patch, honest=honest, wrong=wrong))
            say(line_of(trials[-1]))
    return trials


def main() -> None:
    """Measure, and print a table."""
    words = parser(__doc__)
    words.add_argument("--bug", action="append", choices=bundle.names(), help="only this one's")
    words.add_argument("--patch", action="append", help="only patches of this name")
    words.add_argument("--set", choices=["redteam", "labelled"], help="only this one's")
    words.add_argument("--quick", action="store_true", help="not what compiles the whole kernel")
    how = words.add_mutually_exclusive_group()
    how.add_argument("--static", dest="vms", action="store_const", const="none", default="some")
    how.add_argument("--all", dest="vms", action="store_const", const="all", help="VMs for all")
    options = words.parse_args()
    process_logs.configure(level=logging.WARNING)
    data_folder().mkdir(parents=True, exist_ok=True)
    with alone(data_folder()) as client:
        trials = run(
            client,
            options.bug or [*QUICK, *SLOW],
            lambda trick: _wanted(trick, options),
            vms=options.vms,
            say=lambda line: print(line, file=sys.stderr, flush=True),
            labels=lambda patch: options.set != "redteam" and _named(patch, options),
            options=TrialOptions(variants=True, compare_fix=True),
        )
    results = figures(trials, static=options.vms == "none")
    show(results, options)
    bad = results["hidden_unflagged"] or results["honest_refused"]
    sys.exit(1 if bad else 0)


def _wanted(trick: Trick, options: argparse.Namespace) -> bool:
    named = options.set != "labelled" and _named(trick, options)
    return named and not (options.quick and trick.whole)


def _named(patch: Trick | Right, options: argparse.Namespace) -> bool:
    return not options.patch or patch.name in options.patch


if __name__ == "__main__":
    main()
