"""Models of providers, over real HTTP; and tapes of them."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kgym.api.agent.conversation import Reply, ToolCall, ToolSpec, Turn
from kgym.errors import UserError
from kgym_cli.agents import agent_models
from kgym_crashfixer import strategies
from kgym_crashfixer.models import provider, tape
from kgym_crashfixer.models.model import Call, ModelError
from kgym_crashfixer.models.provider import GO_ON, Provided
from kgym_crashfixer.models.tape import Recorder, Replay
from kgym_crashfixer.prompts import Prompt
from tests.refused import refused

# The first question in a process imports the client of all providers, which takes seconds.
pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

KEY = "sk-very-secret-key"
CALL = Call(Prompt("hypothesis", "You mend kernels.", "Why?"), temperature=0.8)
TOOL = ToolSpec(name="check", description="Compile", parameters={"type": "object"})
Handle = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Speaks as OpenAI's chat completions do; the test says how."""

    protocol_version = "HTTP/1.1"
    server: "Endpoint"
    body: dict[str, Any]

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(self.body)
        script = self.server.script
        (script.pop(0) if len(script) > 1 else script[0])(self)

    def say(self, status: int, body: object, **headers: str) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class Endpoint(ThreadingHTTPServer):
    """An endpoint on loopback."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[Handle] = [answer("because")]
        self.asked: list[dict[str, Any]] = []

    def handle_error(self, *_: object) -> None:
        pass


def answer(
    text: str | None, calls: list[dict[str, Any]] | None = None, model: str = "gpt-4o"
) -> Handle:
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    return lambda handler: handler.say(
        200,
        {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": 1000,
                "completion_tokens": 200,
                "total_tokens": 1200,
                "prompt_tokens_details": {"cached_tokens": 400},
            },
        },
    )


def refuse(status: int, message: str = "no", **headers: str) -> Handle:
    error = {"error": {"message": message, "type": "x", "code": "x"}}
    return lambda handler: handler.say(status, error, **headers)


def drop(handler: Handler) -> None:
    handler.close_connection = True
    handler.connection.close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


async def asked(endpoint: Endpoint, *script: Handle, call: Call = CALL, times: int = 1) -> Reply:
    endpoint.script = list(script)
    url = f"http://127.0.0.1:{endpoint.server_port}/v1"
    model = Provided(f"openai-chat:gpt-4o@{url}", KEY, first_pause=0.01)
    try:
        for _ in range(times):
            reply = await model.ask(call)
        return reply
    finally:
        await model.close()


async def test_an_answer_comes_with_what_it_took(endpoint: Endpoint) -> None:
    reply = await asked(endpoint, answer("because"))
    assert (reply.text, reply.model, reply.finish) == ("because", "gpt-4o", "stop")
    assert (reply.input_tokens, reply.cached_tokens, reply.output_tokens) == (1000, 400, 200)
    (body,) = endpoint.asked
    assert body["temperature"] == 0.8
    assert [sent["role"] for sent in body["messages"]] == ["system", "user"]


def message(handler: Handler) -> None:
    """Answer as Anthropic does, in pieces."""
    usage = {"input_tokens": 10, "cache_read_input_tokens": 7, "output_tokens": 2}
    begun = {"id": "1", "type": "message", "role": "assistant", "content": [], "usage": usage}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": begun | {"model": "claude-sonnet-4-5"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "because"},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    texts = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    data = "".join(texts).encode()
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


@pytest.mark.parametrize("tools", [(), (TOOL,)])
async def test_what_questions_have_in_common_is_marked_where_a_provider_wants_that(
    endpoint: Endpoint, tools: tuple[ToolSpec, ...]
) -> None:
    endpoint.script = [message]
    url = f"http://127.0.0.1:{endpoint.server_port}"
    model = Provided(f"anthropic:claude-sonnet-4-5@{url}", KEY, first_pause=0.01)
    prompt = Prompt("patch", "You mend kernels.", "<code></code>\nWhy?", begins=14)
    try:
        reply = await model.ask(Call(prompt, tools=tools))
    finally:
        await model.close()
    assert reply.text == "because"
    assert reply.cached_tokens == 7
    ((shared, own),) = [sent["content"] for sent in endpoint.asked[0]["messages"]]
    assert (shared["text"], own["text"]) == ("<code></code>\n", "Why?")
    assert shared["cache_control"]["type"] == "ephemeral"
    assert ("cache_control" in own) is bool(tools)


async def test_an_unknown_price_is_not_zero(endpoint: Endpoint) -> None:
    reply = await asked(endpoint, answer("x", model="nobodys-model-7"))
    assert reply.price is None


async def test_tools_are_called_and_their_results_sent_back(endpoint: Endpoint) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "check", "arguments": '{"x": 1}'}}
    bad = {"id": "b", "type": "function", "function": {"name": "check", "arguments": "{{"}}
    turns = [
        Turn(calls=[ToolCall(id="z", name="check", arguments={})], results={"z": "it compiles"})
    ]
    talk = Call(CALL.prompt, turns, [TOOL])
    reply = await asked(endpoint, answer(None, [call, bad]), call=talk)
    assert [made.arguments for made in reply.calls] == [{"x": 1}, "{{"]
    (body,) = endpoint.asked
    assert body["messages"][-1]["content"] == "it compiles"
    assert body["tools"][0]["function"]["name"] == "check"


async def test_what_came_of_an_answer_without_a_tool_call_is_sent_back(endpoint: Endpoint) -> None:
    turns = [Turn(text="a patch", results={"": "edited"}), Turn(text="hm")]
    await asked(endpoint, answer("x"), call=Call(CALL.prompt, turns, [TOOL]))
    sent = [message["content"] for message in endpoint.asked[0]["messages"][-3:]]
    assert sent == [f"edited\n{GO_ON}", "hm", GO_ON]


@pytest.mark.parametrize(
    "fault",
    [refuse(429, Retry_After="0"), refuse(429), refuse(500), refuse(503, Retry_After="0"), drop],
)
async def test_what_may_go_better_is_tried_again(endpoint: Endpoint, fault: Handle) -> None:
    reply = await asked(endpoint, fault, fault, answer("at last"))
    assert reply.text == "at last"
    assert len(endpoint.asked) == 3


async def test_as_long_as_the_provider_asks_for_nothing_is_sent(endpoint: Endpoint) -> None:
    begun = time.monotonic()
    await asked(endpoint, refuse(429, Retry_After="1"), answer("x"))
    assert time.monotonic() - begun >= 1


@pytest.mark.parametrize(
    ("fault", "reason", "fatal"),
    [
        (refuse(401, f"bad key {KEY}"), "model_key_refused", True),
        (refuse(404), "no_such_model", True),
        (refuse(400, "nonsense"), "question_refused", False),
        (refuse(500), "model_unavailable", False),
        (drop, "model_unavailable", False),
        (lambda handler: handler.say(200, {"what": "is this"}), "answer_unreadable", False),
    ],
)
async def test_an_error_says_what_it_means_and_shows_no_key(
    endpoint: Endpoint, fault: Handle, reason: str, fatal: bool
) -> None:
    with pytest.raises(ModelError) as caught:
        await asked(endpoint, fault)
    assert (caught.value.reason, caught.value.fatal) == (reason, fatal), caught.value
    assert KEY not in str(caught.value)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("key", "withheld"),
    [(KEY, True), ("x", False), ("OPENAI_API_KEY", False), (f"{KEY}-of-another", False)],
)
async def test_an_answer_with_the_key_is_withheld_and_none_is_rewritten(
    endpoint: Endpoint, key: str, withheld: bool
) -> None:
    text = f"x = OPENAI_API_KEY; /* {KEY} */"
    called = {"name": "edit", "arguments": json.dumps({"text": text})}
    endpoint.script = [answer("", [{"id": "1", "type": "function", "function": called}])]
    model = Provided(f"openai-chat:gpt-4o@http://127.0.0.1:{endpoint.server_port}/v1", key)
    with pytest.raises(ModelError, match="contains the API key") if withheld else nullcontext():
        reply = await model.ask(CALL)
        assert reply.calls[0].arguments == {"text": text}
    await model.close()


@pytest.mark.attack
def test_a_services_key_goes_to_its_own_provider() -> None:
    """A file's key would go to whomever a caller names."""
    names = ["deepseek:deepseek-chat", "openrouter:openai/gpt-4o", "gateway/openai:gpt-4o"]
    for name in [*names, "openai-chat:gpt-4o@http://127.0.0.1:1/v1", "replay:/etc/passwd"]:
        with refused("model_not_allowed"):
            agent_models.allowed(None)(name)


