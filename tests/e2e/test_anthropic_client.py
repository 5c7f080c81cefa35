"""The official client of Anthropic reads every reply and stream, knows our errors, and tries again where it should."""

import asyncio
from collections.abc import Iterator
from typing import Any, TypeVar

import anthropic
import pytest
from anthropic.types import Message
from pydantic import BaseModel

from apiserver.http.app import CLIENT_LEFT
from tests import anthropic_grammar
from tests.conftest import StartPool
from tests.e2e.anthropic_answers import async_client_of, both, client_of, says, text_of
from tests.e2e.claude_code import claude_code_body
from tests.pool import ECHO_TEMPLATE, Pool, running_pool, wait_for

M = TypeVar("M", bound=BaseModel)

pytestmark = pytest.mark.e2e

FAILS_LATER, IS_REFUSED = 2, 3
KEY = "sk-first"
TOOL: Any = {
    "name": "look_up",
    "description": "Looks up a word.",
    "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}
GREEDY = {"temperature": 0}  # which this client sends no longer by itself
CREATED: list[dict[str, Any]] = [
    {},
    {"system": "Be brief.", "extra_body": {"temperature": 0, "top_p": 0.9, "top_k": 5}},
    {"stop_sequences": ["a", "zz"]},
    {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    {"tools": [TOOL], "tool_choice": {"type": "none"}},
    {"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "low"}},
    {"thinking": {"type": "disabled"}, "metadata": {"user_id": "u"}, "service_tier": "auto"},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The answer is"}]},
]


@pytest.fixture(scope="module")
def seeded(seeded_pool: Pool) -> Iterator[anthropic.Anthropic]:
    with client_of(seeded_pool) as client:
        yield client


@pytest.fixture(scope="module")
def guarded_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A key, an engine that fails on demand, and a small limit of bodies."""
    faults = ("--fault", f"error:{FAILS_LATER}:3", "--fault", f"refuse:{IS_REFUSED}:0")
    flags = ("--api-server-count", "1", "--chat-template", ECHO_TEMPLATE, "--api-key", KEY, "--max-body-bytes", "9999")
    engine = ["--mode", "echo", "--step-ms", "5", *faults]
    with running_pool(tmp_path_factory.mktemp("guarded") / "pool.log", *flags, engine=engine) as pool:
        yield pool


def valid(reply: M) -> M:
    """The reply, validated by its own class: the client builds its objects without. Raises pydantic's error."""
    type(reply).model_validate(reply.model_dump(warnings="error"))
    return reply


def document_of(message: Message) -> dict[str, Any]:
    return anthropic_grammar.read(message.to_dict())


# ---- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", CREATED, ids=str)
@pytest.mark.exercises(
    "anthropic-python", "/v1/messages", "whole and by the stream helper, tools, thinking, stop sequences"
)
def test_messages_are_valid_and_the_stream_helpers_fold_to_them(
    seeded: anthropic.Anthropic, seeded_pool: Pool, fields: dict[str, Any]
) -> None:
    body = says("Grüße 🎉", max_tokens=12) | fields
    message = seeded.messages.create(**body)
    valid(message)
    with seeded.messages.stream(**body) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "".join(block.text for block in message.content if block.type == "text")
    assert document_of(final) | {"id": message.id} == document_of(message)
    both(seeded_pool, {key: value for key, value in body.items() if key != "extra_body"} | body.get("extra_body", {}))


def test_every_event_of_a_stream_is_valid(seeded: anthropic.Anthropic) -> None:
    kinds: list[str] = []
    with seeded.messages.stream(**says("Hi", max_tokens=5)) as stream:
        for event in stream:
            valid(event)
            kinds.append(event.type)
        snapshot = stream.current_message_snapshot
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("text") == kinds.count("content_block_delta") > 0
    assert snapshot.usage.output_tokens == 5
    raw = list(seeded.messages.create(**says("Hi", max_tokens=5), stream=True))
    assert [valid(event) for event in raw]


def test_the_request_id_is_where_the_client_looks(seeded: anthropic.Anthropic) -> None:
    message = seeded.messages.create(**says("Hi", max_tokens=1))
    assert message._request_id  # its public name, by its documentation
    with seeded.messages.stream(**says("Hi", max_tokens=1)) as stream:
        assert stream.request_id


@pytest.mark.exercises("anthropic-python", "/v1/messages/count_tokens", "with tools and a system text")
def test_tokens_are_counted(seeded: anthropic.Anthropic) -> None:
    body: Any = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "tools": [TOOL], "system": "x"}
    counted = seeded.messages.count_tokens(**body)
    valid(counted)
    assert counted.input_tokens == seeded.messages.create(**body, max_tokens=1).usage.input_tokens


@pytest.mark.exercises("anthropic-python", "/v1/messages", "the beta namespace, Claude Code's own request")
def test_the_beta_namespace_takes_a_request_of_claude_code(echo_pool: Pool) -> None:
    body = claude_code_body()
    del body["stream"]
    betas = ["claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"]
    with client_of(echo_pool) as client:
        with client.beta.messages.stream(**body, betas=betas) as stream:
            final = stream.get_final_message()
        assert final.stop_reason == "end_turn"
        short = {**body, "max_tokens": 20}
        assert valid(client.beta.messages.create(**short, betas=betas))
        del short["max_tokens"], short["metadata"]
        counted = client.beta.messages.count_tokens(**short, betas=betas)
        assert counted.input_tokens == final.usage.input_tokens
        echoed = "".join(block.text for block in final.content if block.type == "text")
        assert "Fix the bug." in echoed
        assert "x-anthropic-billing-header" not in echoed


@pytest.mark.exercises("anthropic-python", "/v1/models", "listed and found")
def test_models_are_listed_and_found(seeded: anthropic.Anthropic) -> None:
    listed = list(seeded.models.list())
    assert [valid(model).id for model in listed] == ["sim"]
    assert valid(seeded.models.retrieve("sim"))
    assert listed[0].max_input_tokens == 4096
    with pytest.raises(anthropic.NotFoundError):
        seeded.models.retrieve("other")


@pytest.mark.exercises("anthropic-python", "/v1/messages", "the asynchronous client")
def test_the_asynchronous_client_is_served_alike(seeded_pool: Pool) -> None:
    async def ask() -> tuple[Message, Message, int]:
        async with async_client_of(seeded_pool) as client:
            body = says("Hi", max_tokens=8)
            message = await client.messages.create(**body)
            async with client.messages.stream(**body) as stream:
                assert "".join([text async for text in stream.text_stream])
                final = await stream.get_final_message()
            del body["max_tokens"]
            return message, final, (await client.messages.count_tokens(**body)).input_tokens

    message, final, counted = asyncio.run(ask())
    assert document_of(final) | {"id": message.id} == document_of(message)
    assert counted == message.usage.input_tokens


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_both_ways_to_send_a_key_are_taken_and_a_wrong_one_is_known(guarded_pool: Pool) -> None:
    ways: list[dict[str, Any]] = [{"api_key": KEY}, {"api_key": "x", "default_headers": {"x-api-key": KEY}}]
    for options in ways:
        with client_of(guarded_pool, **options) as client:
            assert client.messages.create(**says("Hi")).content
    with client_of(guarded_pool, api_key="wrong") as client:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            client.messages.create(**says("Hi"))
        assert caught.value.type == "authentication_error"
        assert caught.value.request_id


def test_each_failure_is_an_exception_of_the_clients_own(guarded_pool: Pool) -> None:
    refused: list[tuple[dict[str, Any], type[anthropic.APIStatusError], str]] = [
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error"),
        ({"model": "other"}, anthropic.NotFoundError, "not_found_error"),
        ({"system": "a" * 9999}, anthropic.APIStatusError, "request_too_large"),
        (says(f"{chr(FAILS_LATER)}abcdef"), anthropic.InternalServerError, "api_error"),
        (says(f"{chr(IS_REFUSED)}abcdef"), anthropic.InternalServerError, "overloaded_error"),
    ]
    with client_of(guarded_pool, api_key=KEY) as client:
        for fields, kind, word in refused:
            with pytest.raises(kind) as caught:
                client.messages.create(**{**says("Hi"), **fields})
            assert caught.value.type == word
            assert caught.value.request_id
            assert word in str(caught.value)


def test_a_stream_that_fails_raises_in_the_middle(guarded_pool: Pool) -> None:
    heard: list[str] = []
    with client_of(guarded_pool, api_key=KEY) as client:
        with (
            client.messages.stream(**says(f"{chr(FAILS_LATER)}abcdef")) as stream,
            pytest.raises(anthropic.APIStatusError) as caught,
        ):
            heard.extend(stream.text_stream)
        assert caught.value.type == "api_error"
    assert "".join(heard) == f"{chr(FAILS_LATER)}ab"


def test_a_refusal_is_tried_again_as_often_as_the_client_was_told(guarded_pool: Pool) -> None:
    def refusals() -> float:
        return guarded_pool.metric("http_responses_total", route="/v1/messages", status="503")

    before = refusals()
    with client_of(guarded_pool, api_key=KEY, max_retries=1) as client, pytest.raises(anthropic.InternalServerError):
        client.messages.create(**says(f"{chr(IS_REFUSED)}abc"))
    assert refusals() == before + 2


def test_who_comes_while_the_pool_loads_is_served_by_trying_again(start_pool: StartPool) -> None:
    engine = ["--mode", "echo", "--load-seconds", "1.5"]
    flags = ("--api-server-count", "1", "--chat-template", ECHO_TEMPLATE)
    with start_pool(*flags, engine=engine, ready=False) as pool, client_of(pool, max_retries=10) as client:
        assert client.messages.create(**says("Hi")).stop_reason == "end_turn"
        assert pool.metric("http_responses_total", route="/v1/messages", status="503") >= 1


def test_a_client_that_closes_its_stream_takes_its_work_out_of_the_engine(seeded_pool: Pool) -> None:
    status = str(CLIENT_LEFT)
    before = seeded_pool.metric("http_responses_total", route="/v1/messages", status=status)
    with client_of(seeded_pool) as client:
        stream = client.messages.create(**says("Hi", max_tokens=4000), stream=True)
        assert next(iter(stream)).type == "message_start"
        stream.close()
    seeded_pool.wait_idle()
    wait_for(lambda: seeded_pool.metric("http_responses_total", route="/v1/messages", status=status) == before + 1)


# ---- a real model ---------------------------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.exercises("anthropic-python", "/v1/messages", "a real model, whole and streamed")
def test_a_real_model_answers_whole_and_streamed_alike(smollm2_pool: Pool) -> None:
    body = says("What is the capital of France?", model="claude-mine", max_tokens=24, extra_body=GREEDY)
    with client_of(smollm2_pool) as client:
        message = client.messages.create(**body)
        valid(message)
        with client.messages.stream(**body) as stream:
            final = stream.get_final_message()
    assert document_of(final)["content"] == document_of(message)["content"]
    assert "Paris" in text_of(document_of(message))
    assert message.model == "claude-mine"
    used = [one.usage.input_tokens + (one.usage.cache_read_input_tokens or 0) for one in (message, final)]
    assert used[0] == used[1]


@pytest.mark.model
def test_a_real_model_goes_on_where_the_answer_was_begun(smollm2_pool: Pool) -> None:
    messages: Any = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    with client_of(smollm2_pool) as client:
        message = client.messages.create(
            model="smollm2", messages=messages, max_tokens=12, stop_sequences=["."], extra_body=GREEDY
        )
    answer = document_of(message)
    assert text_of(answer).strip().startswith("Paris")
    assert answer["stop_reason"] == "stop_sequence"


@pytest.mark.model
@pytest.mark.exercises("anthropic-python", "/v1/messages", "a real model with a schema and tools")
def test_a_real_model_takes_a_schema_and_tools(smollm2_pool: Pool) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    fields: Any = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    body = says("Name the capital of France as JSON.", model="smollm2", max_tokens=60, extra_body=GREEDY)
    with client_of(smollm2_pool) as client:
        message = client.messages.create(**body, **fields)
        assert '"city"' in text_of(document_of(message))
        assert client.messages.create(**body, tools=[TOOL]).content
