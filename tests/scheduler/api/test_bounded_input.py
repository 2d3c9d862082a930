"""Nothing that comes from outside is unlimited, and what cannot be read harms nobody else."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import String, update

from kgym.api.jobs import JobFilter
from kgym.api.states import State
from kgym.api.steps import BuildSpec, Diagnostic, Failure, Reproducer, VmShape
from kgym.api.steps.base import DETAILS
from kgym.api.worker_calls import LOG, AttemptEnding
from kgym.worker.context import StepContext
from kgym_scheduler.api.app import create_app
from kgym_scheduler.api.example_job import JOB
from kgym_scheduler.database import tables
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.scheduler import Scheduler
from tests.conftest import NewRun
from tests.scheduler.api.test_app import problem
from tests.scheduler.parts import BUILD, WELL, claim_of, end, job, reproduce

pytestmark = [pytest.mark.anyio, pytest.mark.attack]


# --- every model that a request is read with ------------------------------------------------


def unbounded(schema: dict[str, Any], document: dict[str, Any], place: str) -> Iterator[str]:
    """The places of a JSON schema at which a value may be as large as it likes."""
    if name := schema.get("$ref", "").rpartition("/")[2]:
        place = name
        if name in document.setdefault("seen", set()):
            return
        document["seen"].add(name)
        schema = document["components"]["schemas"][name]
    for choice in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(choice, ()):
            yield from unbounded(part, document, place)
    if "const" in schema or "enum" in schema:
        return
    yield from _unbounded_here(schema, place)
    for name, part in schema.get("properties", {}).items():
        yield from unbounded(part, document, f"{place}.{name}")
    for name in ("items", "additionalProperties", "propertyNames"):
        if isinstance(part := schema.get(name), dict) and "x-bytes" not in schema:
            yield from unbounded(part, document, f"{place}.{name}")


def _unbounded_here(schema: dict[str, Any], place: str) -> Iterator[str]:
    kind = schema.get("type")
    if kind is None and not {"anyOf", "oneOf", "allOf", "maxLength"} & set(schema):
        yield f"{place}: anything"
    if kind == "string" and not {"maxLength", "format"} & set(schema):
        yield f"{place}: text"
    if kind == "array" and "maxItems" not in schema:
        yield f"{place}: list"
    bounds = [{"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}]
    if kind in {"integer", "number"} and not all(bound & set(schema) for bound in bounds):
        yield f"{place}: {kind}"
    open_ended = schema.get("additionalProperties", "properties" not in schema)
    if kind == "object" and open_ended is not False and "maxProperties" not in schema:
        yield f"{place}: fields"


@pytest.mark.thorough
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_every_field_of_every_request_is_bounded(scheduler: Scheduler) -> None:
    document = create_app(scheduler).openapi()
    places: list[str] = []
    for path, item in document["paths"].items():
        for operation in item.values():
            for parameter in operation.get("parameters", ()):
                places += unbounded(parameter["schema"], document, f"{path} {parameter['name']}")
            body = operation.get("requestBody", {"content": {}})["content"]
            for part in body.values():
                places += unbounded(part["schema"], document, path)
    assert places == []
    assert len(document["seen"]) > 60


def test_the_search_for_what_is_unbounded_finds_it() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "c": {"type": "object", "additionalProperties": True},
            "d": {"anyOf": [{"type": "null"}, {}]},
            "e": {"type": "string", "maxLength": 3},
        },
        "additionalProperties": False,
    }
    places = {line.partition(":")[0] for line in unbounded(schema, {}, "x")}
    assert places == {"x.a", "x.b", "x.b.items", "x.c", "x.d"}


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all numbers in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, part in items:
        if isinstance(part, dict | list):
            yield from numbers(part, (*path, name))
        elif isinstance(part, int | float) and not isinstance(part, bool):
            yield (*path, name)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" + "0" * 400])
async def test_a_number_that_is_none_is_refused_wherever_it_stands(
    http: httpx.AsyncClient, number: str
) -> None:
    calibration = {"runs": 3, "crashed": 2, "time": 7.5, "accelerator": "tcg"}
    whole = job(BUILD.model_copy(update={"objects": 3}), reproduce()).model_dump(mode="json")
    whole["steps"][1]["calibration"] = calibration
    places = list(numbers(whole))
    assert ("steps", 1, "calibration", "time") in places
    assert ("steps", 0, "objects") in places
    for place in places:
        changed = json.loads(json.dumps(whole))
        inner = changed
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = "HERE"
        text = json.dumps(changed).replace('"HERE"', number)
        answer = await http.post(
            "/v1/jobs", content=text, headers={"Content-Type": "application/json"}
        )
        problem(answer, 422, "invalid_request")
    assert (await http.get("/v1/jobs")).json()["jobs"] == []


@pytest.mark.parametrize("compiler", ["gcc-" + "1" * 600, "gcc-1234", "clang-" + "9" * 20])
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_compiler_that_fits_no_column_is_refused(
    http: httpx.AsyncClient, compiler: str
) -> None:
    steps = [{**JOB["steps"][0], "compiler": compiler}]
    problem(await http.post("/v1/jobs", json={"steps": steps}), 422, "invalid_request")


def test_the_largest_needs_fit_their_column() -> None:
    text = "# {}\nr0 = openat()\n"
    programs = [Reproducer(kind="syz", text=text, syzkaller=f"{n:040x}") for n in range(9)]
    runs = {"reproducer": programs[0], "others": programs[1:]}
    spec = reproduce().model_copy(update={**runs, "vm": VmShape(cpus=64, memory=1 << 20)})
    width = tables.lanes.c.needs.type
    assert isinstance(width, String)
    majors = (*range(30), 999)
    names = [f"{name} {n}.2.6" for name in ("gcc (GCC)", "clang version") for n in majors]
    compilers = [BUILD.model_copy(update={"compiler": name}).needs() for name in names]
    for needs in (spec.needs(), *compilers):
        assert len(needs.model_dump_json(exclude_defaults=True)) <= (width.length or 0)


# --- what programs say is cut ---------------------------------------------------------------


def test_what_programs_say_is_cut_where_it_is_too_long() -> None:
    diagnostic = Diagnostic(file="f" * 5000, severity="error", message="m" * 100_000)
    assert (len(diagnostic.file), len(diagnostic.message)) == (1000, 10_000)
    failure = Failure(cause="user", reason="r" * 999, message="m" * (1 << 20))
    assert (len(failure.reason), len(failure.message)) == (100, 200_000)
    most = Failure(cause="user", reason="r", message="m", details={"output": "x" * DETAILS})
    assert list(most.details) == ["omitted"]
    assert Failure.model_validate_json(most.model_dump_json()) == most


def test_details_hold_json_whatever_is_put_into_them() -> None:
    details = {"path": {1, 2}, "time": float("inf"), "state": State.FAILED, "pair": (1, 2)}
    failure = Failure.model_validate(
        {"cause": "user", "reason": "r", "message": "m", "details": details}
    )
    assert failure.details["time"] is None
    assert failure.details["pair"] == [1, 2]
    assert Failure.model_validate_json(failure.model_dump_json()) == failure


def test_a_long_log_goes_out_in_several_reports(new_run: NewRun) -> None:
    run = new_run(BUILD)
    run.log("x" * 3 * LOG)
    taken = [run.take_news()[0] for _ in range(5)]
    assert [len(text) for text in taken] == [LOG, LOG, LOG, 1, 0]
    assert isinstance(run, StepContext)


# --- what is stored and cannot be read ------------------------------------------------------


async def spoil(store: JobStore, job_id: int, **columns: str) -> None:
    """Write what no version of the platform can read, as an older one could have."""
    async with store.database.write() as connection:
        await connection.execute(
            update(tables.steps)
            .where(tables.steps.c.job_id == job_id, tables.steps.c.number == 0)
            .values(**columns)
        )


async def test_a_step_that_cannot_be_read_fails_alone(store: JobStore) -> None:
    for _ in range(3):
        await store.submit(job(BUILD, reproduce()))
    text = BUILD.model_dump_json().replace('"gcc"', "null")
    await spoil(store, 1, spec=text)
    claimed, _ = await store.claim(claim_of(want=3))
    assert {assignment.job_id for assignment in claimed.assignments} == {2, 3}
    view = await store.get(1)
    assert view.state is State.FAILED
    assert [step.state for step in view.steps] == [State.FAILED, State.SKIPPED]
    failure = view.steps[0].failure
    assert failure is not None
    assert (failure.cause, failure.reason) == ("infrastructure", "unreadable_step")
    assert "compiler" in failure.message
    assert len((await store.page(JobFilter())).jobs) == 3
    claimed, _ = await store.claim(claim_of())
    assert claimed.assignments == []


async def test_a_claim_that_comes_again_passes_over_what_it_cannot_read(store: JobStore) -> None:
    for _ in range(2):
        await store.submit(job())
    first = claim_of(want=2)
    assert len((await store.claim(first))[0].assignments) == 2
    await spoil(store, 1, spec="{}")
    again, _ = await store.claim(first.model_copy(update={"again": True}))
    assert [assignment.job_id for assignment in again.assignments] == [2]


async def test_a_job_whose_result_cannot_be_read_is_shown_and_breaks_no_list(
    store: JobStore,
) -> None:
    await store.submit(job(BUILD, reproduce()))
    await store.submit(job())
    await end(store)
    await spoil(store, 1, result='{"kind":"build","seconds":{"make":null}}', artifacts="[1]")
    listed = (await store.page(JobFilter())).jobs
    assert [row.id for row in listed] == [2, 1]
    step = listed[1].steps[0]
    assert step.result is None
    assert step.failure is not None
    assert step.failure.reason == "unreadable_result"
    assert step.artifacts == await store.artifacts(1, 0) == []
    # and what builds on it fails, with the reason
    await store.claim(claim_of(want=2))
    failure = (await store.get(1)).steps[1].failure
    assert failure is not None
    assert (failure.cause, failure.reason) == ("infrastructure", "unreadable_result")
    assert "the input `build`" in failure.message


async def test_what_is_submitted_is_what_a_claim_reads(store: JobStore) -> None:
    odd = BuildSpec.model_validate(
        {**BUILD.model_dump(), "config": {"full": 'CONFIG_X="\\u2028\u00e4\U0001f600"\n'}}
    )
    await store.submit(job(odd))
    claimed, _ = await store.claim(claim_of())
    assert claimed.assignments[0].spec == odd
    assert await store.finish(claimed.assignments[0].lease, AttemptEnding(result=WELL.result))
