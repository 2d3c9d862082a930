"""Models of providers, through pydantic-ai. It is imported on first use: few commands need it."""

import asyncio
import contextlib
import json
import time
import warnings
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from kgym.api.agent.conversation import Reply, ToolCall
from kgym.api.agent.model_key import QUOTED, quotes_key, without_key
from kgym.errors import UserError
from kgym_crashfixer.models.model import Call, ModelError

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model as ProvidedModel
    from pydantic_ai.settings import ModelSettings

# Time limit for one answer, retries included.
ANSWER_SECONDS = 900.0
TRIES = 6
# Longest pause that a provider's Retry-After can demand.
WAIT_SECONDS = 120.0
# Tokens of an answer.
MOST_TOKENS = 32_000
# Names of settings in providers' refusals.
_WORDS = {
    "temperature": ["temperature"],
    "max_tokens": ["max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens"],
}
# Reply to an answer without a tool call.
GO_ON = "Go on with the tools; when you are done, call the one that ends the conversation."


class Provided:
    """A model named `PROVIDER:MODEL`, in pydantic-ai's terms.

    `openai-chat:MODEL@URL` is any endpoint compatible with OpenAI's chat completions. Without a
    `key`, the provider's library takes it from the environment. `first_pause` is the pause in
    seconds before the first retry; each further pause is twice as long.
    """

    def __init__(self, name: str, key: str | None = None, first_pause: float = 1.0) -> None:
        self.name = name
        self._key = key
        self._client = _client(first_pause)
        self._model = _model(name, key, self._client)
        self._refused: set[str] = set()

    async def ask(self, call: Call) -> Reply:
        """Ask the model; omit settings that it refuses from then on, and list them in the reply."""
        from httpx2 import HTTPError  # noqa: PLC0415
        from pydantic_ai.exceptions import AgentRunError, ModelHTTPError  # noqa: PLC0415

        begun = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while True:
                    try:
                        response = await self._request(call)
                        break
                    except ModelHTTPError as error:
                        bad = error.status_code == HTTPStatus.BAD_REQUEST
                        if not bad or not self._drops(str(error)):
                            raise
        except (AgentRunError, HTTPError, TimeoutError, OSError) as error:
            raise _failed(error, self._message(error)) from error
        return self._reply(response, time.monotonic() - begun)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    def _drops(self, message: str) -> bool:
        """Record settings that a refusal names; return whether any is new."""
        named = {name for name, words in _WORDS.items() if any(word in message for word in words)}
        named -= self._refused
        self._refused |= named
        return bool(named)

    async def _request(self, call: Call) -> "ModelResponse":
        from pydantic_ai.direct import model_request  # noqa: PLC0415
        from pydantic_ai.models import ModelRequestParameters  # noqa: PLC0415
        from pydantic_ai.tools import ToolDefinition  # noqa: PLC0415

        # Some models reject a temperature, or a limit of tokens; `_drops` then omits it.
        settings: ModelSettings = {
            "temperature": call.temperature,
            "max_tokens": MOST_TOKENS,
            "max_retries": 0,  # the client tries again by itself
        }
        marked = self._model.system == "anthropic"  # other providers cache without being asked
        if marked and call.tools:
            settings["anthropic_cache_messages"] = True  # type: ignore[typeddict-unknown-key]
        for name in self._refused:
            settings.pop(name, None)  # type: ignore[misc]
        tools = [
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=dict(tool.parameters),
            )
            for tool in call.tools
        ]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            response = await model_request(
                self._model,
                _messages(call, marked=marked),
                model_settings=settings,
                model_request_parameters=ModelRequestParameters(function_tools=tools),
            )
        for warning in caught:
            self._drops(str(warning.message))
        return response

    def _reply(self, response: "ModelResponse", seconds: float) -> Reply:
        from pydantic_ai.messages import TextPart, ToolCallPart  # noqa: PLC0415

        usage = response.usage
        price = None
        with contextlib.suppress(Exception):  # then the price is unknown, which is not 0
            price = float(response.cost().total_price)
        texts = [part.content for part in response.parts if isinstance(part, TextPart)]
        reply = Reply(
            text=_text("".join(texts)),
            calls=[
                ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=_arguments(part.args))
                for part in response.parts
                if isinstance(part, ToolCallPart)
            ],
            model=response.model_name or self.name,
            finish=str(response.finish_reason or ""),
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cache_read_tokens,
            output_tokens=usage.output_tokens,
            price=price,
            seconds=round(seconds, 3),
            refused=sorted(self._refused),
        )
        if quotes_key(reply.model_dump_json(), self._key):
            raise ModelError("answer_has_key", f"{self.name}: {QUOTED}", fatal=False)
        return reply

    def _message(self, error: Exception) -> str:
        text = str(error) or f"no answer within {ANSWER_SECONDS:g} s"
        return without_key(text, self._key)[:2000]


def _failed(error: Exception, message: str) -> ModelError:
    """Return the ModelError for an error of the provider or the network."""
    from pydantic_ai import exceptions  # noqa: PLC0415

    for kind, reason, fatal in (
        (exceptions.ModelAuthenticationError, "model_key_refused", True),
        (exceptions.ModelQuotaExceededError, "model_quota_exceeded", True),
        (exceptions.ModelNotFoundError, "no_such_model", True),
        (exceptions.ModelContextWindowExceededError, "question_too_long", False),
        (exceptions.ModelRequestRejectedError, "question_refused", False),
        (exceptions.UnexpectedModelBehavior, "answer_unreadable", False),
    ):
        if isinstance(error, kind):
            return ModelError(reason, message, fatal=fatal)
    return ModelError("model_unavailable", message, fatal=False)


