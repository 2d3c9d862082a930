"""The agent over REST: its client, its callers, and requests that are wrong."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kgym.api.agent.runs import Limits, RunFilter, RunState
from kgym.client import Refused
from kgym.client.agent_client import AgentClient
from kgym.errors import InfrastructureError, UserError
from kgym.web import event_stream
from kgym.web.callers import Tokens
from kgym.web.request_limits import RequestLimits
from kgym.web.scheduler_tokens import SchedulerTokens
from kgym.web.scopes import Caller, Scope
from kgym.web.server import serve
from kgym_cli.platforms.embedded_platform import Platform
from kgym_crashfixer.api.app import create_app
from kgym_crashfixer.runs import views
from kgym_scheduler.database import tokens
from kgym_scheduler.database.connection import Database
from tests.conftest import NEARBY
from tests.crashfixer.agents import BUG, Guesser, Made, agent, new_limit, request
from tests.tables import json_rows, rows

pytestmark = pytest.mark.anyio


class Known:
    """Callers by their tokens; `local` has none."""

    def __init__(self, **scopes: str) -> None:
        self.scopes = scopes

    async def anybody(self) -> Caller | None:
        return await self.caller("local")

    async def caller(self, token: str) -> Caller | None:
        known = self.scopes.get(token)
        return Caller(token, frozenset([Scope(known)])) if known else None


LOCAL = Known(local="admin")


@asynccontextmanager
async def plain(folder: Path, **how: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Made]]:
    """An agent service, and a plain HTTP client for it."""
    async with (
        served(folder, **how) as (url, made),
        httpx.AsyncClient(base_url=url, **NEARBY) as http,
    ):
        yield http, made


@asynccontextmanager
async def served(
    folder: Path,
    model: Guesser | None = None,
    tokens: Tokens = LOCAL,
    limits: RequestLimits | None = None,
    **how: Any,
) -> AsyncIterator[tuple[str, Made]]:
    """An agent service on loopback; its URL."""
    async with (
        agent(folder, model or Guesser(), **how) as made,
        serve(create_app(made.agent, tokens, limits)) as address,
    ):
        yield address.url, made


@pytest.mark.thorough
async def test_a_run_is_started_followed_and_shown_over_rest(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, made), AgentClient(url) as client:
        run = await client.start(request())
        events = [event async for event in client.follow(run)]
        rest = [event async for event in client.follow(run, after=events[-3].number)]
        view = await client.show(run)
        assert view == await made.agent.show(run)
        assert events == [event async for event in made.agent.follow(run)]
        assert rest == events[-2:]
        assert (await client.page(None, 5, None)).runs[0].id == run
        assert (await client.page(None, 5, RunFilter(state=RunState.FAILED))).runs == []
        calls = await client.calls(run, "t0")
        assert {call.node for call in calls} == {"t0"}
        assert calls[0].reply is not None
        assert (await client.node(run, "t0")).hypothesis == "The limit 99 is wrong."
        assert (await client.patch(run, author="A B <a@b.c>")).count("From: A B <a@b.c>") == 1
        assert new_limit((await client.report(run)).fix.diff) == "16"


@pytest.mark.thorough
async def test_a_run_is_stopped_and_resumed_over_rest(tmp_path: Path) -> None:
    async with served(tmp_path, Guesser(pause=60)) as (url, _), AgentClient(url) as client:
        run = await client.start(request())
        await client.stop(run)
        assert [event async for event in client.follow(run)]
        assert (await client.show(run)).state is RunState.STOPPED
    async with served(tmp_path) as (url, _), AgentClient(url) as client:
        await client.resume(run, Limits(tokens=1000))
        assert [event async for event in client.follow(run)]
        view = await client.show(run)
        assert (view.state, view.limits.tokens) == (RunState.LIMITED, 1000)
        assert [run.id for run in (await client.page(None, 1, None)).runs] == [run]


@pytest.mark.thorough
async def test_a_run_begun_again_with_its_idempotency_key_is_the_same_one(tmp_path: Path) -> None:
    tokens = Known(local="admin", bob="submit")
    async with served(tmp_path, Guesser(pause=60), tokens) as (url, made):
        async with AgentClient(url) as client, AgentClient(url, "bob") as bob:
            same = await asyncio.gather(*(client.start(request(), "k") for _ in range(3)))
            assert len(set(same)) == 1
            with pytest.raises(Refused, match=f"was used for run {same[0]} .* new key") as caught:
                await client.start(request(tokens=5), "k")
            assert caught.value.reason == "key_reused"
            others = [await bob.start(request(), "k"), await client.start(request())]
            assert len({same[0], *others}) == 3
        async with httpx.AsyncClient(base_url=url) as plain:
            body, headers = request().model_dump(mode="json"), {"Idempotency-Key": "k"}
            again = await plain.post("/v1/runs", json=body, headers=headers)
            assert (again.status_code, again.json()["id"]) == (200, same[0])
            bad = await plain.post("/v1/runs", json=body, headers={"Idempotency-Key": "a b"})
            assert bad.status_code == 422
        assert len((await made.agent.page(None, 10)).runs) == 3


@pytest.mark.thorough
@pytest.mark.parametrize(("most_bytes", "limit"), [(1, 100), (1 << 20, 1), (1 << 20, 3)])
async def test_questions_come_in_pages_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int, limit: int
) -> None:
    monkeypatch.setattr(views, "_PAGE_BYTES", most_bytes)
    async with served(tmp_path) as (url, made), AgentClient(url) as client:
        await made.agent.wait(await client.start(request()))
        every = await client.calls(1)
        assert every == await made.agent.calls(1)
        names, query = [], {"cursor": 0, "limit": limit}
        async with httpx.AsyncClient(base_url=url) as http:
            while query["cursor"] is not None:
                page = (await http.get("/v1/runs/1/calls", params=query)).json()
                query["cursor"] = page["next"]
                names.append([call["name"] for call in page["calls"]])
        assert [name for part in names for name in part] == [call.name for call in every]
        assert {len(part) for part in names[:-1]} == {min(limit, 1 if most_bytes == 1 else limit)}


async def test_pages_follow_each_other(tmp_path: Path) -> None:
    async with served(tmp_path, crashes=False) as (url, made), AgentClient(url) as client:
        for _ in range(3):
            await made.agent.wait(await client.start(request()))
        first = await client.page(None, 2, None)
        assert [run.id for run in first.runs] == [3, 2]
        assert [run.id for run in (await client.page(first.next, 2, None)).runs] == [1]


BODY = {"bug": BUG, "model": "made:up", "strategy": "forest"}
# A bundle of one's own that is sent along.
FILES = {
    "bug.toml": Path(__file__).with_name("sent_bundle.toml").read_text(),
    "own.config": "CONFIG_A=y\n",
    "repro.c": "int main(void) { return 0; }\n",
    "fix.patch": "--- a/f.c\n+++ b/f.c\n@@ -1 +1 @@\n-a\n+b\n",
}


def sent(was: str = "", now: str = "", **more: str) -> dict[str, Any]:
    """A request with a bundle in which a word is another one."""
    files = FILES | {"bug.toml": FILES["bug.toml"].replace(was, now)} | more
    return BODY | {"bug": "mine", "bundle": files}


CONFIG = 'base = "allnoconfig"\nfragments = ["own.config"]'
HISTORY = '\n[history]\nurl = "/srv/linux"\ncommit = "v6.1"\n'
USE = 'title = "x"\n[kernel]\nuse = "../../../etc/kernel"\n'
ESCALATE = {"kind": "escalate", "phases": [{"strategy": "/etc/passwd.toml"}]}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        *((BODY | more, reason) for more, reason in json_rows(__file__, "wrong_requests.jsonl")),
        *((sent(*words), "bad_bundle") for words in rows(__file__, "paths_in_bundles.tsv")),
        (json.dumps(BODY | {"limits": {"dollars": float("inf")}}), "invalid_request"),
        (BODY | {"strategy": ESCALATE}, "invalid_request"),
        (BODY | {"bug": "a\0b", "bundle": FILES}, "bad_bundle"),
        (BODY | {"bug": "\U0001f41b" * 100, "bundle": FILES}, "bad_bundle"),
        (sent(CONFIG, 'config = "/etc/passwd"'), "bad_bundle"),
        (sent(FILES["bug.toml"], USE), "bad_bundle"),
        (sent(FILES["bug.toml"], FILES["bug.toml"] + HISTORY), "bad_bundle"),
        (sent(**{"repro.c/x": "a file in a file"}), "bad_bundle"),
        (sent(**{"x" * 300: "a long name"}), "bad_bundle"),
        ("[" * 10_000, "invalid_request"),
        ("{", "invalid_request"),
        ("\ud800".encode("utf-8", "surrogatepass"), "invalid_request"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_wrong_request_is_answered_with_a_problem(
    tmp_path: Path, body: Any, reason: str
) -> None:
    async with plain(tmp_path) as (http, made):
        how = {"json": body} if isinstance(body, dict) else {"content": body}
        response = await http.post("/v1/runs", headers={"Content-Type": "application/json"}, **how)
        assert (response.status_code, response.json()["reason"]) == (422, reason), response.text
        assert response.headers["content-type"] == "application/problem+json"
        assert "root:" not in response.text
        assert (await made.agent.page(None, 5, None)).runs == []


TREE = FILES["bug.toml"].replace(
    f'tarball = "https://example.org/linux.tar"\nsha256 = "{"0" * 64}"', 'tree = "TREE"'
)
GIT = TREE.replace('tree = "TREE"', 'git = "TREE"\ncommit = "c0ffee"')
DISK = f'\n[vm.root]\nurl = "TREE"\nsha256 = "{"0" * 64}"\nformat = "raw"\n'
UNDER_OTHER_NAMES = ("./bug.toml", "bug.toml/", ".//bug.toml", "././bug.toml", "x/../bug.toml")


@pytest.mark.thorough
@pytest.mark.attack
@pytest.mark.parametrize(
    "files",
    [
        {"bug.toml": TREE},
        *({name: TREE} for name in (*UNDER_OTHER_NAMES, "/bug.toml", "//bug.toml", "bug.toml/.")),
        *({"bug.toml": FILES["bug.toml"], name: TREE} for name in UNDER_OTHER_NAMES),
        *({name: TREE} for name in ("BUG.toml", "bug\uff0etoml", "bug.toml ")),
        {"bug.toml": TREE.replace("TREE", "~/tree")},
        {"bug.toml": TREE.replace("TREE", "https://x/../../TREE")},
        {"bug.toml": TREE.replace("TREE", "\\u007e/tree")},
        *(
            {"bug.toml": base.replace("TREE", place)}
            for base in (GIT, FILES["bug.toml"] + DISK)
            for place in ("TREE", "~/tree", "file://TREE", "../tree", "HTTPS:TREE", "ext::sh -c id")
        ),
        {"bug.toml": FILES["bug.toml"], "bug.toml\0": TREE},
        {"bug.toml": FILES["bug.toml"], "own.config": "\ud800"},
        {"bug.toml": FILES["bug.toml"], "\ud800": ""},
        {"bug.toml": f"a{'.a' * 50_000} = 1"},
        {"bug.toml": f"a = {'[' * 50_000}"},
        {"bug.toml": f"a = {'{a=' * 50_000}"},
        {"bug.toml": f"a = {'1' * 5_000}"},
        {"bug.toml": FILES["bug.toml"] + "#" * (1 << 20)},
        {"bug.toml": FILES["bug.toml"] + f"{'k' * 100_000} = 1"},
    ],
    ids=lambda files: ascii(list(files))[:40],
)
async def test_a_bundle_that_was_sent_reads_nothing_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    data, tree = tmp_path / "data", tmp_path / "tree"
    monkeypatch.setenv("KGYM_DATA", str(data))
    monkeypatch.setenv("HOME", str(tmp_path))
    tree.mkdir()
    (tree / "Makefile").write_text("VERSION = 6\nPATCHLEVEL = 1\n")
    (tree / "Kconfig").touch()
    sent = {name: text.replace("TREE", str(tree)) for name, text in files.items()}
    body = BODY | {"bug": "mine", "bundle": {**FILES, "bug.toml": "", **sent}}
    if "bug.toml" not in sent:
        del body["bundle"]["bug.toml"]
    async with plain(tmp_path / "agent") as (http, made):
        headers = {"Content-Type": "application/json"}
        response = await http.post("/v1/runs", content=json.dumps(body), headers=headers)
        answer = response.json()
        assert response.status_code == 422, answer
        assert answer["reason"] in {"bad_bundle", "no_such_bug", "invalid_request"}, answer
        assert len(response.text) < 2000
        assert (await made.agent.page(None, 5)).runs == []
    assert not list(tmp_path.rglob("*.git"))


async def test_a_bundle_can_be_sent_along(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, made), AgentClient(url) as client:
        wanted = request().model_copy(update={"bug": "mine", "bundle": FILES})
        run = await client.start(wanted)
        assert await made.agent.wait(run) is RunState.RESOLVED
        assert (await client.show(run)).bug == "mine"


@pytest.mark.parametrize(("method", "path", "status"), json_rows(__file__, "missing_paths.jsonl"))
async def test_what_is_not_there_is_a_problem_too(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    async with plain(tmp_path) as (http, _):
        response = await http.request(method, path)
        assert (response.status_code, response.json()["status"]) == (status, status)


async def test_a_body_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    async with plain(tmp_path) as (http, _):
        headers = {"Content-Type": "application/json"}
        response = await http.post("/v1/runs", content=b"x" * (17 << 20), headers=headers)
        assert (response.status_code, response.json()["reason"]) == (413, "body_too_large")

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(17):
                yield b"x" * (1 << 20)

        response = await http.post("/v1/runs", content=chunks(), headers=headers)
        assert response.status_code == 413


@pytest.mark.attack
async def test_who_may_do_what(tmp_path: Path) -> None:
    callers = Known(alice="submit", bob="submit", reader="read", root="admin", farm="worker")
    async with plain(tmp_path, model=Guesser(pause=60), tokens=callers) as (http, _):

        async def asked(who: str, method: str, path: str, **more: Any) -> int:
            headers = {"Authorization": f"Bearer {who}"} if who else {}
            return (await http.request(method, path, headers=headers, **more)).status_code

        body = request().model_dump(mode="json")
        assert await asked("", "GET", "/v1/runs") == 401
        assert await asked("stranger", "GET", "/v1/runs") == 401
        assert await asked("farm", "GET", "/v1/runs") == 403
        assert await asked("reader", "POST", "/v1/runs", json=body) == 403
        assert await asked("alice", "POST", "/v1/runs", json=body) == 201
        assert await asked("reader", "GET", "/v1/runs/1") == 200
        assert await asked("reader", "POST", "/v1/runs/1/stop") == 403
        assert await asked("bob", "POST", "/v1/runs/1/stop") == 403
        assert await asked("bob", "POST", "/v1/runs/1/resume") == 403
        assert await asked("root", "POST", "/v1/runs/1/stop") == 200
        assert await asked("", "GET", "/healthz") == 200


@pytest.mark.attack
async def test_one_caller_has_its_share_of_requests_and_no_more(tmp_path: Path) -> None:
    tokens = Known(alice="read", bob="read")
    limits = RequestLimits(requests_per_second=0.01, burst=3)
    async with plain(tmp_path, tokens=tokens, limits=limits) as (http, _):
        alice, bob = ({"Authorization": f"Bearer {name}"} for name in ("alice", "bob"))
        response = [await http.get("/v1/runs", headers=alice) for _ in range(4)]
        assert [response.status_code for response in response] == [200, 200, 200, 429]
        assert response[-1].json()["reason"] == "too_many_requests"
        assert int(response[-1].headers["retry-after"]) > 0
        assert (await http.get("/v1/runs", headers=bob)).status_code == 200
        strangers = [await http.get("/v1/runs", headers={"Authorization": "no"}) for _ in range(4)]
        assert [response.status_code for response in strangers] == [401, 401, 401, 429]


@pytest.mark.attack
async def test_one_caller_has_its_share_of_event_streams_and_no_more(tmp_path: Path) -> None:
    async with (
        served(tmp_path, Guesser(pause=60), limits=RequestLimits(streams=1)) as (url, _),
        AgentClient(url) as client,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        run = await client.start(request())
        path = f"/v1/runs/{run}/events"
        async with http.stream("GET", path) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            response = await http.get(path)
            assert (response.status_code, response.json()["reason"]) == (429, "too_many_streams")


@pytest.mark.attack
async def test_a_head_without_an_end_is_not_read_for_ever(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, _):
        parts = httpx.URL(url)
        reader, writer = await asyncio.open_connection(parts.host, parts.port)
        writer.write(b"GET /v1/runs HTTP/1.1\r\nX: " + b"x" * (64 << 10))
        assert b" 431 " in (await reader.read(1 << 16)).splitlines()[0]
        writer.close()


@pytest.mark.attack
async def test_a_page_of_another_site_is_refused(tmp_path: Path) -> None:
    async with plain(tmp_path) as (http, _):
        for headers in (
            {"Origin": "https://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": "evil.example"},
        ):
            response = await http.get("/v1/runs", headers=headers)
            assert (response.status_code, response.json()["reason"]) == (403, "foreign_page")


@pytest.mark.thorough
async def test_the_scheduler_knows_the_tokens(tmp_path: Path) -> None:
    with Platform(tmp_path, work=False) as platform:
        async with SchedulerTokens(platform.url) as asked:
            anybody = await asked.anybody()
        assert anybody is not None
        assert anybody.owner is None
        database = Database(f"sqlite+aiosqlite:///{tmp_path / 'kgym.db'}")
        token = await tokens.Tokens(database).create("alice", ["submit"])
        worker = await tokens.Tokens(database).create("farm", ["worker"])
        await database.close()
    with Platform(tmp_path, work=False) as platform:
        async with SchedulerTokens(platform.url) as asked:
            known = await asked.caller(token)
            assert known is not None
            assert (known.name, known.scopes, known.owner) == ("alice", {"submit"}, "alice")
            for unknown in (worker, f"{token}x", "", "ä"):
                assert await asked.caller(unknown) is None
            assert await asked.anybody() is None


async def test_a_scheduler_that_is_away_closes_the_door_and_says_so(tmp_path: Path) -> None:
    async with (
        SchedulerTokens("http://127.0.0.1:1") as tokens,
        plain(tmp_path, tokens=tokens) as (http, _),
    ):
        response = await http.get("/v1/runs", headers={"Authorization": "Bearer x"})
        assert (response.status_code, response.json()["reason"]) == (503, "scheduler_away")
        assert response.headers["retry-after"] == "1"


async def test_an_agent_that_is_away_is_said_to_be(tmp_path: Path) -> None:
    async with AgentClient("http://127.0.0.1:1") as client:
        with pytest.raises(InfrastructureError, match="no answer from the agent"):
            await client.show(1)
    async with served(tmp_path) as (url, _), AgentClient(url) as client:
        with pytest.raises(UserError, match="there is no run 7"):
            await client.show(7)
        with pytest.raises(UserError, match="there is no run 7"):
            [event async for event in client.follow(7)]


async def test_lists_are_filtered_and_say_what_runs_took(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, made), AgentClient(url) as client:
        run = await client.start(request())
        await made.agent.wait(run)
        view = await client.show(run)
        (listed,) = (await client.page(None, 5)).runs
        assert listed.spent == view.spent
        assert listed.spent.builds > 0
        assert listed.spent.dollars == 0.5 * listed.spent.calls
        for kept in (RunFilter(bug=BUG), RunFilter(model="made:up"), RunFilter(submitter="local")):
            assert [listed.id for listed in (await client.page(None, 5, kept)).runs] == [run]
        for none in (RunFilter(bug="x"), RunFilter(strategy="x"), RunFilter(submitter="x")):
            assert (await client.page(None, 5, none)).runs == []


async def test_steps_say_what_a_cycle_did_and_for_what(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, made), AgentClient(url) as client:
        run = await client.start(request())
        await made.agent.wait(run)
        steps = await client.steps(run, "t0")
        assert [step.work for step in steps][:2] == ["hypothesis", "hypothesis"]
        assert {"patch", "check", "repair", "try"} <= {step.work for step in steps}
        assert {step.node for step in steps} == {"t0"}
        assert all(step.ended_at is not None for step in steps)
        calls = {step.name for step in await client.calls(run, "t0")}
        asked = [step for step in steps if step.work not in {"check", "try"}]
        assert {step.name for step in asked} == calls
        assert {(step.tokens, step.price) for step in asked} == {(110, 0.5)}
        tried = next(step for step in steps if step.work == "try")
        assert tried.outcome.startswith("same_crash: ")
        assert tried.jobs
        assert await client.steps(run, "t") == []


async def test_questions_and_answers_are_searched(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, made), AgentClient(url) as client:
        run = await client.start(request())
        await made.agent.wait(run)
        every = await client.calls(run)
        names = [call.name for call in every]
        assert [call.name for call in (await client.search(run)).calls] == names
        matches = (await client.search(run, "LIMIT 99 IS wrong")).calls
        assert {(call.purpose, call.part) for call in matches} >= {("hypothesis", "answer")}
        assert all("limit 99 is wrong" in call.excerpt for call in matches)
        assert (await client.search(run, "nobody says this")).calls == []
        first = await client.search(run, "limit", limit=1)
        assert first.next is not None
        second = await client.search(run, "limit", cursor=first.next, limit=1)
        assert [call.name for call in first.calls + second.calls] == names[:2]
        patches = (await client.search(run, node="t0", purpose="patch")).calls
        assert {(call.node, call.purpose) for call in patches} == {("t0", "patch")}
        whole = await client.call(run, matches[0].name)
        assert whole == next(call for call in every if call.name == whole.name)
        with pytest.raises(Refused, match="no call"):
            await client.call(run, "t0/99-patch")


async def test_a_run_says_what_it_waits_for_and_from_where_to_follow_it(tmp_path: Path) -> None:
    async with served(tmp_path, slow=60) as (url, _), AgentClient(url) as client:
        run = await client.start(request())
        async for event in client.follow(run):
            if event.kind == "asked" and event.data["work"] == "try":
                break
        view = await client.show(run)
        assert view.nodes[0].doing == ["try"]
        await client.stop(run)
        rest = [event.number async for event in client.follow(run, view.position)]
        assert rest[0] == view.position + 1
        ended = await client.show(run)
        assert (ended.position, ended.nodes[0].doing) == (rest[-1], [])


@pytest.mark.thorough
async def test_a_stream_that_says_nothing_for_a_while_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "PING_SECONDS", 0.1)
    async with served(tmp_path, slow=0.5) as (url, _), AgentClient(url) as client:
        run = await client.start(request())
        assert [event.kind async for event in client.follow(run)][-1] == "ended"
