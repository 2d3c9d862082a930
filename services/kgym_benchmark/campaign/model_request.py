"""An agent's request to its model, rebuilt from what a request may hold. Pure.

An attempt is charged for one model by its tokens. Everything else that providers offer costs extra,
brings answers from elsewhere, or reaches the account's data: searches and other hosted tools,
remote MCP servers, stored conversations and files, images by URL, other models as fallbacks, faster
tiers. So nothing is forwarded that is not listed here; a campaign can allow more (`allow`).

Fields are those of OpenAI's chat completions and responses, Anthropic's messages, Gemini's
generateContent, and of the servers that imitate them (OpenRouter, vLLM, Ollama).
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from kgym.errors import UserError

# Commas and brackets of a request: a bound for the values that parsing creates.
_VALUES = 1_000_000
_PATH = re.compile(r"(?:/[\w.:@-]*)+", re.ASCII)
_LIST = re.compile(r".*/models(?:/[^/]+)?")
_ASKS = re.compile(
    r".*(?:/(?:chat|generate|completions|responses|messages|count_tokens)"
    r"|:(?:generateContent|streamGenerateContent|countTokens|rawPredict|streamRawPredict))"
)
_IN_PATH = re.compile(r"/(?:models|deployments|engines)/([^/:]+)")
_ENDS = re.compile(r"[/:]")

_HEADERS = {"accept", "anthropic-version", "content-type", "user-agent"}
_QUERY = {"alt", "api-version"}
# What shapes an answer, by whatever name an API has for it.
_SAMPLING = {
    *("frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_output_tokens"),
    *("max_tokens", "min_p", "n", "options", "presence_penalty", "repetition_penalty", "seed"),
    *("stop", "stop_sequences", "stream", "stream_options", "temperature", "top_k"),
    *("top_logprobs", "top_p", "truncation"),
}
_FIELDS = _SAMPLING | {
    *("model", "messages", "prompt", "system", "input", "instructions", "contents"),
    *("systemInstruction", "generationConfig", "safetySettings", "toolConfig", "tools"),
    *("tool_choice", "parallel_tool_calls", "max_tool_calls", "functions", "function_call"),
    *("reasoning", "reasoning_effort", "thinking", "think", "verbosity", "text"),
    *("response_format", "format", "include", "store", "metadata", "user"),
    *("safety_identifier", "prompt_cache_key", "anthropic_version", "keep_alive"),
}
_GENERATION = {
    *("candidateCount", "frequencyPenalty", "logprobs", "maxOutputTokens", "presencePenalty"),
    *("responseJsonSchema", "responseLogprobs", "responseMimeType", "responseSchema", "seed"),
    *("stopSequences", "temperature", "thinkingConfig", "topK", "topP"),
}
_INCLUDED = {"reasoning.encrypted_content", "message.output_text.logprobs"}
# Gemini takes both spellings.
_SPELLINGS = {
    "system_instruction": "systemInstruction",
    "generation_config": "generationConfig",
    "tool_config": "toolConfig",
    "safety_settings": "safetySettings",
}
# Types of messages, of their parts, and of calls of the agent's own functions with their results.
_PARTS = {
    *("text", "input_text", "output_text", "refusal", "message", "function", "function_call"),
    *("function_call_output", "tool_use", "tool_result", "thinking", "redacted_thinking"),
    *("reasoning", "reasoning_text", "summary_text"),
}
_GEMINI_PARTS = {"text", "functionCall", "functionResponse", "thought", "thoughtSignature"}
_TOOL_TYPES = {"function", "custom"}
_TOOL_FIELDS = {
    *("type", "name", "description", "function", "parameters", "input_schema", "strict"),
    *("format", "cache_control"),
}


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request as it is forwarded."""

    method: str
    path: str
    """With its query."""
    headers: dict[str, str]
    body: bytes


def model_names(model: str) -> frozenset[str]:
    """Return the names that agents use for a model: for `a/b/c` also `b/c` and `c`."""
    return frozenset({model, *(model[end.end() :] for end in _ENDS.finditer(model))} - {""})


