"""Inputs of steps, which are earlier steps: checked at submission, looked up at the claim."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Row, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from kgym.api.states import State
from kgym.api.steps import Failure, StepInput, StepName, StepNumber, StepSpec
from kgym.api.worker_calls import Input
from kgym.errors import UserError
from kgym_scheduler.database import views
from kgym_scheduler.database.tables import steps

# A job, and a step's number or name.
Place = tuple[int, StepNumber | StepName]
_Steps = dict[Place, Row[*tuple[Any, ...]]]


async def check(connection: AsyncConnection, specs: Sequence[StepSpec]) -> None:
    """Raise UserError `bad_reference` if a referenced step of another job cannot be used."""
    named = [
        (number, reference)
        for number, spec in enumerate(specs)
        for reference in spec.inputs()
        if reference.ref.job is not None
    ]
    if not named:
        return
    rows = await _find(connection, [(r.ref.job or 0, r.ref.step) for _, r in named])
    errors = []
    for number, reference in named:
        step = rows.get((reference.ref.job or 0, reference.ref.step))
        if complaint := _complaint(reference, step):
            errors.append({"location": f"body.steps.{number}.{reference.name}", **complaint})
    if errors:
        message = "; ".join(error["message"] for error in errors)
        raise UserError("bad_reference", message, errors=errors)


async def resolve(
    connection: AsyncConnection, wanted: Sequence[tuple[int, StepSpec]]
) -> list[dict[str, Input] | Failure]:
    """Return the inputs of each step, given with its job; a Failure if one is missing."""
    places = [
        {r.name: (r.ref.job or job_id, r.ref.step) for r in spec.inputs()}
        for job_id, spec in wanted
    ]
    named = {place for inputs in places for place in inputs.values()}
    rows = await _find(connection, named) if named else {}
    return [_inputs(inputs, rows) for inputs in places]


def _inputs(places: dict[str, Place], rows: _Steps) -> dict[str, Input] | Failure:
    inputs = {}
    for name, (job, number) in places.items():
        step = rows.get((job, number))
        if step is None or step.state != State.SUCCEEDED:
            return Failure(
                cause="user",
                reason="input_missing",
                message=f"the input `{name}`, step {number} of job {job}, "
                f"is {step.state if step else 'gone'}; it has to have succeeded",
                details={"input": name, "job": job, "step": number},
            )
        if step.artifacts_gone_at is not None:
            return Failure(
                cause="user",
                reason="input_gone",
                message=f"the input `{name}`: {_gone(step)}",
                details={"input": name, "job": job, "step": number},
            )
        result = views.result_of(step.result)
        if isinstance(result, Failure):
            message = f"the input `{name}`, step {number} of job {job}: {result.message}"
            return result.model_copy(update={"message": message})
        inputs[name] = Input(result=result, artifacts=views.artifacts_of(step.artifacts))
    return inputs


def _complaint(reference: StepInput, step: Row[*tuple[Any, ...]] | None) -> dict[str, str] | None:
    where = f"step {reference.ref.step} of job {reference.ref.job}"
    if step is None:
        return {"message": f"there is no {where}"}
    if step.kind != reference.kind:
        return {"message": f"{where} is a `{step.kind}` step, not a `{reference.kind}` step"}
    if step.state != State.SUCCEEDED:
        return {"message": f"{where} is {step.state}; it has to have succeeded"}
    if step.artifacts_gone_at is not None:
        return {"message": _gone(step)}
    return None


def _gone(step: Row[*tuple[Any, ...]]) -> str:
    return (
        f"the artifacts of step {step.number} of job {step.job_id} were removed on "
        f"{step.artifacts_gone_at:%Y-%m-%d}, for their age or to save space; "
        f"restart job {step.job_id} from step {step.number} to make them again"
    )


async def _find(connection: AsyncConnection, places: Collection[Place]) -> _Steps:
    s = steps.c
    numbers = [place for place in places if isinstance(place[1], int)]
    names = [place for place in places if isinstance(place[1], str)]
    result = await connection.execute(
        select(
            *(s.job_id, s.number, s.name, s.kind, s.state),
            *(s.result, s.artifacts, s.artifacts_gone_at),
        ).where(or_(tuple_(s.job_id, s.number).in_(numbers), tuple_(s.job_id, s.name).in_(names)))
    )
    rows = result.all()
    return {(r.job_id, r.number): r for r in rows} | {(r.job_id, r.name): r for r in rows}


async def numbered(connection: AsyncConnection, places: Collection[Place]) -> set[tuple[int, int]]:
    """Return the jobs and numbers of the steps that exist."""
    return {(row.job_id, row.number) for row in (await _find(connection, places)).values()}
