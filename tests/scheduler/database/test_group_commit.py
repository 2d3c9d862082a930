"""Calls that share a transaction: one caller's bad data are that caller's alone."""

import asyncio
from collections.abc import Sequence

import pytest

from kgym.api.jobs import JobView
from kgym.errors import Conflict, InfrastructureError, UserError
from kgym_scheduler.database.group_commit import Batch
from kgym_scheduler.job_store import JobStore
from tests.scheduler.parts import claim_of, job

pytestmark = pytest.mark.anyio

UNSTORABLE = "\ud800"
"""A lone surrogate: neither database can hold it as text."""


async def test_data_that_the_database_cannot_hold_are_refused_and_the_others_go_on(
    store: JobStore,
) -> None:
    keys = [UNSTORABLE if number % 40 == 7 else f"key-{number}" for number in range(320)]
    answers = await asyncio.gather(
        *(store.submit(job(), key) for key in keys), return_exceptions=True
    )
    for key, answer in zip(keys, answers, strict=True):
        if key == UNSTORABLE:
            assert isinstance(answer, UserError)
            assert answer.reason == "bad_data"
        else:
            assert isinstance(answer, tuple)
            assert isinstance(answer[0], JobView)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_text_that_overflows_a_column_is_its_callers_fault(store: JobStore) -> None:
    good, long, control = await asyncio.gather(
        store.submit(job(), "key"),
        store.submit(job(), submitter="x" * 1000),
        store.submit(job(), submitter="\0"),
        return_exceptions=True,
    )
    assert isinstance(good, tuple)
    for bad in (long, control):
        assert isinstance(bad, UserError)
        assert bad.reason == "bad_data"
    assert "value too long" in str(long)
    with pytest.raises(UserError, match="cannot hold"):
        await store.leave("worker\0")


async def test_a_claim_that_comes_once_more_after_its_step_has_ended_gets_nothing(
    store: JobStore,
) -> None:
    first, _ = await store.submit(job())
    wish = claim_of()
    await store.claim(wish)
    await store.abort(first.id)
    await store.submit(job())
    again, _ = await store.claim(wish.model_copy(update={"again": True}))
    assert again.assignments == []
    new, _ = await store.claim(claim_of())
    assert len(new.assignments) == 1


class Work:
    """Doubles numbers in one go, and fails altogether at a `bad` one."""

    def __init__(self, error: Exception, bad: int = 137, times: int = 1000) -> None:
        self.calls: list[int] = []
        self._error = error
        self._bad = bad
        self._times = times

    async def __call__(self, items: Sequence[int]) -> Sequence[int]:
        self.calls.append(len(items))
        await asyncio.sleep(0)
        if self._bad in items and self._times > 0:
            self._times -= 1
            raise self._error
        return [2 * item for item in items]

    async def answers(self) -> list[int | BaseException]:
        batch = Batch(self)
        return await asyncio.gather(*(batch(n) for n in range(200)), return_exceptions=True)


async def test_the_culprit_is_found_in_few_steps() -> None:
    error = ValueError("not a number")
    work = Work(error)
    answers = await work.answers()
    assert answers[137] is error
    assert [answer for number, answer in enumerate(answers) if number != 137] == [
        2 * number for number in range(200) if number != 137
    ]
    assert len(work.calls) <= 1 + 2 * 8


async def test_a_part_that_fails_is_nobodys_fault() -> None:
    work = Work(InfrastructureError("database_failed", "it is away"))
    answers = await work.answers()
    assert all(isinstance(answer, InfrastructureError) for answer in answers)
    assert work.calls == [200]


async def test_what_raced_with_a_twin_is_tried_once_more() -> None:
    work = Work(Conflict("data_conflict", "the key is there"), times=8)
    answers = await work.answers()
    assert answers == [2 * number for number in range(200)]
