"""Contents of a job's page: the selected step and its details."""

import json
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kgym.api.jobs import Artifact, JobView, StepView
from kgym.api.outcomes import Outcome
from kgym.api.states import State
from kgym.api.steps import ReproduceArtifact, ReproduceResult, Severity, StepKind
from kgym.bugs.conclusion import conclusion, in_one_line
from kgym.bugs.resolution import placed
from kgym.client import AsyncClient, reproduce_bundle
from kgym.client.download import check_kept
from kgym.errors import UserError
from kgym_monitor.pages import check_results, instance_consoles, plan_words, wording

# Endings of text artifacts.
TEXT_ENDINGS = (".log", ".txt", ".json", ".sh", "config", "System.map")


def focus(job: JobView) -> int:
    """Return the step to show first: one that decided, failed, runs or waits, else the last."""
    if job.outcome is Outcome.NOT_RESOLVED:
        # A crash may have decided in spite of blocking findings: the reason names what decided.
        for step in job.steps:
            for finding in getattr(step.result, "findings", []):
                named = (job.reason or "").startswith(in_one_line(placed(finding))[:250])
                if named and finding.severity is Severity.BLOCKING:
                    return step.number
    # Readers come for a failure first, then for what is happening.
    for wanted in (State.FAILED, State.RUNNING, State.QUEUED, State.ABORTED):
        numbers = [step.number for step in job.steps if step.state is wanted]
        if numbers:
            return numbers[0]
    return job.steps[-1].number


def shown(job: JobView, step: int | None, attempt: int | None) -> dict[str, Any]:
    """Return the contents of a job's live part, for the selected step."""
    number = focus(job) if step is None or step >= len(job.steps) else step
    chosen = job.steps[number]
    tried = chosen.attempt if attempt is None else min(attempt, chosen.attempt)
    names = {artifact.name for artifact in chosen.artifacts}
    return {
        "job": job,
        "evidence": conclusion(job).evidence,
        "on_trial": (on_trial := check_results.on_trial(job)),
        "next_step": wording.NEXT.get(job.outcome, ""),
        "axis": timeline(job, time.time()),
        "chosen": chosen,
        "attempt": tried,
        "live_log": tried == chosen.attempt and chosen.state is State.RUNNING,
        # Those on trial are above the steps.
        "patches": [
            patch
            for patch in check_results.patches(chosen)
            if chosen.kind is StepKind.CHECK or patch.name not in {own.name for own in on_trial}
        ],
        "result": chosen.result,
        "instances": instance_consoles.instances(chosen),
        "bundle": bundle(job, chosen),
        "reports": [
            instance for instance in _report_numbers(chosen) if f"report-{instance}.json" in names
        ],
        "spec": spec_text(chosen),
        "is_text": is_text,
    }


async def place(client: AsyncClient, job: JobView) -> dict[str, Any]:
    """Return why a job's queued step waits; `queued` is None if no step is queued."""
    step = plan_words.queued(job)
    workers = plan_words.workers(step, await client.workers()) if step else ""
    return {"job": job, "queued": step, "workers": workers}


@dataclass(frozen=True, slots=True)
class Bundle:
    """State of a reproduce step's bundle."""

    size: int | None
    """Bytes of the archive or its contents; None if another job has the kernel."""
    packed: bool
    fault: str = ""
    """Why it cannot be downloaded, if so."""


def bundle(job: JobView, step: StepView) -> Bundle | None:
    """Return the state of a step's bundle, None if it never had one."""
    whole = [artifact for artifact in step.artifacts if artifact.name == ReproduceArtifact.BUNDLE]
    if not whole and not reproduce_bundle.is_packable(step):
        return None
    try:
        for artifact in whole:
            check_kept(step, artifact)
            return Bundle(artifact.size, packed=True)
        if reproduce_bundle.build_job(job, step) != job.id:
            return Bundle(None, packed=False)
        files = reproduce_bundle.members(job, step, job)
        return Bundle(sum(member.artifact.size for member in files), packed=False)
    except UserError as error:
        return Bundle(None, packed=False, fault=str(error))


def is_text(artifact: Artifact) -> bool:
    """Return whether an artifact is text."""
    return artifact.name.endswith(TEXT_ENDINGS)


def spec_text(step: StepView, most: int = 100_000) -> str:
    """Return the step's spec as indented JSON; long texts are cut."""
    if step.spec is None:
        return ""
    asked = step.spec.model_dump(mode="json", exclude_defaults=True)
    text = json.dumps(_cut(asked), indent=2, ensure_ascii=False)
    return text if len(text) <= most else text[:most] + "\n…"


def _cut(value: Any, most: int = 2000) -> Any:
    match value:
        case str() if len(value) > most:
            return f"{value[:most]}… ({len(value):,} characters)"
        case list():
            return [_cut(item, most) for item in value]
        case dict():
            return {name: _cut(item, most) for name, item in value.items()}
    return value


def _report_numbers(step: StepView) -> list[int]:
    """Return the instances that may have a report, those with the step's title first."""
    if not isinstance(step.result, ReproduceResult):
        return []
    result = step.result
    crashed = [instance for instance in result.instances if instance.title is not None]
    crashed.sort(key=lambda instance: instance.title != result.title)
    return [instance.number for instance in crashed]


# --- timeline of steps: times are seconds since 1970; an end of None means still running ----------


# Length of the axis in units.
WIDTH = 1000
# Least visible width of a span, in units.
_LEAST = 3.0


@dataclass(frozen=True, slots=True)
class Span:
    """A phase of a step."""

    start: float
    end: float | None

    def seconds(self, now: float) -> float:
        """Return its duration so far."""
        return max(0.0, (now if self.end is None else self.end) - self.start)


@dataclass(frozen=True, slots=True)
class Bar:
    """Line of one step."""

    step: StepView
    queue: Span | None
    run: Span | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """All lines on one axis."""

    start: float
    end: float | None
    now: float
    bars: tuple[Bar, ...]

    def place(self, span: Span) -> tuple[float, float]:
        """Return the span's position and width in units."""
        last = self.now if self.end is None else self.end
        length = max(last - self.start, 0.001)
        end = last if span.end is None else span.end
        x = min(max(0.0, (span.start - self.start) / length * WIDTH), WIDTH - _LEAST)
        width = max(_LEAST, (end - span.start) / length * WIDTH)
        return round(x, 2), round(min(width, WIDTH - x), 2)


def timeline(job: JobView, now: float) -> Timeline:
    """Return the timeline of a job's latest attempts, from its submission."""
    bars = tuple(_bar(step) for step in job.steps)
    ends = [span.end for bar in bars for span in (bar.queue, bar.run) if span and span.end]
    start = job.created_at.timestamp()
    # A restarted job keeps earlier attempts of steps that were not repeated.
    starts = [span.start for bar in bars for span in (bar.queue, bar.run) if span]
    end = max([*ends, start]) if job.state.final else None
    return Timeline(min([start, *starts]), end, max(now, start), bars)


def _bar(step: StepView) -> Bar:
    queued, started, ended = map(_stamp, (step.queued_at, step.started_at, step.finished_at))
    waits = step.state is State.QUEUED
    if waits:  # times of an earlier attempt do not belong to this wait
        started = ended = None
    queue = None
    if queued is not None and (started is not None or ended is not None or waits):
        queue = Span(queued, started if started is not None else ended)
    run = None if started is None else Span(started, ended)
    return Bar(step, queue, run)


def _stamp(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
