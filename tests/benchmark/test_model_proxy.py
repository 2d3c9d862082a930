"""The way to a model: the key, the count, the limit, and the tape."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kgym.bench.campaign import ModelAccess, Prices
from kgym_benchmark.campaign import model_proxy
from kgym_benchmark.campaign.model_proxy import AT_ONCE, ModelProxy
from kgym_benchmark.kenv.environment import MODEL_SOCKET
from tests.benchmark.model_provider import Provider

KEY = "sk-a-key-that-no-agent-may-see"


@contextlib.asynccontextmanager
async def opened(
    provider: Provider, tape: Path, limit: float | None = None, key: str = KEY
) -> AsyncIterator[tuple[ModelProxy, httpx.AsyncClient]]:
    prices = Prices(input=1.0, output=10.0)
    access = ModelAccess(endpoint=provider.url, key_env="KEY", prices=prices, names=["gpt-5-mini"])
    async with ModelProxy("openai/gpt-5", access, key, tape, limit) as proxy:
        way = httpx.AsyncHTTPTransport(uds=str(proxy.folder / MODEL_SOCKET))
        async with httpx.AsyncClient(transport=way, base_url="http://model", timeout=60) as client:
            yield proxy, client


async def ask(client: httpx.AsyncClient, word: str, **more: Any) -> httpx.Response:
    headers = {
        "authorization": "Bearer the campaign adds it",
        "accept": "text/event-stream",
        "x-mine": "dropped",
    }
    body = {"model": "gpt-5", "prompt": word, **more}
    return await client.post("/v1/chat/completions?alt=sse&a=b", json=body, headers=headers)


@pytest.mark.attack
def test_the_key_is_added_outside_and_all_is_counted(provider: Provider, tmp_path: Path) -> None:
    async def go() -> tuple[list[httpx.Response], ModelProxy]:
        async with opened(provider, tmp_path / "tape") as (proxy, client):
            return [await ask(client, "a"), await ask(client, "b")], proxy

    answers, proxy = asyncio.run(go())
    assert [response.json()["choices"] for response in answers] == [["answer 1"], ["answer 2"]]
    path, headers, body = provider.asked[0]
    assert (path, body["prompt"]) == ("/v1/chat/completions?alt=sse", "a")
    lower = {name.lower(): value for name, value in headers.items()}
    assert (lower["authorization"], lower["accept"]) == (f"Bearer {KEY}", "text/event-stream")
    assert "x-mine" not in lower
    assert all(KEY not in str(response.headers) + response.text for response in answers)
    assert "set-cookie" not in answers[0].headers
    assert (proxy.tokens, proxy.dollars) == (2_200_000, pytest.approx(4.0))
    assert KEY not in (tmp_path / "tape").read_text()


@pytest.mark.thorough
def test_what_was_asked_before_a_kill_is_not_asked_again(
    provider: Provider, tmp_path: Path
) -> None:
    tape = tmp_path / "tape"

    async def go(*words: str) -> tuple[list[str], float | None]:
        async with opened(provider, tape, limit=100) as (proxy, client):
            choices = [(await ask(client, word)).json()["choices"][0] for word in words]
            return choices, proxy.dollars

    first, _ = asyncio.run(go("a", "a", "b"))
    with tape.open("ab") as file:
        file.write(b'{"question": "half')
    again, dollars = asyncio.run(go("a", "b", "a", "c"))
    # The same question twice has both of its answers, in their order.
    assert again[:3] == [first[0], first[2], first[1]]
    assert again[3] == "answer 4"
    assert len(provider.asked) == 4
    assert dollars == pytest.approx(8.0)


@pytest.mark.thorough
@pytest.mark.attack
@pytest.mark.parametrize("silent", [False, True])
def test_at_the_limit_nothing_is_asked(provider: Provider, tmp_path: Path, silent: bool) -> None:
    """A model that does not say what it took is not taken to cost nothing."""

    async def go() -> tuple[list[int], ModelProxy]:
        async with opened(provider, tmp_path / "tape", limit=3.0) as (proxy, client):
            more = {"user": "silent"} if silent else {}
            answers = [(await ask(client, str(n), **more)).status_code for n in range(3)]
            assert proxy.exhausted.is_set()
            return answers, proxy

    answers, proxy = asyncio.run(go())
    assert answers == ([200, 402, 402] if silent else [200, 200, 402])
    assert proxy.refusal is not None
    assert ("unknown" in proxy.refusal) == silent
    assert (proxy.dollars is None) == silent


@pytest.mark.thorough
def test_what_a_provider_refuses_is_passed_on_and_not_kept(
    provider: Provider, tmp_path: Path
) -> None:
    provider.status = 429

    async def go() -> int:
        async with opened(provider, tmp_path / "tape", limit=1.0) as (proxy, client):
            answer = await ask(client, "a")
            assert proxy.dollars == 0
            return answer.status_code

    assert asyncio.run(go()) == 429
    assert not (tmp_path / "tape").exists()


@pytest.mark.thorough
@pytest.mark.attack
@pytest.mark.parametrize("status", [200, 401])
@pytest.mark.parametrize("key", [KEY, "short"])
def test_an_endpoint_that_quotes_the_key_does_not_pass_it_on(
    provider: Provider, tmp_path: Path, status: int, key: str
) -> None:
    provider.status = status

    async def go() -> tuple[httpx.Response, float | None]:
        async with opened(provider, tmp_path / "tape", key=key) as (proxy, client):
            return await ask(client, "a", user="echo"), proxy.dollars

    answer, dollars = asyncio.run(go())
    text = f"Bearer {key}"
    # An answer is withheld and never rewritten: a short key may stand in its code.
    expected = (502, None) if (status, key) == (200, KEY) else (status, [text.replace(KEY, "…")])
    assert (answer.status_code, answer.json().get("choices")) == expected
    assert dollars == (2.0 if status == 200 else 0.0)
    assert (tmp_path / "tape").exists() == (status == 200 and key != KEY)


@pytest.mark.thorough
@pytest.mark.attack
def test_an_agent_that_asks_all_at_once_goes_hardly_beyond_the_limit(
    provider: Provider, tmp_path: Path
) -> None:
    async def go() -> tuple[list[int], float | None]:
        async with opened(provider, tmp_path / "tape", limit=1.0) as (proxy, client):
            provider.hold.clear()
            asked = [asyncio.create_task(ask(client, str(number))) for number in range(20)]
            while len(provider.asked) < AT_ONCE:
                await asyncio.sleep(0.01)
            provider.hold.set()
            return [(await answer).status_code for answer in asked], proxy.dollars

    answers, dollars = asyncio.run(go())
    assert Counter(answers) == {200: AT_ONCE, 402: 20 - AT_ONCE}
    assert len(provider.asked) == AT_ONCE
    assert dollars == pytest.approx(2.0 * AT_ONCE)


@pytest.mark.thorough
@pytest.mark.attack
def test_what_was_asked_as_the_agent_ended_is_counted(provider: Provider, tmp_path: Path) -> None:
    async def go() -> ModelProxy:
        provider.hold.clear()
        async with opened(provider, tmp_path / "tape") as (proxy, client):
            asked = asyncio.create_task(ask(client, "a"))
            while not provider.asked:
                await asyncio.sleep(0.01)
            asked.cancel()
            asyncio.get_running_loop().call_later(0.1, provider.hold.set)
        return proxy

    assert asyncio.run(go()).dollars == pytest.approx(2.0)


@pytest.mark.attack
def test_another_model_is_not_asked_under_this_ones_name(
    provider: Provider, tmp_path: Path
) -> None:
    async def go() -> list[httpx.Response]:
        async with opened(provider, tmp_path / "tape") as (_, client):
            models = ("gpt-5", "gpt-5-mini", "openai/gpt-5", "gpt-5-pro")
            return [await ask(client, name, model=name) for name in models]

    *passed, refused = asyncio.run(go())
    assert [response.status_code for response in passed] == [200, 200, 200]
    assert refused.status_code == 403
    assert "not gpt-5-pro" in refused.json()["error"]["message"]
    assert len(provider.asked) == 3


@pytest.mark.thorough
@pytest.mark.attack
def test_a_tape_does_not_fill_the_disk(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_proxy, "TAPE_BYTES", 1000)

    async def go() -> list[int]:
        async with opened(provider, tmp_path / "tape") as (_, client):
            return [(await ask(client, str(number))).status_code for number in range(6)]

    answers = asyncio.run(go())
    assert answers[0] == 200
    assert answers[-1] == 402
    assert (tmp_path / "tape").stat().st_size < 2000
