"""What Prometheus is told of an agent's runs."""

import asyncio
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kgym.api.agent.runs import RunState
from kgym.web import metrics
from kgym_crashfixer.models.model import Call, ModelError
from tests.conftest import NEARBY
from tests.crashfixer.agents import Guesser, request
from tests.crashfixer.test_api import Known, plain, served

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "FRESH_SECONDS", 0.0)


async def samples(url: str) -> dict[str, float]:
    """All samples, by name and the values of their labels: `kgym_agent_runs resolved`."""
    async with httpx.AsyncClient(base_url=url, **NEARBY) as http:
        response = await http.get("/metrics")
    assert response.status_code == 200, response.text
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


@pytest.mark.thorough
async def test_runs_are_counted_by_state_and_their_calls_with_tokens_and_dollars(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, model := Guesser(price=0.5)) as (url, made):
        assert (await samples(url))["kgym_agent_runs resolved"] == 0
        run = await made.agent.start(request())
        assert await made.agent.wait(run) is RunState.RESOLVED
        counts = await samples(url)
        spent = (await made.agent.show(run)).spent
        assert spent.calls > 0
        assert counts["kgym_agent_runs resolved"] == 1
        assert counts["kgym_agent_runs running"] == 0
        assert counts["kgym_agent_ended_runs_total resolved"] == 1
        assert counts["kgym_agent_model_calls_total answered"] == spent.calls
        assert counts["kgym_agent_dollars_total"] == spent.dollars
        assert counts["kgym_agent_unpriced_calls_total"] == 0
        assert counts["kgym_agent_tokens_total input"] == spent.input_tokens
        assert counts["kgym_agent_tokens_total output"] == spent.output_tokens
        assert counts["kgym_agent_open_questions"] == 0
        model.price = None
        await made.agent.wait(await made.agent.start(request()))
        counts = await samples(url)
        assert counts["kgym_agent_unpriced_calls_total"] > 0
        assert counts["kgym_agent_dollars_total"] == spent.dollars
    async with served(tmp_path) as (url, _):  # runs are read from files, the rest begins anew
        counts = await samples(url)
        assert counts["kgym_agent_runs resolved"] == 2
        assert "kgym_agent_ended_runs_total resolved" not in counts


async def test_questions_on_their_way_are_open_and_then_dropped(tmp_path: Path) -> None:
    async with served(tmp_path, model := Guesser(pause=60)) as (url, made):
        run = await made.agent.start(request())
        while not model.asked:
            await asyncio.sleep(0.01)
        counts = await samples(url)
        assert counts["kgym_agent_runs running"] == 1
        assert counts["kgym_agent_open_questions"] == len(await made.agent.calls(run)) > 0
        await made.agent.stop(run)
        assert await made.agent.wait(run) is RunState.STOPPED
        dropped = counts["kgym_agent_open_questions"]
        counts = await samples(url)
        assert counts["kgym_agent_open_questions"] == 0
        assert counts["kgym_agent_model_calls_total dropped"] == dropped
        assert "kgym_agent_model_calls_total failed" not in counts


class Refusing(Guesser):
    """A model whose provider refuses the key."""

    async def ask(self, call: Call) -> None:  # type: ignore[override]
        raise ModelError("model_refused", "no such key", fatal=True)


async def test_failures_are_counted(tmp_path: Path) -> None:
    async with served(tmp_path, Refusing()) as (url, made):
        await made.agent.wait(await made.agent.start(request()))
        counts = await samples(url)
        assert counts["kgym_agent_runs failed"] == 1
        assert counts["kgym_agent_ended_runs_total failed"] == 1
        assert counts["kgym_agent_model_calls_total failed"] >= 1


async def test_a_platform_that_fails_a_run_is_a_failure_too(tmp_path: Path) -> None:
    async with served(tmp_path, crashes=False) as (url, made):
        await made.agent.wait(await made.agent.start(request()))
        assert (await samples(url))["kgym_agent_ended_runs_total failed"] == 1


@pytest.mark.attack
async def test_metrics_are_for_readers(tmp_path: Path) -> None:
    async with plain(tmp_path, tokens=Known(alice="read", farm="worker")) as (http, _):
        for who, status in (("nobody", 401), ("farm", 403), ("alice", 200)):
            headers = {"Authorization": f"Bearer {who}"}
            assert (await http.get("/metrics", headers=headers)).status_code == status
