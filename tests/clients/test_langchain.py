"""langchain-openai, as its users use it: chats, streams, tools, structured output, embeddings."""

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_openai import OpenAI as CompletionOpenAI
from pydantic import BaseModel, SecretStr

from tests.pool import Pool

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("default")]

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


class Capital(BaseModel):
    city: str


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"Rain in {city}."


def chat(pool: Pool, model: str = "sim", **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=pool.url + "/v1", api_key=SecretStr("none"), max_retries=0, **options)


@pytest.mark.exercises("langchain-openai", "/v1/chat/completions", "invoke, stream with usage, batch")
def test_a_chat_is_the_same_invoked_and_streamed(echo_pool: Pool) -> None:
    model = chat(echo_pool, stream_usage=True)
    messages = [SystemMessage("Be brief. "), HumanMessage("Grüße 🎉")]
    whole = model.invoke(messages)
    assert whole.content == "Be brief. Grüße 🎉"
    assert whole.response_metadata["finish_reason"] == "stop"
    chunks = list(model.stream(messages))
    assert len(chunks) > 2
    folded = sum(chunks[1:], chunks[0])
    assert isinstance(folded, AIMessageChunk)
    assert folded.content == whole.content
    assert folded.usage_metadata == whole.usage_metadata
    assert [answer.content for answer in model.batch(["one", "two"])] == ["one", "two"]


@pytest.mark.exercises("langchain-openai", "/v1/chat/completions", "tools, whole and streamed")
def test_a_bound_tool_is_called_whole_and_streamed(echo_pool: Pool) -> None:
    model = chat(echo_pool).bind_tools([weather])
    whole = model.invoke(CALL)
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("weather", {"city": "Köln"})]
    chunks = list(model.stream(CALL))
    folded: Any = sum(chunks[1:], chunks[0])
    assert [(call["name"], call["args"]) for call in folded.tool_calls] == [("weather", {"city": "Köln"})]


@pytest.mark.exercises("langchain-openai", "/v1/responses", "invoke and stream")
def test_the_responses_api_is_spoken(echo_pool: Pool) -> None:
    model = chat(echo_pool, use_responses_api=True)
    assert model.invoke("Hello").text == "Hello"
    assert "".join(chunk.text for chunk in model.stream("Hello")) == "Hello"


@pytest.mark.exercises("langchain-openai", "/v1/completions", "invoke and stream")
def test_a_completion_is_the_same_invoked_and_streamed(echo_pool: Pool) -> None:
    model = CompletionOpenAI(
        model="sim", base_url=echo_pool.url + "/v1", api_key=SecretStr("none"), max_retries=0, max_tokens=50
    )
    assert model.invoke("Hello") == "".join(model.stream("Hello")) == "Hello"


@pytest.mark.exercises("langchain-openai", "/v1/embeddings", "documents and queries, as texts")
def test_documents_are_embedded(embed_pool: Pool) -> None:
    embeddings = OpenAIEmbeddings(
        model="sim", base_url=embed_pool.url + "/v1", api_key=SecretStr("none"), check_embedding_ctx_length=False
    )
    assert embeddings.embed_documents(["one", "two"])[0] == embeddings.embed_query("one")


@pytest.mark.model
@pytest.mark.exercises("langchain-openai", "/v1/chat/completions", "a real model's structured output and its stream")
def test_a_real_model_answers_and_keeps_a_schema(smollm2_pool: Pool) -> None:
    model = chat(smollm2_pool, "smollm2", temperature=0, max_tokens=60)
    asked = "What is the capital of France?"
    assert "".join(chunk.text for chunk in model.stream(asked)) == model.invoke(asked).text
    made = model.with_structured_output(Capital).invoke(asked)
    assert isinstance(made, Capital)
    assert json.dumps(made.city)
