"""``guanaco serve`` with the embedded model, streamed from the drive, as a client sees it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from guanaco.cli.demo import demo_model
from guanaco.units import MIB
from tests.support.cli import Served, served, wait_until

MODEL = str(demo_model())
STREAMED = (MODEL, "--load-mode", "streaming", "--guanaco-max-experts", "9", "--memory", "256MiB")
PERU = {"messages": [{"role": "user", "content": "What is the capital of Peru?"}], "temperature": 0}
LONG = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(*STREAMED) as running:
        yield running


def events(response: httpx.Response) -> list[Any]:
    words = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert words[-1] == "[DONE]"
    return [json.loads(word) for word in words[:-1]]


def test_health_and_models(server: Served) -> None:
    assert server.get("/health").json() == {"status": "ok"}
    (row,) = server.get("/v1/models").json()["data"]
    assert row["id"] == "guanaco-demo"
    assert row["state"] == "ready"
    assert row["placement"] == "stream"
    assert row["context_length"] == 1024
    assert row["memory"]["peak_bytes"] < row["memory"]["budget_bytes"] == 256 << 20
    assert row["streaming"]["slots"] == 36
    assert row["streaming"]["unmanaged"] == 0
    assert server.get("/v1/models/guanaco-demo").json()["id"] == "guanaco-demo"
    missing = server.get("/v1/models/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["type"] == "not_found_error"


def test_chat(server: Served) -> None:
    answer = server.post("/v1/chat/completions", PERU).json()
    assert answer["choices"][0]["message"]["content"] == "The capital of Peru is Lima."
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["model"] == "guanaco-demo"
    assert answer["usage"]["completion_tokens"] == 8


def test_chat_as_a_stream(server: Served) -> None:
    response = server.post("/v1/chat/completions", {**PERU, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    pieces = [event["choices"][0]["delta"].get("content") for event in events(response)]
    assert "".join(piece for piece in pieces if piece) == "The capital of Peru is Lima."
    assert len([piece for piece in pieces if piece]) > 3, "it came in pieces"


def test_completions(server: Served) -> None:
    body = {"prompt": "Once upon", "max_tokens": 4, "temperature": 0}
    answer = server.post("/v1/completions", body).json()
    assert answer["choices"][0]["text"].startswith(" a time")
    assert answer["choices"][0]["finish_reason"] == "length"
    streamed = server.post("/v1/completions", {**body, "stream": True})
    assert "".join(e["choices"][0]["text"] for e in events(streamed)).startswith(" a time")


def test_tokens_there_and_back(server: Served) -> None:
    tokens = server.post("/tokenize", {"content": "a fox by the river"}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json() == {"content": "a fox by the river"}


@pytest.mark.parametrize("token", [-1, 1 << 31, 100_000_000])
def test_tokens_the_vocabulary_lacks_are_refused(server: Served, token: int) -> None:
    refused = server.post("/detokenize", {"tokens": [1, token]})
    assert refused.status_code == 400
    assert f"tokens.1: {token} is no token of this model" in refused.json()["error"]["message"]
    assert server.post("/v1/completions", {"prompt": [token], "max_tokens": 1}).status_code == 400


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/completions", "prompt", [1099511627781]),
        ("/v1/completions", "prompt", ["a", [1, 1 << 32]]),
        ("/tokenize", "content", [-1, "a"]),
    ],
)
def test_a_token_is_not_cut_to_32_bits(server: Served, path: str, field: str, value: list[object]) -> None:
    refused = server.post(path, {field: value, "max_tokens": 1})
    assert refused.status_code == 400
    assert "is no token of this model" in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/completions", {"prompt": ["a"] * 2049}, 400, "prompt: a request may hold 2048 texts, not 2049"),
        ("/tokenize", {"content": None}, 400, "content: Input should be"),
        (
            "/v1/completions",
            {"prompt": "a", "json_schema": {"type": "array", "items": {}, "minItems": 10**9}},
            413,
            "JSON schema",
        ),
        ("/v1/completions", {"prompt": "a", "n_probs": 100_000, "max_tokens": 900}, 413, "log-probabilities"),
        (
            "/v1/completions",
            {"prompt": "a", "grammar": "root ::= " + f'"{"a" * 41}"{{1999}} ' * 999},
            413,
            "grammar",
        ),
        ("/tokenize", {"content": ["a1" * 60_000] * 20, "with_pieces": True}, 413, "its text"),
        ("/v1/chat/completions", {"messages": [{"role": "x" * 1_000_000, "content": ""}]}, 413, "its text"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"a" * 1_000_000: 1}}, 413, "its text"),
        ("/v1/chat/completions", {**PERU, "tools": 5}, 400, "tools: Input should be a valid"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}]},
            400,
            "served for text only",
        ),
    ],
)
def test_what_would_cost_too_much_or_cannot_be_is_refused(
    server: Served, path: str, body: dict[str, object], status: int, words: str
) -> None:
    refused = server.post(path, body)
    assert refused.status_code == status
    assert words in refused.json()["error"]["message"]


def test_what_clients_send_as_null_is_not_given(server: Served) -> None:
    content = "What is the capital of Peru?"
    asked = {
        "role": "user",
        "content": content,
        "name": None,
        "tool_call_id": None,
        "reasoning_content": None,
    }
    answer = server.post("/v1/chat/completions", {**PERU, "messages": [asked]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == server.post("/v1/chat/completions", PERU).json()["choices"]


def test_log_probabilities_that_fit_are_given(server: Served) -> None:
    body = {**PERU, "logprobs": True, "top_logprobs": 5, "max_tokens": 8}
    content = server.post("/v1/chat/completions", body).json()["choices"][0]["logprobs"]["content"]
    assert all(len(token["top_logprobs"]) == 5 for token in content)


def test_many_clients_at_once_wait_for_their_turn(server: Served) -> None:
    def ask(number: int) -> int:
        return server.post("/v1/completions", {"prompt": f"{number}", "max_tokens": 2}).status_code

    with ThreadPoolExecutor(60) as clients:
        assert set(clients.map(ask, range(120))) == {200}
    peak_bytes = server.get("/v1/models").json()["data"][0]["memory"]["peak_bytes"]
    assert peak_bytes < 256 * MIB


def test_pieces_of_an_earlier_prompt_are_not_reused_where_the_engine_would_end() -> None:
    with served(*STREAMED, "-c", "256", "-ctk", "q8_0") as running:
        refused = running.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "n_cache_reuse": 1})
        assert refused.status_code == 400
        assert "K cache (q8_0) cannot be shifted" in refused.json()["error"]["message"]
        assert running.post("/v1/completions", {"prompt": "a", "n_cache_reuse": 0}).status_code == 200


def test_props(server: Served) -> None:
    assert server.get("/props").json()["default_generation_settings"]["n_ctx"] == 1024


def test_metrics_count_what_happened(server: Served) -> None:
    name = 'guanaco_requests_total{path="/v1/chat/completions",status="200"}'
    server.post("/v1/chat/completions", PERU)
    before, hits_before = server.metric(name), server.metric("guanaco_expert_accesses_total")
    server.post("/v1/chat/completions", PERU)
    assert server.metric(name) == before + 1
    assert server.metric("guanaco_expert_accesses_total") > hits_before
    assert server.metric("guanaco_expert_hits_total") > 0
    assert server.metric("guanaco_expert_unmanaged_total") == 0
    assert server.metric("guanaco_expert_groups_bound") == 4
    text = server.get("/metrics").text
    assert "\nguanaco_io_info{mode=" in text
    assert "\nllamacpp:tokens_predicted_total " in text


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/chat/completions", {}, 400, "messages: Field required"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages: List should have at least 1 item"),
        ("/v1/chat/completions", {"messages": "hi"}, 400, "messages: Input should be a valid"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, 400, "messages.0.role: Field required"),
        ("/v1/chat/completions", {**PERU, "temperature": "hot"}, 400, "temperature"),
        ("/v1/chat/completions", {**PERU, "temperature": -1}, 400, "temperature"),
        ("/v1/chat/completions", {**PERU, "max_tokens": 1.5}, 400, "max_tokens"),
        ("/v1/chat/completions", {**PERU, "n": 5}, 400, "n"),
        ("/v1/chat/completions", [1], 400, "should be an object"),
        ("/v1/chat/completions", {**PERU, "tools": [{"function": {"name": "f"}}]}, 400, "tool type"),
        ("/v1/chat/completions", {**PERU, "tools": [{"type": "function"}]}, 400, "tool function"),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, 400, "tool call"),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": 5}]}, 400, "tool call"),
        ("/v1/chat/completions", {**PERU, "reasoning_format": "loud"}, 400, "reasoning format"),
        ("/v1/chat/completions", {**PERU, "grammar": 'root ::= "a"', "json_schema": {}}, 400, "grammar"),
        ("/v1/completions", {}, 400, "prompt: Field required"),
        ("/v1/completions", {"prompt": "x " * 40000}, 400, "context"),
        ("/v1/embeddings", {"input": "x"}, 501, "--embeddings"),
        ("/v1/nothing", {}, 404, "Not Found"),
    ],
)
def test_wrong_requests_get_openais_error_shape(
    server: Served, path: str, body: Any, status: int, words: str
) -> None:
    response = server.post(path, body)
    assert response.status_code == status
    error = response.json()["error"]
    assert words in error["message"]
    assert error["code"] == status
    assert isinstance(error["type"], str)
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 10_000, b'{"messages": NaN}'])
def test_what_is_no_json_is_refused(server: Served, raw: bytes) -> None:
    response = httpx.post(f"{server.url}/v1/chat/completions", content=raw, timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_body_without_end_is_refused(server: Served) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * (1 << 20)

    try:
        response = httpx.post(f"{server.url}/v1/completions", content=endless(), timeout=60)
    except httpx.WriteError:
        pass  # it hung up before all was sent
    else:
        assert response.status_code == 413
    assert server.get("/health").status_code == 200


def test_head_works_wherever_get_does(server: Served) -> None:
    for path in ("/health", "/v1/models", "/v1/models/guanaco-demo", "/props", "/metrics"):
        response = httpx.head(f"{server.url}{path}", timeout=60)
        assert response.status_code == 200, path
        assert response.content == b""
    assert httpx.head(f"{server.url}/v1/models/other", timeout=60).status_code == 404
    assert httpx.head(f"{server.url}/v1/chat/completions", timeout=60).status_code == 405


def test_a_page_of_another_origin_may_ask(server: Served) -> None:
    origin = {"Origin": "https://page.example"}
    preflight = httpx.options(f"{server.url}/v1/chat/completions", headers=origin, timeout=60)
    assert (preflight.status_code, preflight.content) == (200, b"")
    assert preflight.headers["access-control-allow-origin"] == origin["Origin"]
    assert "POST" in preflight.headers["access-control-allow-methods"]
    for answer in (
        server.post("/v1/chat/completions", PERU, headers=origin),
        server.post("/v1/chat/completions", {**PERU, "stream": True}, headers=origin),
        server.get("/v1/nothing", headers=origin),
    ):
        assert answer.headers["access-control-allow-origin"] == origin["Origin"]


def test_bodies_that_are_being_sent_share_a_bounded_room(server: Served) -> None:
    begun = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n600000\r\n"
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port or 80)) as other:
        other.sendall(begun.encode() + b" " * 0x600000)
        wait_until(lambda: status_of_a_large_body(server) == 503, 10, "the other body is held")
        assert server.get("/health").status_code == 200
    # The other one left in the middle of its body: its room is free again.
    wait_until(lambda: status_of_a_large_body(server) == 400, 10, "the room is given back")
    assert not [line for line in server.lines if "ASGI" in line]


def status_of_a_large_body(server: Served) -> int | None:
    """400, for its content, where there is room to read it; None when the server hung up early."""
    try:
        response = server.post("/v1/completions", {"prompt": 1, "filler": "x" * (6 << 20)})
    except httpx.TransportError:
        return None
    if response.status_code == 503:
        assert response.headers["retry-after"] == "1"
        assert "there is no room for this one" in response.json()["error"]["message"]
    return response.status_code


def test_a_wrong_method_is_told_so(server: Served) -> None:
    response = server.get("/v1/chat/completions")
    assert response.status_code == 405
    assert response.json()["error"]["code"] == 405


def test_a_client_that_leaves_ends_its_generation(server: Served) -> None:
    cancelled = server.metric("guanaco_requests_cancelled_total")
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=LONG, timeout=60) as response:
        chunks = response.iter_raw()
        next(chunks)
        assert server.metric("llamacpp:requests_processing") == 1
    wait_until(lambda: server.metric("guanaco_requests_cancelled_total") == cancelled + 1, 3, "cancelled")
    wait_until(lambda: server.metric("llamacpp:requests_processing") == 0, 5, "the engine stopped")
    assert server.metric("guanaco_requests_in_flight") == 0


def test_a_client_that_does_not_stream_can_leave_too(server: Served) -> None:
    cancelled = server.metric("guanaco_requests_cancelled_total")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/chat/completions", json={**LONG, "stream": False}, timeout=0.5)
    wait_until(lambda: server.metric("guanaco_requests_cancelled_total") == cancelled + 1, 3, "cancelled")
    time.sleep(2.5)  # the engine looks once a second, and only while nobody else asks it for something
    assert server.metric("llamacpp:requests_processing") == 0


def test_requests_at_once_are_all_answered(server: Served) -> None:
    with httpx.Client(timeout=60) as client:
        import concurrent.futures

        def ask(_: int) -> str:
            answer = client.post(f"{server.url}/v1/chat/completions", json=PERU).json()
            return str(answer["choices"][0]["message"]["content"])

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            assert set(pool.map(ask, range(6))) == {"The capital of Peru is Lima."}


@pytest.mark.parametrize(
    ("words", "tokens"), [(("-c", "5000", "-np", "2"), 1024), (("-c", "769", "-np", "3"), 512)]
)
def test_the_context_of_a_request_is_what_the_engine_gives(words: tuple[str, ...], tokens: int) -> None:
    with served(MODEL, "--memory", "512MiB", *words) as running:
        assert running.get("/props").json()["default_generation_settings"]["n_ctx"] == tokens
        assert running.get("/v1/models").json()["data"][0]["context_length"] == tokens
        told = [line for line in running.lines if "gives no request more; 2048 are planned" in line]
        assert len(told) == (tokens == 1024)


def test_embeddings_where_they_are_asked_for() -> None:
    with served(
        MODEL, "--embeddings", "--pooling", "mean", "--memory", "512MiB", "-a", "embedder"
    ) as running:
        body = {"input": ["a fox", "an owl"]}
        answer = running.post("/v1/embeddings", body).json()
        vectors = [row["embedding"] for row in answer["data"]]
        assert [len(vector) for vector in vectors] == [192, 192]
        assert vectors[0] != vectors[1]
        assert running.get("/v1/models").json()["data"][0]["id"] == "embedder"


def test_with_a_key_everything_but_health_needs_it() -> None:
    with served(MODEL, "--memory", "512MiB", "--api-key", "first,second") as running:
        assert running.get("/health").status_code == 200
        assert httpx.head(f"{running.url}/health", timeout=60).status_code == 200
        assert httpx.head(f"{running.url}/v1/models", timeout=60).status_code == 401
        assert httpx.options(f"{running.url}/v1/models", timeout=60).status_code == 200
        for path in ("/v1/models", "/metrics", "/props"):
            refused = running.get(path)
            assert refused.status_code == 401
            assert refused.json()["error"]["type"] == "authentication_error"
        assert running.post("/v1/chat/completions", PERU).status_code == 401
        for headers in ({"Authorization": "Bearer second"}, {"X-Api-Key": "first"}):
            assert running.get("/v1/models", headers=headers).status_code == 200
        wrong = {"Authorization": "Bearer firs"}
        assert running.post("/v1/chat/completions", PERU, headers=wrong).status_code == 401
        right = {"Authorization": "Bearer first"}
        assert running.post("/v1/chat/completions", PERU, headers=right).status_code == 200


@pytest.mark.parametrize("shift", [True, False])
def test_with_context_shift_an_answer_goes_on_past_a_full_context(shift: bool) -> None:
    flag = ["--context-shift"] if shift else []
    endless = {"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True, "temperature": 0}
    with served(*STREAMED, "-c", "256", *flag) as running:
        usage = running.post("/v1/completions", endless).json()["usage"]
    if shift:
        assert usage["completion_tokens"] == 300
    else:
        assert usage["completion_tokens"] + usage["prompt_tokens"] <= 256


def test_a_text_that_the_tokenizer_has_no_room_for_is_refused_before_it_gets_there(server: Served) -> None:
    refused = server.post("/v1/completions", {"prompt": "a" * 2_000_000})
    assert refused.status_code == 413
    assert "most of it for its text, and there is room for 10.0 MiB" in refused.json()["error"]["message"]
    too_long = server.post("/v1/completions", {"prompt": "a cat " * 10_000})
    assert too_long.status_code == 400
    assert "context" in too_long.json()["error"]["message"]
    (row,) = server.get("/v1/models").json()["data"]
    assert row["memory"]["peak_bytes"] < row["memory"]["budget_bytes"]


@pytest.mark.parametrize("cache_type", ["f16", "f32"])
def test_the_k_caches_that_are_accepted_can_be_shifted(cache_type: str) -> None:
    endless = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
    with served(*STREAMED, "-c", "256", "--context-shift", "-ctk", cache_type) as running:
        assert running.post("/v1/completions", endless).json()["usage"]["completion_tokens"] == 400
