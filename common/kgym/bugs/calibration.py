"""Calibration: how often and how soon a bug shows, and what quiet runs of a kernel prove. Pure.

The question: N runs on the kernel with the bug, of which k crashed; m runs on
the patched one, none of which did. How likely is that if the bug is still
there? Times to a crash follow no known distribution (a bug may show at once on one
boot in three, and never on the others), so none is assumed. The unit that counts is
the run, one boot of one VM, since a long run cannot make up for an unlucky boot.

If the bug is still there, all N + m runs are alike, and every order of their times
to the crash is equally likely. The probability that the k that crashed on the old
kernel all come before the m new ones is

    C(N - k + m, m) / C(N + m, m)

This is the precedence test (L. S. Nelson, "Tables for a precedence life test",
Technometrics 5, 1963). It is also the mean of (1 - p)^m if p follows the
distribution whose quantiles are Clopper and Pearson's lower limits,
Beta(k, N - k + 1) (Biometrika 26, 1934). A new run counts if it lasts

- as long as the longest time to a crash, if every one of the N runs crashed;
- as long as the old runs lasted, if some survived.

It holds for every true rate p, which the tests compute: with j = N - k ~ Bin(N, 1 - p),
Vandermonde's identity makes the mean over k the mean of (1 - p)^S for a
hypergeometric S <= m, which is at least (1 - p)^m. Choosing m by k, so that the
value is at most 1 - c, misses a bug in at most a share 1 - c of such trials.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kgym.api.steps import Calibration, InstanceOutcome, InstanceResult, ReproduceResult, RunEnd
from kgym.bugs.run_ends import End, listed

CONFIDENCES = (0.95, 0.99)
# Factor on the longest time to a crash for runs of a patched kernel: hosts differ in speed.
SLACK = 1.5
# Seconds: shorter runs are dominated by the noise of starting the program.
SHORTEST = 5.0
MOST_INSTANCES = 1000
# Fewer runs do not determine an effort: a single crash would ask for 19 runs of the patched kernel.
LEAST_RUNS = 3
# From this many runs on, a bug is not measured again, even if proving a fix would take too long.
ENOUGH_RUNS = 10
# Seconds of running, summed over instances, that a trial spends without being asked; or, if more,
# this multiple of what the bundle asks for.
_MOST_SECONDS, _TIMES = 1200.0, 10
# Seconds: times are stored rounded to this.
_RESOLUTION = 0.01
# NOT_DONE counts too: how the program ends is only learned from these runs.
_LASTED = {InstanceOutcome.SURVIVED, InstanceOutcome.NOT_DONE}
# Halvings of [0, 1]: more than a double resolves.
_STEPS = 60


@dataclass(frozen=True, slots=True)
class Effort:
    """Runs a patched kernel has to survive for `confidence`: `instances` of `time` seconds each."""

    confidence: float
    instances: int
    time: float


def crash_times(instances: Sequence[InstanceResult], titles: Sequence[str]) -> list[float]:
    """Return the sorted seconds to each crash with one of the titles (or any, without titles)."""
    # The same likeness as for a verdict: a calibration must not count other crashes.
    from kgym.bugs.verdict import likeness  # noqa: PLC0415 - its imports take 0.1 s

    return sorted(
        instance.run_seconds
        for instance in instances
        if instance.outcome is InstanceOutcome.CRASH
        and instance.run_seconds is not None
        and likeness(instance, titles)
    )


def measured(result: ReproduceResult, titles: Sequence[str]) -> Calibration | None:
    """Return the calibration from runs on the unpatched kernel; None if the bug did not show.

    A run ended by another crash counts as one without a crash, which is the safe side. A stopped
    run counts if it had lasted as long as the longest time to a crash. Runs that did not start do
    not count.
    """
    # Runs count, not seconds: a bug may show at once on one boot in three, and never on others.
    instances = result.instances
    times = crash_times(instances, titles)
    if not times:
        return None
    crashed = [instance for instance in instances if instance.outcome is InstanceOutcome.CRASH]
    survived = [instance for instance in instances if instance.outcome in _LASTED]
    stopped = [
        instance
        for instance in instances
        if instance.outcome is InstanceOutcome.STOPPED
        and instance.runs  # else it was stopped before the program ran for the first time
        and (instance.run_seconds or 0) >= max(times[-1], _RESOLUTION)
    ]
    # A quiet run proves nothing about later times than its own.
    whole = result.time if survived and result.time else 0
    return Calibration(
        runs=len(crashed) + len(survived) + len(stopped),
        crashed=len(times),
        time=max(times[-1], whole, _RESOLUTION),
        accelerator=result.accelerator,
        ends=ends_of(instances),
    )


def pooled(results: Sequence[ReproduceResult], titles: Sequence[str]) -> Calibration | None:
    """Combine calibrations of one bug, newest first; None if nothing is left to combine.

    Only their samples count, and only those with the newest one's accelerator: times under TCG say
    nothing about KVM.
    """
    # If a calibration's runs are shorter than the slowest crash of the others, all of its runs are
    # dropped. Without its quiet runs alone, the bug would look more frequent than it is.
    sampled = [result for result in map(_sample, results) if result.instances]
    alike = [result for result in sampled if result.accelerator == sampled[0].accelerator]
    times = [time for result in alike for time in crash_times(result.instances, titles)]
    counted = [
        result for result in alike if result.time is None or result.time >= max(times, default=0)
    ]
    if not counted:
        return None
    merged: dict[str, object] = {
        "instances": [instance for result in counted for instance in result.instances],
        "time": max((result.time for result in counted if result.time is not None), default=None),
    }
    return measured(counted[0].model_copy(update=merged), titles)


def _sample(result: ReproduceResult) -> ReproduceResult:
    if result.sample is None:
        return result
    wanted = set(result.sample)
    kept = [instance for instance in result.instances if instance.number in wanted]
    return result.model_copy(update={"instances": kept})


def ends_of(instances: Sequence[InstanceResult]) -> list[RunEnd]:
    """Return how the program's runs ended on these instances, the most frequent end first."""
    ends: Counter[End] = Counter()
    for instance in instances:
        for end in instance.ends:
            ends[end.how, end.value] += end.count
    return listed(ends)


