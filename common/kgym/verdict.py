"""From instances to a verdict. Pure; the only place that says `no_crash`."""

from collections.abc import Sequence
from dataclasses import dataclass

from kgym.steps import InstanceResult, Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reason; k = `crashed` of N = `completed` instances."""

    verdict: Verdict
    reason: str
    title: str | None
    crashed: int
    completed: int


def judge(instances: Sequence[InstanceResult], titles: Sequence[str], requested: int) -> Judgement:
    """Judge the instances of a reproduce step that looks for one of `titles`.

    `no_crash` needs all `requested` instances to have survived; anything that
    kept one from doing so makes it `inconclusive`. A crash counts whatever
    happened to the other instances: it was seen.
    """
    crashes = [one for one in instances if one.outcome is Outcome.CRASH]
    same = [one for one in crashes if not titles or one.title in titles]
    survived = [one for one in instances if one.outcome is Outcome.SURVIVED]
    k, n = len(crashes), len(crashes) + len(survived)
    if crashes:
        first = (same or crashes)[0]
        verdict = Verdict.SAME_CRASH if same else Verdict.OTHER_CRASH
        reason = f"{k} of {n} completed instances crashed: {first.title}"
        if not same:
            reason += f"; looked for: {' | '.join(titles)}"
        return Judgement(verdict, reason, first.title, k, n)
    if len(survived) == requested:
        reason = f"the reproducer ran for the whole time on all {n} instances, without a crash"
        return Judgement(Verdict.NO_CRASH, reason, None, 0, n)
    lost = next(
        (one for one in instances if one.outcome not in (Outcome.SURVIVED, Outcome.STOPPED)), None
    )
    why = f"instance {lost.number}: {lost.outcome}: {lost.detail}" if lost else "not all ran"
    return Judgement(
        Verdict.INCONCLUSIVE, f"{n} of {requested} instances completed; {why}", None, 0, n
    )


def unseen_chance(crashed: int, completed: int, instances: int) -> float | None:
    """Return (1 - p)^instances for a bug seen in `crashed` of `completed` runs, p = k/N.

    None without a completed run. It is the chance that a bug that is still
    there is missed; at p = 1 it is 0, as far as so few runs can tell.
    """
    if completed == 0:
        return None
    return float((1 - crashed / completed) ** instances)
