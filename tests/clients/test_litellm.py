"""litellm, as its users use it: it speaks OpenAI's and Anthropic's APIs to the pool."""

import asyncio
import gc
import json
import warnings
from collections.abc import Iterator
from typing import Any

import litellm
import pytest

from tests.pool import Pool

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("default")]

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


@pytest.fixture(scope="module", autouse=True)
def what_litellm_leaves_open() -> Iterator[None]:
    """It closes neither the connections that it keeps nor the event loop that its plain calls make. Whenever these are
    collected later, they would fail whatever runs then."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        litellm.in_memory_llm_clients_cache.flush_cache()
        asyncio.set_event_loop(None)
        gc.collect()


def options(pool: Pool, model: str = "openai/sim", text: str = "Grüße 🎉", **fields: Any) -> dict[str, Any]:
    base = pool.url if model.startswith("anthropic/") else pool.url + "/v1"
    messages = [{"role": "user", "content": text}]
    return {"model": model, "api_base": base, "api_key": "none", "num_retries": 0, "messages": messages, **fields}


def both(pool: Pool, **fields: Any) -> tuple[Any, Any]:
    """The whole answer, and what litellm builds of the stream."""
    asked = options(pool, **fields)
    whole: Any = litellm.completion(**asked)
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    return whole, litellm.stream_chunk_builder(chunks, messages=asked["messages"])


@pytest.mark.exercises("litellm", "/v1/chat/completions", "whole and streamed with usage")
def test_a_chat_is_the_same_whole_and_streamed(echo_pool: Pool) -> None:
    whole, built = both(echo_pool)
    assert built.choices[0].message.content == whole.choices[0].message.content == "Grüße 🎉"
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert built.usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.exercises("litellm", "/v1/chat/completions", "tools, whole and streamed")
def test_a_tool_is_called_whole_and_streamed(echo_pool: Pool) -> None:
    for answer in both(echo_pool, text=CALL, tools=[TOOL]):
        [call] = answer.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Köln"})


@pytest.mark.exercises("litellm", "/v1/messages", "whole and streamed, tools")
def test_messages_are_spoken(echo_pool: Pool) -> None:
    whole, built = both(echo_pool, model="anthropic/sim", max_tokens=100)
    assert built.choices[0].message.content == whole.choices[0].message.content == "Grüße 🎉"
    called: Any = litellm.completion(**options(echo_pool, "anthropic/sim", CALL, tools=[TOOL], max_tokens=200))
    assert [call.function.name for call in called.choices[0].message.tool_calls] == ["weather"]


def respond(pool: Pool, text: str, model: str = "openai/sim", **fields: Any) -> Any:
    return litellm.responses(model=model, api_base=pool.url + "/v1", api_key="none", input=text, **fields)


def respond_by_stream(pool: Pool, text: str, **fields: Any) -> Any:
    """The response of the stream's last event, whose text is what the deltas were."""
    events = list(respond(pool, text, **fields, stream=True))
    assert [events[0].type, events[-1].type] == ["response.created", "response.completed"]
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    [message] = events[-1].response.output
    assert message.content[0].text == deltas
    return events[-1].response


@pytest.mark.exercises("litellm", "/v1/responses", "whole and streamed, tools")
def test_a_response_is_the_same_whole_and_streamed(echo_pool: Pool) -> None:
    for response in (respond(echo_pool, "Grüße 🎉"), respond_by_stream(echo_pool, "Grüße 🎉")):
        assert response.status == "completed"
        assert response.output[0].content[0].text == "Grüße 🎉"
    [call] = respond(echo_pool, CALL, tools=[{"type": "function", **TOOL["function"]}]).output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Köln"})


@pytest.mark.exercises("litellm", "/v1/responses", "fetched, continued, deleted")
def test_a_response_is_fetched_continued_and_deleted(echo_pool: Pool) -> None:
    where: dict[str, Any] = {"api_base": echo_pool.url + "/v1", "api_key": "none", "custom_llm_provider": "openai"}
    first = respond(echo_pool, "one ")
    assert litellm.get_responses(response_id=first.id, **where).output[0].content[0].text == "one "
    second = respond(echo_pool, "two", previous_response_id=first.id)
    assert second.output[0].content[0].text == "one one two"
    assert litellm.delete_responses(response_id=first.id, **where).deleted
    with pytest.raises(litellm.NotFoundError):
        litellm.get_responses(response_id=first.id, **where)


@pytest.mark.exercises("litellm", "/v1/completions", "whole")
def test_a_text_is_completed(echo_pool: Pool) -> None:
    asked = {"model": "text-completion-openai/sim", "api_base": echo_pool.url + "/v1", "api_key": "none"}
    whole: Any = litellm.text_completion(**asked, prompt="Hello", max_tokens=50)
    assert whole.choices[0].text == "Hello"


@pytest.mark.exercises("litellm", "/v1/embeddings", "a list of texts")
def test_texts_are_embedded(embed_pool: Pool) -> None:
    asked = {"model": "openai/sim", "api_base": embed_pool.url + "/v1", "api_key": "none"}
    assert len(litellm.embedding(**asked, input=["one", "two"]).data) == 2


@pytest.mark.exercises("litellm", "/v1/chat/completions", "a refusal is the exception of its kind")
def test_a_refusal_is_an_exception_of_its_kind(echo_pool: Pool) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**options(echo_pool, "openai/other"))
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**options(echo_pool, max_tokens=-1))


@pytest.mark.model
@pytest.mark.exercises("litellm", "/v1/chat/completions", "a real model, whole and streamed, json_schema")
def test_a_real_model_answers_and_keeps_a_schema(smollm2_pool: Pool) -> None:
    fields: dict[str, Any] = {"model": "openai/smollm2", "text": "What is the capital of France?"}
    whole, built = both(smollm2_pool, **fields, temperature=0, max_tokens=24)
    assert built.choices[0].message.content == whole.choices[0].message.content
    form = {"type": "json_schema", "json_schema": {"name": "capital", "schema": SCHEMA}}
    made: Any = litellm.completion(**options(smollm2_pool, **fields, response_format=form, temperature=0))
    assert "city" in json.loads(made.choices[0].message.content)


@pytest.mark.model
@pytest.mark.exercises("litellm", "/v1/responses", "a real model, whole and streamed")
def test_a_real_model_responds(smollm2_pool: Pool) -> None:
    fields: dict[str, Any] = {"model": "openai/smollm2", "temperature": 0, "max_output_tokens": 24}
    whole = respond(smollm2_pool, "What is the capital of France?", **fields)
    built = respond_by_stream(smollm2_pool, "What is the capital of France?", **fields)
    assert "Paris" in whole.output[0].content[0].text
    assert built.output[0].content[0].text == whole.output[0].content[0].text
