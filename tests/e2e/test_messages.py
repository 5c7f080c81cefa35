"""/v1/messages over a real pool: text, stops, usage and errors, whole and streamed, in Anthropic's form."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests import anthropic_grammar
from tests.conftest import StartPool
from tests.e2e.anthropic_answers import COUNT, MESSAGES, VERSION, both, error_of, says, streamed, text_of
from tests.e2e.claude_code import claude_code_body
from tests.pool import ECHO_TEMPLATE, Pool, running_pool
from tests.raw_http import RawConnection, request
from tests.streams import OpenRequest

pytestmark = pytest.mark.e2e

FAILS_AT_ONCE, FAILS_LATER, IS_REFUSED = 1, 2, 3


@pytest.fixture(scope="module")
def faulty_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """An engine that fails on demand, a key, a short context and a small limit of bodies."""
    faults = (f"error:{FAILS_AT_ONCE}:0", f"error:{FAILS_LATER}:3", f"refuse:{IS_REFUSED}:0")
    # A step takes a while, so that what fails later fails after the headers have left.
    engine = ["--mode", "echo", "--step-ms", "5", *(word for fault in faults for word in ("--fault", fault))]
    flags = ("--api-server-count", "1", "--chat-template", ECHO_TEMPLATE, "--max-model-len", "64")
    limits = ("--max-body-bytes", "10000")
    with running_pool(tmp_path_factory.mktemp("faulty") / "pool.log", *flags, *limits, engine=engine) as pool:
        yield pool


# ---- text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["Hello", "Grüße 🎉 世界", "👩‍👩‍👧", "a\x00b", ' "quoted" \\ \n\n data: x\n\n'])
def test_the_text_is_whole_in_both_modes(echo_pool: Pool, text: str) -> None:
    answer = both(echo_pool, says(text))
    assert answer["content"] == [{"type": "text", "text": text}]
    assert answer["stop_reason"] == "end_turn"


def test_no_delta_ends_in_half_a_character(echo_pool: Pool) -> None:
    deltas = [
        document["delta"]["text"]
        for document in streamed(echo_pool, says("🎉ď世"))
        if document["type"] == "content_block_delta"
    ]
    assert "".join(deltas) == "🎉ď世"
    assert not any("�" in delta for delta in deltas)


def test_the_stream_says_its_prompts_tokens_before_the_first_of_the_answer(echo_pool: Pool) -> None:
    first, second, *_ = streamed(echo_pool, says("Hello"))
    assert first["message"]["usage"]["input_tokens"] == 5
    assert second == {"type": "ping"}


def test_max_tokens_ends_it(echo_pool: Pool) -> None:
    answer = both(echo_pool, says("Hello", max_tokens=2))
    assert (text_of(answer), answer["stop_reason"], answer["usage"]["output_tokens"]) == ("He", "max_tokens", 2)


def test_max_tokens_beyond_the_context_are_cut_to_the_room_and_not_refused(faulty_pool: Pool) -> None:
    """Agents send 65,535 and mean "as many as there is room for" (vllm#42474)."""
    assert both(faulty_pool, says("Hi", max_tokens=65_535))["stop_reason"] == "end_turn"
    answer = both(faulty_pool, says("a" * 60, max_tokens=65_535))
    assert (answer["stop_reason"], answer["usage"]["output_tokens"]) == ("model_context_window_exceeded", 4)


@pytest.mark.parametrize(
    ("stops", "text", "sequence"),
    [
        (["llo w"], "He", "llo w"),
        (["zz", "world", "wor"], "Hello ", "wor"),
        (["🎉"], "Hello world", "🎉"),
        (["nowhere"], "Hello world🎉!", None),
        (["Hello"], "", "Hello"),
    ],
)
def test_a_stop_sequence_ends_it_and_is_named(
    echo_pool: Pool, stops: list[str], text: str, sequence: str | None
) -> None:
    answer = both(echo_pool, says("Hello world🎉!", stop_sequences=stops))
    assert text_of(answer) == text
    assert answer["content"] == ([{"type": "text", "text": text}] if text else [])
    assert answer["stop_reason"] == ("end_turn" if sequence is None else "stop_sequence")
    assert answer.get("stop_sequence") == sequence


@pytest.mark.parametrize("thinking", [{"type": "adaptive"}, {"type": "disabled"}, None])
def test_every_way_of_thinking_is_taken(seeded_pool: Pool, thinking: Any) -> None:
    both(seeded_pool, says("Hi", thinking=thinking))


# ---- the prompt: one way to it --------------------------------------------------------------------------------------


def test_a_beginning_of_the_answer_is_continued(seeded_pool: Pool) -> None:
    """The prompt ends with it, and with no end of the turn (litellm#28580)."""
    conversation = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The answer is"}]
    rendered = seeded_pool.post(
        "/v1/chat/completions/render",
        {"messages": conversation, "continue_final_message": True},
    ).json()["prompts"][0]
    assert rendered["prompt"].endswith("The answer is")
    answer = both(seeded_pool, says("", messages=conversation, max_tokens=5))
    assert answer["usage"]["input_tokens"] == rendered["prompt_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "Grüße"}]},
        {"system": "Be brief.", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The"}]},
        claude_code_body(),
    ],
    ids=["text", "system", "prefill", "claude code"],
)
def test_count_tokens_counts_what_a_message_uses(echo_pool: Pool, fields: dict[str, Any]) -> None:
    counted = echo_pool.client.post(COUNT, params={"beta": "true"}, json={**fields, "model": "sim"}, headers=VERSION)
    assert counted.status_code == 200, counted.text
    assert set(counted.json()) == {"input_tokens"}
    assert "request-id" in counted.headers
    used = echo_pool.post(MESSAGES, {**fields, "model": "sim", "max_tokens": 2, "stream": False}).json()["usage"]
    assert counted.json()["input_tokens"] == used["input_tokens"] > 0


def test_the_same_conversation_is_the_same_prompt_in_every_dialect(seeded_pool: Pool) -> None:
    """vllm#55288: one way from messages to tokens."""
    turns = [
        {"role": "user", "content": "Grüße 🎉"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Bye"},
    ]
    chat = {"messages": [{"role": "system", "content": "Be brief."}, *turns]}
    message = {"messages": turns, "system": "Be brief."}
    tokenized = seeded_pool.post("/tokenize", chat).json()["count"]
    assert seeded_pool.post(COUNT, message).json()["input_tokens"] == tokenized
    both_usages = (
        seeded_pool.post("/v1/chat/completions", {**chat, "max_tokens": 1}).json()["usage"]["prompt_tokens"],
        seeded_pool.post(MESSAGES, {**message, "max_tokens": 1}).json()["usage"]["input_tokens"],
    )
    assert both_usages == (tokenized, tokenized)
    response = {"model": "sim", "instructions": "Be brief.", "input": turns, "max_output_tokens": 16, "store": False}
    assert seeded_pool.post("/v1/responses", response).json()["usage"]["input_tokens"] == tokenized


def test_a_request_as_claude_code_sends_it_is_answered(echo_pool: Pool) -> None:
    body = claude_code_body()
    documents = streamed(echo_pool, body, "/v1/messages?beta=true")
    assert documents[-1]["type"] == "message_stop"
    assert documents[0]["message"]["usage"]["input_tokens"] > 4_000


@pytest.mark.parametrize("path", ["/", "/api/hello"])
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_the_probes_of_claude_code_are_answered(echo_pool: Pool, method: str, path: str) -> None:
    assert echo_pool.client.request(method, path).status_code == 200


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "says_so"),
    [
        ({"max_tokens": None}, "max_tokens is required"),
        ({"messages": [{"role": "owner", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0] is of type 'image'"),
        ({"messages": [{"role": "user", "content": "a" * 64}]}, "maximum context length is 64 tokens"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_is_a_400_before_any_stream(
    faulty_pool: Pool, fields: dict[str, Any], says_so: str, stream: bool
) -> None:
    response = faulty_pool.post(MESSAGES, says("Hi", stream=stream) | fields)
    assert says_so in error_of(response, 400, "invalid_request_error")


def test_what_is_wrong_before_the_dialect_has_its_shape_too(faulty_pool: Pool) -> None:
    post = faulty_pool.client.post
    json_type = {"content-type": "application/json"}
    for path in (MESSAGES, COUNT):
        assert "valid JSON" in error_of(post(path, content=b"{", headers=json_type), 400, "invalid_request_error")
        error_of(post(path, content=b"{}", headers={"content-type": "text/plain"}), 415, "invalid_request_error")
        surrogate = b'{"messages": [{"role": "user", "content": "\\ud83d"}]}'
        assert "lone surrogate" in error_of(
            post(path, content=surrogate, headers=json_type), 400, "invalid_request_error"
        )
        error_of(post(path, json=says("a" * 10_000)), 413, "request_too_large")
        zipped = {**json_type, "content-encoding": "gzip"}
        error_of(post(path, content=b"{}", headers=zipped), 415, "invalid_request_error")
        get = faulty_pool.client.get(path)
        error_of(get, 405, "invalid_request_error")
        assert get.headers["allow"] == "POST"
        error_of(post(path, json=says("Hi", model="other")), 404, "not_found_error")
    error_of(post("/v1/messages/batches", json={}), 404, "not_found_error")
    error_of(post("/v1/nowhere", json={}, headers=VERSION), 404, "not_found_error")
    assert set(post("/v1/nowhere", json={}).json()) == {"error"}  # who says nothing is told in OpenAI's form


def test_a_head_of_a_route_that_wants_a_post_is_a_405_without_a_body(faulty_pool: Pool) -> None:
    with RawConnection(faulty_pool.url) as connection:
        connection.send(request("HEAD", MESSAGES))
        assert connection.reply(to_head=True).status == 405


def test_a_pool_that_is_loading_is_a_503_that_says_when_to_come_again(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "1", engine=["--load-seconds", "600"], ready=False) as pool:
        response = pool.post(MESSAGES, says("Hi"))
        error_of(response, 503, "overloaded_error")
        assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_the_engine_is_a_503_in_both_modes(faulty_pool: Pool, stream: bool) -> None:
    response = faulty_pool.post(MESSAGES, says(f"{chr(IS_REFUSED)}abc", stream=stream))
    if response.status_code == 200:  # the sim accepts before it refuses: then the stream says it
        assert stream
        documents = anthropic_grammar.frames(response.content)
        anthropic_grammar.check(documents)
        assert documents[-1]["error"]["type"] == "overloaded_error"
        return
    error_of(response, 503, "overloaded_error")
    assert int(response.headers["retry-after"]) >= 1


def test_a_failure_of_the_engine_is_a_500_without_our_insides(faulty_pool: Pool) -> None:
    message = error_of(faulty_pool.post(MESSAGES, says(f"{chr(FAILS_AT_ONCE)}abc")), 500, "api_error")
    assert "Traceback" not in message


@pytest.mark.parametrize("fault", [FAILS_AT_ONCE, FAILS_LATER])
def test_a_stream_that_fails_closes_its_block_and_ends_with_an_error_event(faulty_pool: Pool, fault: int) -> None:
    body = json.dumps(says(f"{chr(fault)}abcdef", stream=True))
    headers = {"content-type": "application/json", "x-request-id": "mine"}
    response = faulty_pool.client.post(MESSAGES, content=body, headers=headers)
    assert response.status_code == 200
    documents = anthropic_grammar.frames(response.content)
    anthropic_grammar.check(documents)
    assert documents[-1]["error"]["type"] == "api_error"
    assert documents[-1]["request_id"] == response.headers["request-id"] == "mine"
    kinds = [document["type"] for document in documents]
    assert ("content_block_stop" in kinds) == (fault == FAILS_LATER)
    assert "message_stop" not in kinds
    assert text_of(both(faulty_pool, says("again"))) == "again"


def test_what_a_client_has_read_when_it_leaves_broke_no_rule(seeded_pool: Pool) -> None:
    with OpenRequest(seeded_pool.url, MESSAGES, says("Hi", max_tokens=4000, stream=True)) as stream:
        read = b""
        while b"content_block_delta" not in read:
            read += stream.read_some()
    whole_frames = read[: read.rindex(b"\n\n") + 2]
    anthropic_grammar.check(anthropic_grammar.frames(whole_frames), whole=False)
    seeded_pool.wait_idle()


# ---- models ---------------------------------------------------------------------------------------------------------


def test_aliases_are_served_and_listed_unless_they_are_patterns(start_pool: StartPool) -> None:
    flags = ("--api-server-count", "1", "--model-alias", "claude-*", "claude-mine")
    with start_pool(*flags, engine=["--mode", "echo"]) as pool:
        for model in ("sim", "claude-opus-5", "claude-mine"):
            assert both(pool, says("Hi", model=model))["model"] == model
            chat = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
            assert pool.post("/v1/chat/completions", chat).json()["model"] == model
        error_of(pool.post(MESSAGES, says("Hi", model="gpt-4o")), 404, "not_found_error")
        listed = pool.client.get("/v1/models", headers=VERSION).json()
        assert [model["id"] for model in listed["data"]] == ["sim", "claude-mine"]
        assert [model["id"] for model in pool.get("/v1/models").json()["data"]] == ["sim", "claude-mine"]


def test_the_list_of_models_comes_in_pages(start_pool: StartPool) -> None:
    names = ["a", "b", "c", "d"]
    with start_pool("--api-server-count", "1", "--served-model-name", *names, engine=["--mode", "echo"]) as pool:

        def page(**query: Any) -> tuple[list[str], bool]:
            document = pool.client.get("/v1/models", params=query, headers=VERSION).json()
            ids = [model["id"] for model in document["data"]]
            assert (document["first_id"], document["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
            return ids, document["has_more"]

        assert page() == (names, False)
        assert page(limit=2) == (["a", "b"], True)
        assert page(limit=2, after_id="b") == (["c", "d"], False)
        assert page(after_id="d") == ([], False)
        assert page(limit=2, before_id="d") == (["b", "c"], True)
        assert page(limit=1000, before_id="b") == (["a"], False)
        for wrong in ({"limit": "0"}, {"limit": "1001"}, {"limit": "x"}, {"limit": "²"}):
            answer = pool.client.get("/v1/models", params=wrong, headers=VERSION)
            error_of(answer, 400, "invalid_request_error")
        for wrong in ({"after_id": "z"}, {"before_id": "z"}):
            error_of(pool.client.get("/v1/models", params=wrong, headers=VERSION), 404, "not_found_error")
        error_of(pool.client.get("/v1/models/z", headers=VERSION), 404, "not_found_error")