@pytest.mark.parametrize("begun", [False, True], ids=["nothing", "half"])
async def test_a_model_that_never_answers_is_given_up(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    monkeypatch.setattr(provider, "ANSWER_SECONDS", 0.5)
    release = threading.Event()

    def never(handler: Handler) -> None:
        if begun:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{")
        release.wait(60)

    try:
        with pytest.raises(ModelError, match="no answer within") as caught:
            await asked(endpoint, never)
    finally:
        release.set()
    assert (caught.value.reason, caught.value.fatal) == ("model_unavailable", False)


async def test_a_setting_that_is_refused_is_left_out_and_told(endpoint: Endpoint) -> None:
    no = refuse(400, "Unsupported value: 'temperature' does not support 0.8 with this model.")
    reply = await asked(endpoint, no, answer("x"), answer("y"), times=2)
    assert reply.refused == ["temperature"]
    assert ["temperature" in body for body in endpoint.asked] == [True, False, False]


async def test_settings_that_are_refused_one_after_the_other_are_all_left_out(
    endpoint: Endpoint,
) -> None:
    reply = await asked(
        endpoint,
        refuse(400, "'max_completion_tokens' is too large"),
        refuse(400, "'temperature' is not supported"),
        answer("x"),
    )
    assert reply.refused == ["max_tokens", "temperature"]


async def test_what_is_no_text_in_an_answer_can_still_be_written_down(endpoint: Endpoint) -> None:
    arguments = '{"file": "\\ud800"}'
    called = {"id": "1", "type": "function", "function": {"name": "edit", "arguments": arguments}}
    reply = await asked(endpoint, answer("\ud800", [called]))
    assert reply.text == "?"
    assert Reply.model_validate_json(reply.model_dump_json()).calls[0].arguments == {"file": "?"}


def test_the_window_of_a_model_is_known_by_its_name(tmp_path: Path) -> None:
    assert provider.window("openai-chat:gpt-4o@http://127.0.0.1:1/v1") == 128_000
    assert [provider.window(name) for name in ("openai:nobody", "nobody:x", "x")] == [None] * 3
    assert agent_models.window("openai:gpt-3.5-turbo") == 16_385
    most = agent_models.window("openai:nobody")
    assert agent_models.window("openai:gpt-4.1") == most == 200_000
    path = tmp_path / "tape.jsonl"
    tape.begin(path, tape.Head(bug="b", strategy=strategies.load("demo"), window=9_000))
    assert agent_models.window(f"replay:{path}") == 9_000
    path.write_text('{"key": "a", "purpose": "patch", "reply": {"model": "m"}}\n')
    assert agent_models.window(f"replay:{path}") == most


async def test_a_tape_says_what_run_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    path.touch()
    assert tape.head(path) is None
    head = tape.Head(bug="b", strategy=strategies.load("demo"))
    tape.begin(path, head)
    path.write_text(
        path.read_text() + '{"key": "a", "purpose": "patch", "reply": {"model": "m"}}\n'
    )
    tape.begin(path, tape.Head(bug="another", strategy=strategies.load("tool")))
    assert tape.head(path) == head
    Replay(path)


async def test_a_tape_whose_writer_was_killed_is_gone_on_with(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    tape = tmp_path / "tape.jsonl"
    tape.write_text('{"key": "a", "purpose": "patch", "reply": {"model": "m"}}\n{"key": "b')
    model = Provided(f"openai-chat:gpt-4o@http://127.0.0.1:{endpoint.server_port}/v1", KEY)
    recorder = Recorder(model, tape)
    reply = await recorder.ask(CALL)
    await recorder.close()
    assert await Replay(tape).ask(CALL) == reply


async def test_an_empty_answer_and_one_of_ten_megabytes(endpoint: Endpoint) -> None:
    assert (await asked(endpoint, answer(""))).text == ""
    assert len((await asked(endpoint, answer("x" * 10_000_000))).text) == 10_000_000


@pytest.mark.parametrize("name", ["", "gpt", "nobody:model", "openai-chat:"])
def test_what_names_no_model_is_told(name: str) -> None:
    with pytest.raises(UserError, match="model"):
        Provided(name, KEY)


async def test_a_tape_answers_as_the_model_did(endpoint: Endpoint, tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    endpoint.script = [answer("one"), answer("two")]
    model = Provided(f"openai-chat:gpt-4o@http://127.0.0.1:{endpoint.server_port}/v1", KEY)
    recorder = Recorder(model, tape)
    second = Call(CALL.prompt, temperature=0.8, occurrence="t1/h0/1-hypothesis")
    replies = [await recorder.ask(CALL), await recorder.ask(second)]
    await recorder.close()
    replay = Replay(tape)
    assert [await replay.ask(CALL), await replay.ask(second)] == replies
    other = Replay(tape)  # a run in which work was done in another order, under other names
    names = [Call(CALL.prompt, temperature=0.8, occurrence=name) for name in "xyxz"]
    assert [await other.ask(call) for call in names] == [*replies, replies[0], replies[0]]
    assert KEY not in tape.read_text()
    with pytest.raises(ModelError, match="has no answer to this hypothesis question"):
        await replay.ask(Call(CALL.prompt, temperature=0.2))


async def test_a_tape_whose_writer_was_killed_is_read_to_its_end(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    tape.write_text('{"key": "a", "purpose": "patch", "reply": {"model": "m"}}\n{"key": "b')
    Replay(tape)
    tape.write_text('{"key": "a"\n{"key": "b"}\n')
    with pytest.raises(UserError, match="line 1"):
        Replay(tape)
    with pytest.raises(UserError, match="No such file"):
        Replay(tmp_path / "nothing")
