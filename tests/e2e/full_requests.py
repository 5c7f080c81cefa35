"""A request of each route with many of its fields set, and every place in it, for rules that hold in each."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from tests.e2e.refusals import CHAT, COMPLETIONS, DECIDING, EMBEDDINGS, GENERATE, GOOD, HI, TOKEN_GENERATE, TOOL

Place = tuple[str | int, ...]
_MARK = "@@this place@@"
_SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "seed": 3,
    "n": 1,
    "stop_token_ids": [5],
    "logit_bias": {"5": 1},
}
_CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
_ASKED = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
_TOLD = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]}
_NATIVE = {"max_new_tokens": 5, "stop": ["zz"], "stop_token_ids": [5], "temperature": 0.5, "n": 1, "top_k": 5}
_CHAT = {"messages": [*HI, _ASKED, _TOLD], "tools": [TOOL], "chat_template_kwargs": {"x": 1}, "stop": ["zz"]}
_BLOCKS = [{"type": "text", "text": "Hi"}]
_ANTHROPIC = {
    "model": "sim",
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": _BLOCKS},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]},
    ],
    "tools": [{"name": "look", "description": "d", "input_schema": {"type": "object"}}],
}
_ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
]
FULL: dict[str, dict[str, Any]] = {
    **GOOD,
    CHAT: {**_CHAT, **_SAMPLING, "max_tokens": 5, "logprobs": True, "top_logprobs": 1, "reasoning_effort": "low"},
    COMPLETIONS: {**_SAMPLING, "prompt": ["Hi", "Ho"], "max_tokens": 5, "stop": "zz", "logprobs": 1, "echo": True},
    EMBEDDINGS: {"input": ["Hi", "Ho"], "encoding_format": "base64", "dimensions": 8, "truncate_prompt_tokens": 5},
    GENERATE: {"text": ["Hi"], "sampling_params": _NATIVE, "return_logprob": True, "top_logprobs_num": 1, "rid": "a"},
    TOKEN_GENERATE: {"token_ids": [72, 105], "sampling_params": {**_SAMPLING, "max_tokens": 5}, "request_id": "a"},
    "/v1/chat/completions/render": _CHAT,
    "/v1/messages": {**_ANTHROPIC, "max_tokens": 5, "stop_sequences": ["zz"], "temperature": 0.5},
    "/v1/messages/count_tokens": _ANTHROPIC,
    "/v1/responses": {
        "model": "sim",
        "input": _ITEMS,
        "instructions": "i",
        "store": False,
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
        "text": {"format": {"type": "text"}},
    },
    "/v1/decisions": {"model": "sim", "input": [{"role": "user", "content": "Hi"}], "questions": [DECIDING]},
    "/encode": {"text": ["Hi", "Ho"], "rid": "a", "priority": 1},
    "/rerank": {"query": "Hi", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True},
    "/embed": {"inputs": ["Hi"], "truncate": True, "truncation_direction": "Left", "dimensions": 8},
}


def places(document: Any, at: Place = ()) -> Iterator[Place]:
    """Every place in it, from the outermost on."""
    yield at
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*at, key))
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield from places(value, (*at, number))


def with_value(document: dict[str, Any], place: Place, value: bytes, **more: Any) -> bytes:
    """The document's JSON with these bytes in this place."""
    if not place:
        return value
    changed = copy.deepcopy(document)
    inner: Any = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = _MARK
    return json.dumps({**changed, **more}).encode().replace(json.dumps(_MARK).encode(), value)
