"""The way to a model: the key, the count, the limit, and the tape."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from kgym.bench.campaign import ModelAccess, Prices
from kgym_benchmark.campaign.model_proxy import ModelProxy
from kgym_benchmark.kenv.environment import MODEL_SOCKET

KEY = "sk-a-key-that-no-agent-may-see"


class Provider(ThreadingHTTPServer):
    """Answers as a provider does, and notes what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, dict(self.headers), body))
        usage = {"prompt_tokens": 1_000_000, "completion_tokens": 100_000}
        answer = {"choices": [f"answer {len(self.server.asked)}"], "usage": usage}
        if body.get("silent"):
            del answer["usage"]
        data = json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("set-cookie", "a=b")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as one:
        thread = threading.Thread(target=one.serve_forever, args=(0.05,))
        thread.start()
        yield one
        one.shutdown()
        thread.join()


@contextlib.asynccontextmanager
async def opened(
    provider: Provider, tape: Path, limit: float | None = None
) -> AsyncIterator[tuple[ModelProxy, httpx.AsyncClient]]:
    access = ModelAccess(
        endpoint=provider.url, key_env="KEY", prices=Prices(input=1.0, output=10.0)
    )
    async with ModelProxy(access, KEY, tape, limit) as proxy:
        way = httpx.AsyncHTTPTransport(uds=str(proxy.folder / MODEL_SOCKET))
        async with httpx.AsyncClient(transport=way, base_url="http://model") as client:
            yield proxy, client


async def ask(client: httpx.AsyncClient, word: str, **more: Any) -> httpx.Response:
    headers = {"authorization": "Bearer the campaign adds it", "x-mine": "kept"}
    body = {"prompt": word, **more}
    return await client.post("/v1/chat/completions?a=b", json=body, headers=headers)


@pytest.mark.attack
def test_the_key_is_added_outside_and_all_is_counted(provider: Provider, tmp_path: Path) -> None:
    async def go() -> tuple[list[httpx.Response], ModelProxy]:
        async with opened(provider, tmp_path / "tape") as (proxy, client):
            return [await ask(client, "a"), await ask(client, "b")], proxy

    answers, proxy = asyncio.run(go())
    assert [one.json()["choices"] for one in answers] == [["answer 1"], ["answer 2"]]
    path, headers, body = provider.asked[0]
    assert (path, body) == ("/v1/chat/completions?a=b", {"prompt": "a"})
    lower = {name.lower(): value for name, value in headers.items()}
    assert (lower["authorization"], lower["x-mine"]) == (f"Bearer {KEY}", "kept")
    assert all(KEY not in str(one.headers) + one.text for one in answers)
    assert "set-cookie" not in answers[0].headers
    assert (proxy.tokens, proxy.dollars) == (2_200_000, pytest.approx(4.0))
    assert KEY not in (tmp_path / "tape").read_text()


def test_what_was_asked_before_a_kill_is_not_asked_again(
    provider: Provider, tmp_path: Path
) -> None:
    tape = tmp_path / "tape"

    async def go(*words: str) -> tuple[list[str], float | None]:
        async with opened(provider, tape, limit=100) as (proxy, client):
            said = [(await ask(client, word)).json()["choices"][0] for word in words]
            return said, proxy.dollars

    first, _ = asyncio.run(go("a", "a", "b"))
    with tape.open("ab") as file:
        file.write(b'{"question": "half')
    again, dollars = asyncio.run(go("a", "b", "a", "c"))
    # The same question twice has both of its answers, in their order.
    assert again[:3] == [first[0], first[2], first[1]]
    assert again[3] == "answer 4"
    assert len(provider.asked) == 4
    assert dollars == pytest.approx(8.0)


@pytest.mark.attack
@pytest.mark.parametrize("silent", [False, True])
def test_at_the_limit_nothing_is_asked(provider: Provider, tmp_path: Path, silent: bool) -> None:
    """A model that does not say what it took is not taken to cost nothing."""

    async def go() -> tuple[list[int], ModelProxy]:
        async with opened(provider, tmp_path / "tape", limit=3.0) as (proxy, client):
            more = {"silent": True} if silent else {}
            answers = [(await ask(client, str(n), **more)).status_code for n in range(3)]
            assert proxy.exhausted.is_set()
            return answers, proxy

    answers, proxy = asyncio.run(go())
    assert answers == ([200, 402, 402] if silent else [200, 200, 402])
    assert proxy.refusal is not None
    assert ("not known" in proxy.refusal) == silent
    assert (proxy.dollars is None) == silent


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
