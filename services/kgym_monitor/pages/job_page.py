"""What a job's page shows: which step is chosen, and what there is to see of it."""

import json
import time
from dataclasses import dataclass
from typing import Any

from kgym.api.jobs import Artifact, JobView, StepView
from kgym.api.states import State
from kgym.api.steps import ReproduceArtifact, ReproduceResult
from kgym.client import AsyncClient, reproduce_bundle
from kgym.client.download import check_kept
from kgym.errors import UserError
from kgym_monitor.pages import check_results, instance_consoles, plan_words
from kgym_monitor.pages.timeline import timeline

TEXT_ENDINGS = (".log", ".txt", ".json", ".sh", "config", "System.map")
"""What the names of artifacts end with that are text."""


def focus(job: JobView) -> int:
    """Return the step that a reader wants to see first: what failed, what runs, or the last."""
    for wanted in (State.FAILED, State.RUNNING, State.QUEUED, State.ABORTED):
        found = [step.number for step in job.steps if step.state is wanted]
        if found:
            return found[0]
    return job.steps[-1].number


def shown(job: JobView, step: int | None, attempt: int | None) -> dict[str, Any]:
    """Return what the live part of a job's page shows, where the reader has chosen a step."""
    number = focus(job) if step is None or step >= len(job.steps) else step
    chosen = job.steps[number]
    tried = chosen.attempt if attempt is None else min(attempt, chosen.attempt)
    names = {artifact.name for artifact in chosen.artifacts}
    return {
        "job": job,
        "axis": timeline(job, time.time()),
        "chosen": chosen,
        "attempt": tried,
        "live_log": tried == chosen.attempt and chosen.state is State.RUNNING,
        "patches": check_results.patches(chosen),
        "result": chosen.result,
        "instances": instance_consoles.instances(chosen),
        "bundle": bundle(job, chosen),
        "reports": [one for one in _report_numbers(chosen) if f"report-{one}.json" in names],
        "spec": spec_text(chosen),
        "is_text": is_text,
    }


async def place(client: AsyncClient, job: JobView) -> dict[str, Any]:
    """Return what a job's page shows of why its queued step waits; `queued` is None without one."""
    step = plan_words.queued(job)
    workers = plan_words.workers(step, await client.workers()) if step else ""
    return {"job": job, "queued": step, "workers": workers}


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a page says of the bundle of a reproduce step."""

    size: int | None
    """Bytes: of the archive, or of what is in it; None: another job has the kernel."""
    packed: bool
    fault: str = ""
    """Why it cannot be fetched, if so."""


def bundle(job: JobView, step: StepView) -> Bundle | None:
    """Return what there is to say of the bundle of a step; None where there never was one."""
    whole = [one for one in step.artifacts if one.name == ReproduceArtifact.BUNDLE]
    if not whole and not reproduce_bundle.is_packable(step):
        return None
    try:
        for one in whole:
            check_kept(step, one)
            return Bundle(one.size, packed=True)
        if reproduce_bundle.build_job(job, step) != job.id:
            return Bundle(None, packed=False)
        files = reproduce_bundle.members(job, step, job)
        return Bundle(sum(one.artifact.size for one in files), packed=False)
    except UserError as error:
        return Bundle(None, packed=False, fault=str(error))


def is_text(artifact: Artifact) -> bool:
    """Return whether it can be read as text."""
    return artifact.name.endswith(TEXT_ENDINGS)


def spec_text(step: StepView, most: int = 100_000) -> str:
    """Return what the step was asked, as JSON that people read; long texts are cut."""
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
            return [_cut(one, most) for one in value]
        case dict():
            return {name: _cut(one, most) for name, one in value.items()}
    return value


def _report_numbers(step: StepView) -> list[int]:
    """Return the instances that may have left a report, the ones of the decisive title first."""
    if not isinstance(step.result, ReproduceResult):
        return []
    result = step.result
    crashed = [one for one in result.instances if one.title is not None]
    crashed.sort(key=lambda one: one.title != result.title)
    return [one.number for one in crashed]
