"""How pages stay current: what a poll answers, what it costs the scheduler, when it fails."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from kgym.client import Client
from kgym.errors import UserError
from kgym_cli.platforms.embedded_platform import Platform
from kgym_monitor.shared_answers import SharedAnswers
from tests.cli.worked import working
from tests.demo.demo_agent import demo_agent
from tests.demo.monitored import monitored
from tests.demo.showcase import Showcase, trial
from tests.monitor.silent_network import SilentNetwork


def poll(reader: httpx.Client, path: str, tag: str = "") -> httpx.Response:
    return reader.get(path, headers={"If-None-Match": tag} if tag else {})


def until(wanted: Callable[[], httpx.Response], status: int) -> httpx.Response:
    """Repeat the request until it has this status."""
    end = time.monotonic() + 60
    while (answer := wanted()).status_code != status:
        assert time.monotonic() < end, answer.text
        time.sleep(0.2)
    return answer


def targets(answer: httpx.Response) -> list[str]:
    return re.findall('hx-target="#([^"]+)"', answer.text)


@pytest.mark.slow
def test_a_poll_answers_only_what_has_changed(tmp_path: Path) -> None:
    with (
        Platform(tmp_path, work=False) as platform,
        monitored(platform.url) as url,
        Client(platform.url) as client,
        httpx.Client(base_url=url, timeout=60, trust_env=False) as reader,
    ):
        empty = poll(reader, "/jobs?poll=yes")
        assert "hx-refresh" not in empty.headers
        first, second = client.submit(trial()), client.submit(trial())
        client.abort_all([first.id, second.id])
        path = f"/jobs?poll=yes&rows={second.id},{first.id}"
        whole = poll(reader, path)
        assert targets(whole) == [f"job-{second.id}", f"job-{first.id}", "newer"]
        tag = whole.headers["etag"]
        assert poll(reader, path, tag).status_code == 304
        client.submit(trial())
        newer = until(lambda: poll(reader, path, tag), 200)
        assert targets(newer) == ["newer"]
        assert "1 newer job: show" in newer.text
        client.restart(first.id)
        changed = until(lambda: poll(reader, path, newer.headers["etag"]), 200)
        assert targets(changed) == [f"job-{first.id}"]
        # A page that listed no job has no table for them yet: it is loaded again.
        assert poll(reader, "/jobs?poll=yes&tag=").headers["hx-refresh"] == "true"


@pytest.mark.slow
def test_a_running_log_is_read_by_its_bytes(tmp_path: Path) -> None:
    showcase = Showcase(lines=3)
    with (
        Platform(tmp_path, work=False) as platform,
        working(platform, tmp_path, showcase.answers),
        monitored(platform.url) as url,
        Client(platform.url) as client,
        httpx.Client(base_url=url, timeout=60, trust_env=False) as reader,
    ):
        job = client.submit(trial("HELD"))
        path = f"/jobs/{job.id}/steps/0/attempts/1/log"
        text = b""
        end = time.monotonic() + 60
        # For a second the monitor may still take the attempt for one that has not begun.
        answer = httpx.Response(404)
        while b"fs/held3.o" not in text or "kgym-log" not in answer.headers:
            assert time.monotonic() < end
            answer = reader.get(path, params={"from": len(text)})
            if answer.status_code == 200:
                text += answer.content
            time.sleep(0.1)
        assert answer.headers["kgym-log"] == "open"
        middle = text.index(b"held3")
        assert reader.get(path, params={"from": middle}).content == text[middle:]
        assert reader.get(path, params={"from": len(text) + 9}).content == b""
        showcase.let_go.set()
        client.wait(job.id)
        until(lambda: reader.get(f"/jobs/{job.id}?poll=yes"), 200)
        time.sleep(1)  # for as long as the monitor may take the attempt for a running one
        whole = reader.get(path)
        assert "kgym-log" not in whole.headers
        assert whole.content.startswith(text)
        assert whole.content == client.log(job.id, 0, 1).encode()


@pytest.mark.thorough
def test_pages_are_stale_soon_where_the_network_falls_silent(tmp_path: Path) -> None:
    """Nothing closes the connections: the answers of the scheduler and the agent stay away."""
    with (
        Platform(tmp_path, work=False) as platform,
        demo_agent(tmp_path, platform.url) as agent,
        SilentNetwork(platform.url) as to_scheduler,
        SilentNetwork(agent.url) as to_agent,
        monitored(to_scheduler.url, agent=to_agent.url) as url,
        httpx.Client(base_url=url, timeout=60, trust_env=False) as reader,
    ):
        run = agent.begin_run()
        agent.end(run)
        paths = ["/workers?poll=yes", f"/runs/{run}?poll=yes"]
        for path in paths:
            until(lambda path=path: reader.get(path), 200)  # type: ignore[misc]
        for network in (to_scheduler, to_agent):
            network.cut()
        for path in paths:
            begun = time.monotonic()
            until(lambda path=path: reader.get(path), 503)  # type: ignore[misc]
            assert time.monotonic() - begun < 20, path
        for network in (to_scheduler, to_agent):
            network.mend()
        begun = time.monotonic()
        for path in paths:
            until(lambda path=path: reader.get(path), 200)  # type: ignore[misc]
        assert time.monotonic() - begun < 30


@pytest.mark.anyio
async def test_any_number_of_readers_share_one_answer() -> None:
    shared, asked = SharedAnswers(), list[str]()

    def asking(key: str) -> Callable[[], Awaitable[str]]:
        async def ask() -> str:
            asked.append(key)
            await asyncio.sleep(0.05)
            if key == "refused":
                raise UserError("refused", "no")
            return key

        return ask

    for _ in range(2):
        answers = await asyncio.gather(*(shared.get("a", 60, asking("a")) for _ in range(50)))
        assert answers == ["a"] * 50
    assert asked == ["a"]
    left = asyncio.create_task(shared.get("b", 60, asking("b")))
    stayed = asyncio.create_task(shared.get("b", 60, asking("b")))
    await asyncio.sleep(0.01)
    left.cancel()  # who came first leaves; the other still gets its answer
    assert await stayed == "b"
    for _ in range(2):
        with pytest.raises(UserError):
            await shared.get("refused", 60, asking("refused"))
    await shared.get("soon stale", 0, asking("soon stale"))
    await shared.get("soon stale", 0, asking("soon stale"))
    assert asked == ["a", "b", "refused", "soon stale", "soon stale"]
