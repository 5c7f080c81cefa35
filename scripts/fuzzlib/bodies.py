"""A body of each route that is answered, to begin from; what the server documents and has none here begins empty."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HI = [{"role": "user", "content": "Hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
CALLED = [
    {"role": "system", "content": [{"type": "text", "text": "S"}]},
    *HI,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "1"},
]
CHAT = {"model": "sim", "messages": HI, "max_tokens": 4}
RANKING = {"query": "Hi", "documents": ["a", "b"], "top_n": 1}
DECIDING = {"type": "choice", "instructions": "Which?", "choices": [{"value": "a"}, {"value": "b"}]}
OWN_QUESTION = {"id": "q", "question": "Which?", "type": "choice", "choices": ["a", "b"]}
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1, "stop": ["x"], "logit_bias": {"65": 1}}
COMPLETION = {"model": "sim", "prompt": "Hi", "max_tokens": 4}
NATIVE = {"text": "Hi", "sampling_params": {"max_new_tokens": 4, "temperature": 0.5, "stop": ["x"]}}
TOKENS = {"token_ids": [72, 105], "sampling_params": {"max_tokens": 4, **SAMPLING}}
MESSAGE = {"model": "sim", "max_tokens": 4, "messages": HI}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
LABELS = {"query": "Hi", "items": ["a"], "label_token_ids": [1, 2], "apply_softmax": True}

GOOD: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        CHAT,
        {**CHAT, **SAMPLING, "n": 2, "logprobs": True, "top_logprobs": 2},
        {**CHAT, "stream": True, "stream_options": {"include_usage": True}},
        {**CHAT, "messages": CALLED, "tools": [TOOL], "tool_choice": "auto"},
        {**CHAT, "response_format": SCHEMA},
        {**CHAT, "chat_template_kwargs": {"a": 1}, "reasoning_effort": "low"},
    ],
    "/v1/completions": [
        COMPLETION,
        {**COMPLETION, **SAMPLING, "n": 2, "best_of": 2, "logprobs": 2, "echo": True},
        {**COMPLETION, "prompt": [[72], [105, 106]], "stream": True},
    ],
    "/v1/messages": [
        MESSAGE,
        {**MESSAGE, "system": [{"type": "text", "text": "S"}], "stream": True, "stop_sequences": ["x"]},
        {
            **MESSAGE,
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
    ],
    "/v1/messages/count_tokens": [{"model": "sim", "messages": HI, "system": "S"}],
    "/v1/responses": [
        {"model": "sim", "input": "Hi", "max_output_tokens": 4},
        {
            "model": "sim",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
            "stream": True,
        },
        {"model": "sim", "input": "Hi", "max_output_tokens": 4, "background": True, "store": True},
        {"model": "sim", "input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]},
    ],
    "/v1/embeddings": [{"model": "sim", "input": "Hi"}, {"input": [[72], [105]], "encoding_format": "base64"}],
    "/generate": [
        NATIVE,
        {**NATIVE, "text": ["a", "b"], "return_logprob": True, "top_logprobs_num": 2, "rid": ["r1", "r2"]},
        {"input_ids": [[72], [105]], "sampling_params": [{"max_new_tokens": 2}, {"max_new_tokens": 3}], "stream": True},
    ],
    "/inference/v1/generate": [TOKENS, {**TOKENS, "stream": True}],
    "/encode": [{"text": "Hi"}, {"text": ["a", "b"]}],
    "/tokenize": [{"prompt": "Hi"}, {"messages": CALLED, "tools": [TOOL]}],
    "/detokenize": [{"tokens": [72, 105]}],
    "/v1/chat/completions/render": [CHAT, {**CHAT, "messages": CALLED, "tools": [TOOL]}],
    "/v1/completions/render": [COMPLETION],
    "/parse_function_call": [
        {"text": '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "tools": [TOOL], "tool_call_parser": "hermes"}
    ],
    "/separate_reasoning": [{"text": "<think>a</think>b", "reasoning_parser": "deepseek-r1"}],
    "/v1/decisions": [
        {"model": "sim", "input": "Hi", "questions": [DECIDING]},
        {"input": "Hi", "questions": [OWN_QUESTION]},
    ],
    "/v1/systemone": [{"state": "Hi", "questions": {"q": {"type": "choice", "criteria": {"a": None, "b": None}}}}],
    "/v1/score": [LABELS, {"text_1": "a", "text_2": ["b"]}],
    "/rerank": [RANKING, {"query": "Hi", "texts": ["a", "b"]}],
    "/v2/rerank": [RANKING],
    "/embed": [{"inputs": "Hi"}, {"inputs": ["a", "b"], "truncate": True}],
    "/similarity": [{"inputs": {"source_sentence": "Hi", "sentences": ["a"]}}],
    "/classify": [{"input": "Hi"}],
    "/invocations": [CHAT, COMPLETION, NATIVE, RANKING, TOKENS, {"input": "Hi"}, {"inputs": "Hi"}],
    "/abort_request": [{"rid": "r1"}],
    "/load_lora_adapter": [{"lora_name": "a", "lora_path": "b"}],
    "/unload_lora_adapter": [{"lora_name": "a"}],
}
_SAME = {
    "/v1/tokenize": "/tokenize",
    "/v1/detokenize": "/detokenize",
    "/score": "/v1/score",
    "/v1/rerank": "/rerank",
    "/v1/classify": "/classify",
}
STOPS_THE_REST = frozenset(("/pause_generation",))
"""Whoever asks for it properly holds up everybody else; it is sent in forms that are refused."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One route that takes bodies, as the server documents it."""

    path: str
    method: str
    fields: tuple[str, ...]
    good: list[dict[str, Any]]


def taken(document: Mapping[str, Any]) -> list[Taken]:
    """Every operation with a body of an OpenAPI document of ours."""
    schemas = document["components"]["schemas"]
    found: list[Taken] = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if "requestBody" not in operation or path in STOPS_THE_REST:
                continue
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            names = [one["$ref"].rpartition("/")[2] for one in schema.get("anyOf", [schema])]
            fields = dict.fromkeys(field for name in names for field in schemas[name].get("properties", {}))
            found.append(Taken(path, method.upper(), tuple(fields), GOOD.get(_SAME.get(path, path), [{}])))
    return found