def unseen(known: Calibration, survived: int) -> float:
    """Return the chance that an unfixed bug does not show in `survived` runs.

    Each run has to last `known.time` seconds. The module's docstring derives the formula.
    """
    without = known.runs - known.crashed
    return math.comb(without + survived, survived) / math.comb(known.runs + survived, survived)


def effort(known: Calibration, confidence: float) -> Effort | None:
    """Return the smallest effort that reaches the confidence; None above MOST_INSTANCES runs."""
    if unseen(known, MOST_INSTANCES) > 1 - confidence:
        return None
    # Binary search: `unseen` decreases with the number of runs.
    low, high = 0, MOST_INSTANCES
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if unseen(known, middle) <= 1 - confidence else (middle, high)
    # If all runs crashed, the longest time to a crash is itself a random value: add slack.
    # Otherwise, the new runs only have to last as long as the quiet old ones.
    time = known.time * SLACK if known.crashed == known.runs else known.time
    return Effort(confidence, high, round(max(SHORTEST, time), 1))


def planned(
    known: Calibration | None, confidence: float, instances: int, time: float
) -> Effort | None:
    """Return the effort that a trial spends on a patched kernel, from the bug's calibration.

    None if there are too few runs, or if it would take much longer than the bundle's `instances`
    runs of `time` seconds.
    """
    if known is None or known.runs < LEAST_RUNS:
        return None
    wanted = effort(known, confidence)
    # 1,200 s are 20 minutes of one VM.
    most = max(_MOST_SECONDS, _TIMES * instances * time)
    return wanted if wanted and wanted.instances * wanted.time <= most else None


def rate_at_least(crashed: int, runs: int, confidence: float = 0.95) -> float:
    """Return Clopper and Pearson's lower limit of the crash rate.

    At this rate, `crashed` or more of the runs crash with probability 1 - `confidence`.
    """
    if crashed == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        rate = (low + high) / 2
        tail = sum(
            math.comb(runs, k) * rate**k * (1 - rate) ** (runs - k)
            for k in range(crashed, runs + 1)
        )
        low, high = (rate, high) if tail < 1 - confidence else (low, rate)
    return low


def quantile(times: Sequence[float], share: float) -> float:
    """Return the smallest of the sorted times that at least this share of them does not exceed."""
    return times[max(0, math.ceil(share * len(times)) - 1)]