def rebuilt(
    request: ModelRequest, query: str, names: Collection[str], allow: Collection[str] = ()
) -> ModelRequest:
    """Return the request with nothing but what may be forwarded.

    `names` are the model's. `allow` names further fields, and types of tools and parts.

    Raises UserError `not_forwarded`, which names what is refused.
    """
    path = request.path
    if not _PATH.fullmatch(path) or ".." in path:
        raise _refused(f"{path[:200]!r} is not a path of a model's API")
    # Headers can name an organisation, a beta feature or another method. None is needed.
    headers = {name: value for name, value in request.headers.items() if name in _HEADERS}
    kept = [(name, value) for name, value in parse_qsl(query) if name in _QUERY]
    whole = f"{path}?{urlencode(kept)}" if kept else path
    if request.method == "GET" and _LIST.fullmatch(path):
        return ModelRequest("GET", whole, headers, b"")
    if request.method != "POST" or not _ASKS.fullmatch(path):
        raise _refused(f"{request.method} {path[:200]} is not a request to a model")
    fields = _fields(request.body)
    models = {*_IN_PATH.findall(path)}
    if "model" in fields:
        models.add(str(fields["model"]))
    _check_models(models, names)
    _check_uses(fields, allow)
    return ModelRequest("POST", whole, headers, json.dumps(fields).encode())


def _fields(body: bytes) -> dict[str, Any]:
    if sum(map(body.count, (b",", b"[", b"{"))) > _VALUES:
        raise _refused("the request has too many values")
    try:
        fields = json.loads(body, object_pairs_hook=_without_repeats)
        if not isinstance(fields, dict):
            raise ValueError("it is not an object")
        spelled = [(_SPELLINGS.get(name, str(name)), value) for name, value in fields.items()]
        return _without_repeats(spelled)
    except (ValueError, RecursionError) as error:
        raise _refused(f"the request cannot be read: {error}") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # A repeated field could mean one model here and another at the endpoint.
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field occurs twice")
    return fields


def _check_models(models: set[str], names: Collection[str]) -> None:
    if not models:
        raise _refused("the request names no model")
    if others := sorted(models - set(names)):
        raise _refused(
            f"this attempt uses {' or '.join(sorted(names))}, not {others[0][:200]}; a campaign can"
            " list further `names` of a model"
        )


# A name in a request, the names that are allowed in its place, and what kind of name it is.
_Use = tuple[str, Collection[str], str]


def _check_uses(fields: Mapping[str, Any], allow: Collection[str]) -> None:
    for uses in (_plain_uses, _tool_uses, _message_uses, _gemini_uses):
        for name, allowed, what in uses(fields):
            if name not in allowed and name not in allow:
                raise _refused(
                    f"{what} {name[:200]!r} is not forwarded: it may cost extra, or bring in what"
                    " the model does not write; a campaign can `allow` it for a model"
                )


def _plain_uses(fields: Mapping[str, Any]) -> Iterator[_Use]:
    for name in fields:
        yield name, _FIELDS, "the field"
    for name in _as_list(fields.get("include")):
        yield str(name), _INCLUDED, "`include` of"
    if isinstance(fields.get("prompt"), dict):
        yield "prompt", (), "a stored"


def _tool_uses(fields: Mapping[str, Any]) -> Iterator[_Use]:
    for value in _as_list(fields.get("tools")):
        tool = _as_object(value)
        # Gemini lists functions beside its hosted tools. Functions of Anthropic's API have no type.
        declared = {name for name in tool if _camel(name) == "functionDeclarations"}
        if not declared and ("type" in tool or tool.keys() & {"name", "function"}):
            yield str(tool.get("type") or "function"), _TOOL_TYPES, "a tool of type"
            declared = _TOOL_FIELDS
        for name in tool.keys() - declared:
            yield name, (), "the tool"


def _message_uses(fields: Mapping[str, Any]) -> Iterator[_Use]:
    # An item that has only an id stands for one that the provider has stored.
    for item in _as_list(fields.get("input")):
        if isinstance(item, dict) and not item.keys() & {"role", "type"}:
            yield "item_reference", (), "a part of type"
    waiting = [fields.get(name) for name in ("messages", "input", "system")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            if (kind := value.get("type")) is not None:
                yield str(kind), _PARTS, "a part of type"
            if "images" in value:
                yield "images", (), "a message's"  # Ollama's
            # Results of tools have parts, too. Arguments of functions are the agent's own words.
            waiting += [value.get(name) for name in ("content", "output", "summary")]


def _gemini_uses(fields: Mapping[str, Any]) -> Iterator[_Use]:
    for name in _as_object(fields.get("generationConfig")):
        yield _camel(name), _GENERATION, "the field"
    for name in ("contents", "systemInstruction"):
        for content in _as_list(fields.get(name)):
            for part in _as_list(_as_object(content).get("parts")):
                for key, value in _as_object(part).items():
                    yield _camel(key), _GEMINI_PARTS, "a part"
                    if "parts" in _as_object(value):
                        yield "parts", (), f"a {key}'s"


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _as_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _refused(message: str) -> UserError:
    return UserError("not_forwarded", message)
