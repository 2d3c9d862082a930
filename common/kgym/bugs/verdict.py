"""The verdict on a kernel, from its instances. Pure; the only place that says `no_crash`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kgym.api.steps import (
    Control,
    ControlName,
    ControlOutcome,
    InstanceOutcome,
    InstanceResult,
    Verdict,
)
from kgym.bugs.detectors import needed
from kgym.bugs.known_noise import noise
from kgym.crash.report import CrashType, frame_of, type_of

# Groups of types that are one bug if they are in the same function.
_ONE_BUG = (
    # what a bad access hits, and which checker sees it, depends on chance and configuration
    frozenset(
        {
            CrashType.KASAN_NULL_DEREF_READ,
            CrashType.KASAN_NULL_DEREF_WRITE,
            CrashType.KASAN_READ,
            CrashType.KASAN_WRITE,
            CrashType.KASAN_USE_AFTER_FREE_READ,
            CrashType.KASAN_USE_AFTER_FREE_WRITE,
            CrashType.KASAN_UNKNOWN,
            CrashType.KFENCE_READ,
            CrashType.KFENCE_WRITE,
            CrashType.KFENCE_USE_AFTER_FREE_READ,
            CrashType.KFENCE_USE_AFTER_FREE_WRITE,
            CrashType.KMSAN_UNINIT_VALUE,
            CrashType.KMSAN_USE_AFTER_FREE,
            CrashType.MEMORY_SAFETY_BUG,
            CrashType.MEMORY_SAFETY_UBSAN,
            CrashType.NULL_DEREF,
        }
    ),
    frozenset({CrashType.KASAN_INVALID_FREE, CrashType.KFENCE_INVALID_FREE}),
    frozenset({CrashType.HANG}),
)
# Titles of a bad access without a checker: on x86, on arm64 and on arm.
_UNCHECKED = ("general protection fault", "Internal error", "Unhandled fault")


_UNPROVEN = {
    ControlOutcome.SILENT: "was not reported",
    ControlOutcome.NOT_TRIED: "could not be raised",
    ControlOutcome.NOT_AVAILABLE: "cannot be raised",
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reason; k = `crashed` of N = `completed` instances."""

    verdict: Verdict
    reason: str
    title: str | None
    crashed: int
    completed: int


def likeness(crash: InstanceResult, titles: Sequence[str]) -> str | None:
    """Return why the crash is the one known by `titles`; None if it is another one.

    It is the same crash by its title; by one of its other titles, as syzkaller merges crashes; or
    by a type of the same group (`_ONE_BUG`) in the same function. Without titles, every crash
    except noise is.
    """
    if crash.title is None:
        return None
    if not titles:
        return None if noise(crash.title) else "any crash is looked for"
    if crash.title in titles:
        return "by its title"
    for other in crash.alt_titles:
        if other in titles:
            return f"by its other title `{other}`"
    # "corrupted" stands for an unknown function: two such titles need not be the same crash.
    frame = frame_of(crash.title)
    for title in titles:
        if frame not in (None, "corrupted") and frame == frame_of(title) and _alike(crash, title):
            return f"by type and function, as `{title}`"
    return None


def _is_unproven(control: Control, excused: Collection[ControlName]) -> bool:
    if control.outcome is ControlOutcome.NOT_AVAILABLE:
        return control.name not in excused
    return control.outcome in _UNPROVEN


def _words(controls: Sequence[Control]) -> str:
    reasons = (
        f"the control {control.name} {_UNPROVEN[control.outcome]} ({control.detail})"
        for control in controls
    )
    return "; ".join(reasons)


def _alike(crash: InstanceResult, title: str) -> bool:
    types = {_type(crash.title or ""), _type(title)}
    return any(types <= group for group in _ONE_BUG)


def _type(title: str) -> CrashType:
    return CrashType.MEMORY_SAFETY_BUG if title.startswith(_UNCHECKED) else type_of(title)


def judge(
    instances: Sequence[InstanceResult],
    titles: Sequence[str],
    requested: int,
    controls: Sequence[Control] = (),
) -> Judgement:
    """Judge the instances of a reproduce step that looks for a crash with one of `titles`.

    `no_crash` needs all `requested` instances to have survived. If anything else happened to one of
    them, or it ended in noise (`kgym.bugs.known_noise`), the verdict is `inconclusive`. Any other
    crash counts whatever happened to the other instances: it was seen.

    Each of `controls`, the faults raised on purpose afterwards, must have been reported: a kernel
    that does not report them, or was not asked, may have kept quiet about the bug as well. A fault
    that cannot be raised on the unpatched kernel either is excused, unless bugs like this one are
    reported by the same detector (`kgym.bugs.detectors.needed`).
    """
    ended = [instance for instance in instances if instance.outcome is InstanceOutcome.CRASH]
    same = [(instance, why) for instance in ended if (why := likeness(instance, titles))]
    noisy = [
        instance
        for instance in ended
        if not likeness(instance, titles) and noise(instance.title or "")
    ]
    crashes = [instance for instance in ended if instance not in noisy]
    survived = [instance for instance in instances if instance.outcome is InstanceOutcome.SURVIVED]
    k, n = len(crashes), len(crashes) + len(survived)
    noise_reasons = "".join(
        f"; instance {instance.number}: {instance.title}, which does not count:"
        f" {noise(instance.title or '')}"
        for instance in noisy
    )
    if same:
        first, why = same[0]
        reason = f"{k} of {n} completed instances crashed: {first.title}; the same crash {why}"
        return Judgement(Verdict.SAME_CRASH, reason + noise_reasons, first.title, k, n)
    if crashes:
        reason = f"{k} of {n} completed instances crashed: {crashes[0].title}"
        reason += f"; looked for: {' | '.join(titles)}"
        return Judgement(Verdict.OTHER_CRASH, reason + noise_reasons, crashes[0].title, k, n)
    # A failure of a machine is not a verdict: `no_crash` needs every instance and every control.
    if len(survived) == requested:
        excused = set(ControlName) - needed(titles)
        if unproven := [control for control in controls if _is_unproven(control, excused)]:
            reason = f"no crash was seen, but the kernel may not report it: {_words(unproven)}"
            return Judgement(Verdict.INCONCLUSIVE, reason, None, 0, n)
        reason = f"the reproducer ran for the whole time on all {n} instances, without a crash"
        reason += next(
            (
                f"; instance {instance.number}: {instance.detail}"
                for instance in survived
                if instance.detail
            ),
            "",
        )
        return Judgement(Verdict.NO_CRASH, reason, None, 0, n)
    whole = (InstanceOutcome.SURVIVED, InstanceOutcome.STOPPED, InstanceOutcome.CRASH)
    lost = next((instance for instance in instances if instance.outcome not in whole), None)
    why = f"; instance {lost.number}: {lost.outcome}: {lost.detail}" if lost else ""
    why = why + noise_reasons or "; not all ran"
    reason = f"{n} of {requested} instances completed{why}"
    return Judgement(Verdict.INCONCLUSIVE, reason, None, 0, n)


def unseen_chance(crashed: int, completed: int, instances: int) -> float | None:
    """Return (1 - p)^instances for a bug seen in `crashed` of `completed` runs, p = k/N.

    It estimates the chance that an unfixed bug is missed; at p = 1 it is 0, as far as so few runs
    can tell. None without a completed run.
    """
    if completed == 0:
        return None
    return float((1 - crashed / completed) ** instances)
