"""What of an agent's request reaches the model: messages and its own functions, nothing hosted."""

import json
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.errors import UserError
from kgym_benchmark.campaign.model_request import ModelRequest, model_names, rebuilt
from tests.tables import json_rows

NAMES = model_names("openai/gpt-5")
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"


def forwarded(
    path: str, body: dict[str, Any], *, query: str = "", allow: Collection[str] = (), **headers: str
) -> ModelRequest:
    given = ModelRequest("POST", path, headers, json.dumps({"model": "gpt-5"} | body).encode())
    return rebuilt(given, query, NAMES, allow)


@pytest.mark.parametrize(("path", "body"), json_rows(__file__, "passed_requests.jsonl"))
def test_messages_and_the_agents_own_functions_pass(path: str, body: dict[str, Any]) -> None:
    passed = json.loads(forwarded(path, body).body)
    assert passed.keys() >= {"model"}
    assert len(passed) == len(body) + 1


@pytest.mark.attack
@pytest.mark.parametrize(
    ("path", "body", "named"),
    json_rows(__file__, "refused_requests.jsonl"),
)  # fmt: skip
def test_what_providers_host_is_refused_by_its_name(
    path: str, body: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match="not") as caught:
        forwarded(path, body)
    assert named in caught.value.message


@pytest.mark.attack
def test_headers_and_queries_steer_nothing() -> None:
    headers = {
        "openai-organization": "org-1",
        "openai-project": "p",
        "x-http-method-override": "DELETE",
        "anthropic-beta": "code-execution-2025-05-22",
        "authorization": "Bearer mine",
        "content-type": "application/json",
    }
    passed = forwarded(CHAT, {}, query="alt=sse&beta=true&key=mine&api-version=2", **headers)
    assert passed.headers == {"content-type": "application/json"}
    assert passed.path == f"{CHAT}?alt=sse&api-version=2"


def test_a_campaign_allows_what_it_names() -> None:
    body = {"tools": [{"type": "web_search"}], "service_tier": "flex"}
    passed = forwarded(RESPONSES, body, allow=["web_search", "service_tier"])
    assert json.loads(passed.body)["service_tier"] == "flex"


@pytest.mark.attack
@pytest.mark.parametrize(
    ("method", "path", "body", "passed"),
    [
        *json_rows(__file__, "requests.jsonl"),
        ("POST", CHAT, "[" * 100_000, False),
        ("POST", CHAT, "[" + "[]," * 1_000_000 + "0]", False),
    ],
)
def test_only_requests_to_the_model_are_forwarded(
    method: str, path: str, body: str, passed: bool
) -> None:
    try:
        rebuilt(ModelRequest(method, path, {}, body.encode()), "", NAMES)
    except UserError:
        assert not passed
    else:
        assert passed


@given(st.text(st.characters(max_codepoint=255)), st.binary(), st.text())
def test_any_request_is_forwarded_or_refused(path: str, body: bytes, query: str) -> None:
    for method in ("GET", "POST"):
        try:
            passed = rebuilt(ModelRequest(method, path, {}, body), query, {"m"})
        except UserError:
            continue
        assert passed.path.startswith("/")