def window(name: str) -> int | None:
    """Return the size of a model's context window in tokens; None if unknown."""
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415

    kind, _, model = name.partition("@")[0].partition(":")
    provider = kind.partition("-")[0]  # openai-chat is OpenAI's
    try:
        return get_snapshot().find_provider_model(model, None, provider, None)[1].context_window
    except LookupError:
        return None


def _model(name: str, key: str | None, client: "httpx2.AsyncClient") -> "ProvidedModel":
    from pydantic_ai.exceptions import UserError as Unusable  # noqa: PLC0415
    from pydantic_ai.models import infer_model  # noqa: PLC0415
    from pydantic_ai.providers import Provider, infer_provider_class  # noqa: PLC0415

    known, _, url = name.partition("@")
    if not known.partition(":")[2]:
        raise UserError("bad_model", f"{name!r} names no model: write PROVIDER:MODEL")

    def provider(kind: str) -> "Provider[Any]":
        given: dict[str, Any] = {"http_client": client}
        given |= {"api_key": key} if key else {}
        given |= {"base_url": url} if url else {}
        return infer_provider_class(kind)(**given)

    try:
        return infer_model(known, provider)
    except (Unusable, ValueError, TypeError, ImportError) as error:
        raise UserError("bad_model", f"{name}: {error}") from error


def _messages(question: Call, *, marked: bool) -> "list[ModelMessage]":
    """Return the messages for a question; `marked`: with a cache mark after the shared prefix."""
    from pydantic_ai import messages  # noqa: PLC0415

    prompt = question.prompt
    content: str | list[str | messages.CachePoint] = prompt.text
    if marked and 0 < prompt.begins < len(prompt.text):
        begin, rest = prompt.text[: prompt.begins], prompt.text[prompt.begins :]
        content = [begin, messages.CachePoint(), rest]
    sent: list[ModelMessage] = [
        messages.ModelRequest(
            parts=[
                messages.SystemPromptPart(content=prompt.system),
                messages.UserPromptPart(content=content),
            ]
        )
    ]
    for turn in question.turns:
        words = turn.text or ("" if turn.calls else "(nothing)")  # no provider takes an empty turn
        response: list[messages.ModelResponsePart] = [messages.TextPart(words)] if words else []
        response += [
            messages.ToolCallPart(tool_name=call.name, args=_object(call), tool_call_id=call.id)
            for call in turn.calls
        ]
        results: list[messages.ModelRequestPart] = [
            messages.ToolReturnPart(
                tool_name=call.name, content=turn.results.get(call.id, ""), tool_call_id=call.id
            )
            for call in turn.calls
        ]
        sent.append(messages.ModelResponse(parts=response))
        note = turn.results.get("", "")  # on an answer without a tool call
        results = results or [messages.UserPromptPart(content=f"{note}\n{GO_ON}".lstrip())]
        sent.append(messages.ModelRequest(parts=results))
    return sent


def _arguments(given: object) -> dict[str, JsonValue] | str:
    """Return the arguments of a tool call; as text if they are no JSON object."""
    if isinstance(given, dict):
        given = json.dumps(given)
    words = _text(str(given or "{}"))
    try:
        # Parsed twice: escapes may encode lone surrogates, which no file can hold.
        read = json.loads(_text(json.dumps(json.loads(words), ensure_ascii=False)))
    except (ValueError, RecursionError):
        return words
    return read if isinstance(read, dict) else words


def _object(call: ToolCall) -> dict[str, Any]:
    """Return arguments in a form that all providers accept."""
    return call.arguments if isinstance(call.arguments, dict) else {"unreadable": call.arguments}


def _text(words: str) -> str:
    """Replace lone surrogates, which cannot be written to a file."""
    return words.encode("utf-8", "replace").decode()


def _client(first_pause: float) -> "httpx2.AsyncClient":
    """Return a client that retries transient errors, and honours Retry-After."""
    from httpx2 import HTTPStatusError, Response, TransportError  # noqa: PLC0415
    from pydantic_ai.models import create_async_httpx2_client  # noqa: PLC0415
    from pydantic_ai.retries import AsyncHTTPX2TenacityTransport, RetryConfig, wait_retry_after  # noqa: PLC0415
    from tenacity import retry_if_exception_type, stop_after_attempt, wait_exponential  # noqa: PLC0415

    def worth_it(response: Response) -> None:
        if response.status_code in {408, 409, 425, 429} or response.status_code >= 500:
            response.raise_for_status()

    return create_async_httpx2_client(
        transport=AsyncHTTPX2TenacityTransport(
            RetryConfig(
                retry=retry_if_exception_type((HTTPStatusError, TransportError)),
                wait=wait_retry_after(wait_exponential(first_pause, WAIT_SECONDS), WAIT_SECONDS),
                stop=stop_after_attempt(TRIES),
                reraise=True,
            ),
            validate_response=worth_it,
        )
    )
