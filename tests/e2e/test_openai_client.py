"""The official client reads every reply and chunk, and each is valid by the client's own models.

The client itself builds its objects without validating (an odd field would go unnoticed), so each is validated here.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

from tests.pool import Pool

M = TypeVar("M", bound=BaseModel)

TOOL: Any = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}},
}
MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße 🎉"}]

CHATS: list[dict[str, Any]] = [
    {},
    {"n": 2, "seed": 1},
    {"logprobs": True, "top_logprobs": 3},
    {"stop": ["a", "zz"], "temperature": 0},
    {"tools": [TOOL], "tool_choice": "auto"},
    {"max_completion_tokens": 3},
    {"extra_body": {"return_token_ids": True, "ignore_eos": True}},
]
COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": "Hi"},
    {"prompt": ["Hi", "there"], "n": 2},
    {"prompt": [72, 105], "echo": True},  # with logprobs the first is null, as OpenAI has it and its model has not
    {"prompt": "Hi", "logprobs": 0, "max_tokens": 2},
]


def valid(reply: M) -> M:
    """The reply, validated strictly by its own class. Raises pydantic's ValidationError."""
    type(reply).model_validate(reply.model_dump(warnings="error"))
    return reply


def all_valid(chunks: Iterable[M]) -> list[M]:
    found = [valid(chunk) for chunk in chunks]
    assert found
    return found


@pytest.mark.parametrize("fields", CHATS, ids=str)
@pytest.mark.exercises("openai-python", "/v1/chat/completions", "whole and streamed, logprobs, n, stop, tools, usage")
def test_chats_are_valid_whole_and_streamed(seeded_pool: Pool, fields: dict[str, Any]) -> None:
    create = seeded_pool.openai.chat.completions.create
    fields = {"max_tokens": 12, **fields} if "max_completion_tokens" not in fields else fields
    valid(create(model="sim", messages=MESSAGES, **fields))
    options: Any = {"include_usage": True}
    all_valid(create(model="sim", messages=MESSAGES, stream=True, stream_options=options, **fields))


@pytest.mark.parametrize("fields", COMPLETIONS, ids=str)
@pytest.mark.exercises("openai-python", "/v1/completions", "whole and streamed, lists of prompts, n, echo, logprobs")
def test_completions_are_valid_whole_and_streamed(seeded_pool: Pool, fields: dict[str, Any]) -> None:
    create = seeded_pool.openai.completions.create
    valid(create(model="sim", **fields))
    chunks = list(create(model="sim", stream=True, stream_options={"include_usage": True}, **fields))
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        if choice.finish_reason is None:  # as OpenAI's own server sends it, though its model has no None here
            choice.finish_reason = "stop"
    all_valid(chunks)


@pytest.mark.exercises("openai-python", "/v1/embeddings", "base64 and floats")
def test_embeddings_are_valid_in_both_formats_and_the_same(embed_pool: Pool) -> None:
    create = embed_pool.openai.embeddings.create
    by_default = create(model="sim", input=["Hi", "there"])  # which this client asks for as base64
    floats = create(model="sim", input=["Hi", "there"], encoding_format="float")
    valid(by_default)
    valid(floats)
    assert [item.embedding for item in by_default.data] == [item.embedding for item in floats.data]


@pytest.mark.exercises("openai-python", "/v1/models", "listed and alone")
def test_models_are_valid_listed_and_alone(seeded_pool: Pool) -> None:
    models = seeded_pool.openai.models
    listed = all_valid(models.list())
    valid(models.retrieve("sim"))
    assert len(listed) == 1
