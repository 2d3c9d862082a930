"""The steps of a run, read from its events. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kgym.api.agent.runs import Event
from kgym.api.agent.steps import RunStep


def steps(events: Iterable[Event], jobs: Mapping[str, Sequence[int]]) -> list[RunStep]:
    """Return the work that was begun, in that order; `jobs` are those of the scheduler, by name.

    Only events of `run_store.WORK` count. What was dropped has ended without an outcome.
    """
    found: dict[str, RunStep] = {}
    for event in events:
        data: dict[str, Any] = dict(event.data)
        step = found.get(data["name"])
        if step is None:
            step = RunStep(
                name=data["name"],
                node=data["node"],
                work=data.get("work", ""),
                asked=0,
                begun_at=event.at,
                jobs=list(jobs.get(data["name"], ())),
            )
            found[step.name] = step
        match event.kind:
            case "asked" | "asked_again":
                changed: dict[str, Any] = {"asked": step.asked + 1, "ended_at": None}
            case "lost":
                changed = {"ended_at": event.at, "unanswered": "nothing was heard of it, twice"}
            case "dropped":
                changed = {"ended_at": event.at, "unanswered": "nobody waits for it any more"}
            case _:
                changed = {"ended_at": event.at, **_told(data)}
        found[step.name] = step.model_copy(update=changed)
    return list(found.values())


def _told(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an event of kind `told` says of a step."""
    outcome = data.get("verdict") or ", ".join(data.get("outcomes") or [])
    if data.get("crash"):
        outcome = f"{outcome}: {data['crash']}"
    if data.get("obstacles"):
        outcome = f"{outcome}, but {', '.join(data['obstacles'])}"
    numbers = {name: data.get(name) for name in ("tokens", "price", "seconds")}
    return {"outcome": outcome, "unanswered": data.get("unanswered"), **numbers}
