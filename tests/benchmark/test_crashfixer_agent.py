"""CrashFixer as an agent of a campaign, with a model's answers from the tape."""

import asyncio
import json
from pathlib import Path

import pytest

from kgym.api.agent.runs import Limits, RunRequest
from kgym.bench.campaign import Campaign, plan
from kgym.client.agent_client import AgentClient
from kgym_benchmark.campaign import crashfixer, subjects
from kgym_benchmark.campaign.attempt import ATIF, ENDED, AgentEnded, Attempt
from kgym_benchmark.campaign.crashfixer import RUN, CrashFixer
from kgym_cli.platforms.embedded_platform import Platform
from kgym_crashfixer.models import tape
from tests.demo.demo_agent import TAPE, Tape, demo_agent

pytestmark = pytest.mark.thorough


def test_its_run_is_begun_once_and_its_best_patch_kept(tmp_path: Path) -> None:
    agents = [{"name": "crashfixer", "kind": "crashfixer", "models": [Tape.name]}]
    described = {"name": "c", "bugs": ["watch-queue-filter"], "agents": agents}
    campaign = Campaign.model_validate({**described, "attempt": {"dollars": 5}, "oracle": [True]})
    (subject,) = subjects.load(campaign, tmp_path).bugs
    planned = next(place for place in plan(campaign, [subject.id]) if place.setup.feedback)
    attempt = Attempt(campaign, planned, subject, "the report", tmp_path / "attempt")
    asked: list[tuple[float | None, tuple[str, ...]]] = []

    def request(
        name: str, strategy: str | None, model: str, limits: Limits, files: tuple[str, ...]
    ) -> RunRequest:
        asked.append((limits.dollars, files))
        head = tape.head(TAPE)
        assert head is not None
        return RunRequest(bug=name, strategy=head.strategy, model=model, limits=limits)

    async def twice(url: str) -> tuple[AgentEnded, AgentEnded, int]:
        async with AgentClient(url) as agent:
            fixer = CrashFixer(agent, request)
            first = await crashfixer.worked(attempt, fixer)
            (attempt.folder / ENDED).unlink()  # as if it was killed before
            await crashfixer.worked(attempt, fixer)
            (attempt.folder / ENDED).unlink()
            key = json.loads((attempt.folder / RUN).read_text())["key"]
            (attempt.folder / RUN).write_text(json.dumps({"key": key}))  # as soon as it had begun
            again = await crashfixer.worked(attempt, fixer)
            return first, again, len((await agent.page(None, 10)).runs)

    data = tmp_path / "data"
    with Platform(data, work=False) as platform, demo_agent(data, platform.url) as agent:
        first, again, runs = asyncio.run(twice(agent.url))
    assert (first, runs) == (again, 1)
    assert attempt.ended() == first
    assert "+\t\tif (tf[i].type >= WATCH_TYPE__NR)" in attempt.patch
    assert first.dollars is not None
    assert 0 < first.dollars < 5
    assert first.kernel_runs > 0
    assert first.tokens
    assert set(asked) == {(5, ("kernel/watch_queue.c",))}
    steps = json.loads((attempt.folder / ATIF).read_text())["steps"]
    assert {step["source"] for step in steps} == {"user", "agent"}
