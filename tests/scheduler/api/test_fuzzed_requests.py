"""Requests that are bent at random: none is the server's fault, and what is taken can be done.

`KGYM_TEST_SEED` repeats a run; `KGYM_FUZZ_ROUNDS` makes it longer.
"""

import copy
import json
import os
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from kgym.api.jobs import Artifact, JobFilter, JobRequest, Progress
from kgym.api.steps import Calibration, CheckSpec, Edit, Failure, MinimizeSpec, Patch, StepRef
from kgym.api.worker_calls import AttemptEnding, attempt_folder
from kgym_scheduler.scheduler import Scheduler
from tests.conftest import SEED
from tests.scheduler.parts import BUILD, BUILT, REPRODUCED, claim_of, job, reproduce

pytestmark = [pytest.mark.anyio, pytest.mark.attack, pytest.mark.thorough]
DATABASE = "sqlite"
ROUNDS = int(os.environ.get("KGYM_FUZZ_ROUNDS", "400"))

PATCH = Patch(edits=[Edit(file="a.c", original="a", replacement="b")])
DIFF = Patch(name="d", diff="--- a/a.c\n+++ b/a.c\n@@ -1 +1 @@\n-a\n+b\n")
CALIBRATION = Calibration(runs=3, crashed=2, time=7.5, accelerator="tcg")
JOBS = [
    job(
        BUILD.model_copy(update={"patches": [PATCH, DIFF], "objects": 7, "instrument": ["a.c"]}),
        reproduce().model_copy(update={"calibration": CALIBRATION, "titles": ["KASAN: x"]}),
        MinimizeSpec(reproduce=StepRef(step=1), build=StepRef(step=0), files=["a.c"]),
        tags=("a", "b:1"),
    ),
    job(CheckSpec(source=BUILD.source, config=BUILD.config, base=[DIFF], patches=[PATCH, DIFF])),
]
# As text: some of it is no value that Python would write.
BENT = [
    *("null", "true", "[]", "{}", '""', "-1", "0", "1e400", "-1e400", "1e-400", "0.1", "NaN"),
    *(
        '"\\u0000"',
        '"\\ud800"',
        '"\\u202e\\ud83d\\ude00"',
        '"' + "a" * 300 + '"',
        "[" * 300 + "]" * 300,
    ),
    *(str(1 << 63), str(1 << 31), str(-(1 << 63)), "9" * 400, "9" * 5000, "[[[{}]]]", '{"a": 1}'),
    *('"gcc-99999999999"', '"request=1"', '"../../etc/passwd"', '"a\\r\\nb: c"', '"\\n"', '"$(x)"'),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, but the value itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, part in items:
        yield (*path, name)
        if isinstance(part, dict | list):
            yield from places(part, (*path, name))


def bend(value: Any, chance: random.Random) -> str:
    """Put something else to one or two places, take one away, or add one."""
    bent = copy.deepcopy(value)
    words = {}
    for number in range(chance.choice((1, 1, 1, 2))):
        if not (all_places := list(places(bent))):
            break
        *way, last = chance.choice(all_places)
        inner = bent
        for name in way:
            inner = inner[name]
        match chance.randrange(8):
            case 0 if isinstance(inner, dict):
                del inner[last]
            case 1 if isinstance(inner, dict):
                inner[f"x{number}"] = 1
            case 2 if isinstance(inner, list):
                inner += [inner[last]] * chance.choice((1, 30, 1200))
            case _:
                inner[last] = f"HERE{number}"
                words[f'"HERE{number}"'] = chance.choice(BENT)
    text = json.dumps(bent)
    for mark, word in words.items():
        text = text.replace(mark, word)
    return text


@pytest.fixture
def chance() -> random.Random:
    return random.Random(SEED)


async def send(http: httpx.AsyncClient, path: str, text: str) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    answer = await http.post(path, content=text, headers=headers)
    # 409: the same claim twice, not said to come again
    assert answer.status_code in {200, 201, 409, 413, 422}, (text[:2000], answer.text[:2000])
    assert len(answer.content) < 100_000 or answer.is_success
    return answer


async def test_a_job_that_is_taken_can_be_listed_and_claimed_as_it_was_asked_for(
    http: httpx.AsyncClient, scheduler: Scheduler, chance: random.Random
) -> None:
    whole = [request.model_dump(mode="json") for request in JOBS]
    taken: dict[int, JobRequest] = {}
    for number in range(ROUNDS):
        text = bend(whole[number % len(whole)], chance)
        answer = await send(http, "/v1/jobs", text)
        if answer.status_code == 201:
            taken[answer.json()["id"]] = JobRequest.model_validate_json(text)
    assert ROUNDS // 20 < len(taken) < ROUNDS
    listed = [job_id async for job_id in _all(scheduler)]
    assert sorted(listed) == sorted(taken)
    kinds = sorted({step.kind for request in JOBS for step in request.steps})
    seen = set()
    while claimed := (await scheduler.claim(claim_of(want=50, kinds=kinds))).assignments:
        for assignment in claimed:
            assert assignment.spec == taken[assignment.job_id].steps[assignment.number]
            seen.add(assignment.job_id)
            failure = Failure(cause="user", reason="enough", message="")
            await scheduler.finish(assignment.lease, AttemptEnding(failure=failure))
    assert seen == set(taken)


async def _all(scheduler: Scheduler) -> AsyncIterator[int]:
    cursor = None
    while True:
        page = await scheduler.jobs(JobFilter(cursor=cursor, limit=200))
        for view in page.jobs:
            yield view.id
        if (cursor := page.next) is None:
            return


async def test_no_word_of_a_worker_is_the_servers_fault_nor_breaks_a_list(
    http: httpx.AsyncClient, scheduler: Scheduler, chance: random.Random
) -> None:
    info = claim_of(want=1).model_dump(mode="json")
    artifact = Artifact(name="vmlinux", size=1, sha256="0" * 64, key="k")
    endings = [
        AttemptEnding(result=BUILT, artifacts=[artifact]),
        AttemptEnding(result=REPRODUCED),
        AttemptEnding(failure=Failure(cause="user", reason="r", message="m", details={"a": [1]})),
    ]
    progress = Progress(stage="make", done=1, total=2, unit="objects").model_dump(mode="json")
    for number in range(ROUNDS):
        if number % 40 == 0:
            await scheduler.submit(job(BUILD, reproduce()))
        claimed = (await scheduler.claim(claim_of())).assignments
        held = claimed[0] if claimed else None
        lease = str(held.lease) if held else "00000000-0000-0000-0000-000000000000"
        ending = chance.choice(endings).model_dump(mode="json")
        if held and ending["artifacts"]:
            ending["artifacts"][0]["key"] = f"{attempt_folder(held.step_id, held.lease)}/vmlinux"
        calls = [
            {"call": "claim", "claim": info},
            {"call": "report", "lease": lease, "log": "x\n", "progress": progress},
            {"call": "finish", "lease": lease, "ending": ending},
            {"call": "hold", "lease": lease, "name": "n"},
            {"call": "ended", "lease": lease},
            {"call": "leave", "worker": "w"},
        ]
        await send(http, "/v1/worker/calls", bend({"calls": [chance.choice(calls)]}, chance))
        if held:
            await scheduler.release(held.lease)
    assert [job_id async for job_id in _all(scheduler)]
    for path in ("/v1/jobs", "/v1/workers", "/v1/queues", "/metrics", "/v1/jobs/1/log"):
        assert (await http.get(path)).status_code == 200
