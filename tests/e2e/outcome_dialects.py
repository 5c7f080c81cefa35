"""How each API that generates is asked for an outcome, and how that is read back, whole or streamed."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from tests import anthropic_grammar, openai_grammar, responses_grammar

TOOL_NAME = "weather"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
END_OF_TURN = 258


@dataclass(frozen=True)
class Ask:
    """What a test wants of a dialect: that an echoing engine says this text, under these conditions."""

    text: str
    stream: bool
    max_tokens: int = 7000
    n: int = 1
    stop: str | None = None
    tools: bool = False


@dataclass
class Choice:
    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    finish: str | None = None


@dataclass
class Outcome:
    """What a client has in the end. `error` is the error's own message."""

    choices: dict[int, Choice] = field(default_factory=dict[int, Choice])
    error: str | None = None

    def choice(self, index: int = 0) -> Choice:
        return self.choices.setdefault(index, Choice())


@dataclass(frozen=True)
class Dialect:
    """`words` are its finish reasons for a stop, a stop string, the length, and a tool call; `none` says why it has no
    such outcome."""

    name: str
    path: str
    ask: Callable[[Ask], dict[str, Any]]
    whole: Callable[[Any], Outcome]
    streamed: Callable[[bytes], Outcome]
    words: Mapping[str, str]
    none: Mapping[str, str] = field(default_factory=dict[str, str])


def outcome_of(dialect: Dialect, response: httpx.Response) -> Outcome:
    """A refusal or failure with a status is an outcome with an error and no choice."""
    if response.status_code != 200:
        return Outcome(error=response.json()["error"]["message"])
    if response.headers["content-type"].startswith("text/event-stream"):
        return dialect.streamed(response.content)
    return dialect.whole(response.json())


# ---- chat and completions -------------------------------------------------------------------------------------------


def _ask_chat(ask: Ask) -> dict[str, Any]:
    function = {"name": TOOL_NAME, "parameters": SCHEMA}
    return {
        "messages": [{"role": "user", "content": ask.text}],
        "max_tokens": ask.max_tokens,
        "stream": ask.stream,
        "n": ask.n,
        "stop": ask.stop,
        "tools": [{"type": "function", "function": function}] if ask.tools else None,
    }


def _ask_completion(ask: Ask) -> dict[str, Any]:
    return {"prompt": ask.text, "max_tokens": ask.max_tokens, "stream": ask.stream, "n": ask.n, "stop": ask.stop}


def _whole_choices(document: Any) -> Outcome:
    outcome = Outcome()
    for entry in document["choices"]:
        message = entry.get("message", {"content": entry.get("text")})
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        outcome.choices[entry["index"]] = Choice(
            message["content"] or "", message.get("reasoning") or "", calls, entry["finish_reason"]
        )
    return outcome


def _streamed_choices(data: bytes) -> Outcome:
    outcome = Outcome()
    for document in _documents(data, outcome):
        for entry in document["choices"]:
            choice = outcome.choice(entry["index"])
            delta = entry.get("delta", {"content": entry.get("text")})
            choice.text += delta.get("content") or ""
            choice.reasoning += delta.get("reasoning") or ""
            for call in delta.get("tool_calls", ()):
                name, arguments = choice.calls.pop() if "id" not in call else (call["function"]["name"], "")
                choice.calls.append((name, arguments + call["function"]["arguments"]))
            choice.finish = entry["finish_reason"] or choice.finish
    return outcome


def _documents(data: bytes, outcome: Outcome) -> list[Any]:
    """A stream's documents but for its end; an error goes into the outcome."""
    documents = openai_grammar.frames(data)
    openai_grammar.check(documents)
    errors = [document["error"]["message"] for document in documents[:-1] if "error" in document]
    outcome.error = errors[0] if errors else None
    return [document for document in documents[:-1] if "error" not in document]


# ---- messages -------------------------------------------------------------------------------------------------------


def _ask_message(ask: Ask) -> dict[str, Any]:
    tools = [{"name": TOOL_NAME, "input_schema": SCHEMA}] if ask.tools else None
    return {
        "messages": [{"role": "user", "content": ask.text}],
        "max_tokens": ask.max_tokens,
        "stream": ask.stream,
        "stop_sequences": [ask.stop] if ask.stop else None,
        "tools": tools,
    }


def _whole_message(document: Any) -> Outcome:
    choice = Choice(finish=document["stop_reason"])
    for block in document["content"]:
        match block["type"]:
            case "text":
                choice.text += block["text"]
            case "thinking":
                choice.reasoning += block["thinking"]
            case _:
                choice.calls.append((block["name"], json.dumps(block["input"], ensure_ascii=False)))
    return Outcome({0: choice})


def _streamed_message(data: bytes) -> Outcome:
    documents = anthropic_grammar.frames(data)
    if documents[-1]["type"] != "error":
        return _whole_message(anthropic_grammar.folded(documents))
    anthropic_grammar.check(documents)
    told = [document["delta"] for document in documents if document["type"] == "content_block_delta"]
    text = "".join(delta.get("text", "") for delta in told)
    return Outcome({0: Choice(text)} if text else {}, documents[-1]["error"]["message"])


# ---- responses ------------------------------------------------------------------------------------------------------


def _ask_response(ask: Ask) -> dict[str, Any]:
    return {
        "input": ask.text,
        "max_output_tokens": ask.max_tokens,
        "stream": ask.stream,
        "store": False,
        "tools": [{"type": "function", "name": TOOL_NAME, "parameters": SCHEMA}] if ask.tools else None,
    }


def _whole_response(document: Any) -> Outcome:
    choice = Choice()
    for item in document["output"]:
        match item["type"]:
            case "message":
                choice.text += "".join(part["text"] for part in item["content"])
            case "reasoning":
                choice.reasoning += "".join(part["text"] for part in item["content"])
            case _:
                choice.calls.append((item["name"], item["arguments"]))
    error = document["error"]
    if error is None:
        details = document["incomplete_details"]
        choice.finish = document["status"] if details is None else details["reason"]
    return Outcome({0: choice}, None if error is None else error["message"])


def _streamed_response(data: bytes) -> Outcome:
    last = responses_grammar.check(responses_grammar.parsed(data))
    return _whole_response(last["response"])


# ---- /generate and /inference/v1/generate ---------------------------------------------------------------------------


def _ask_native(ask: Ask) -> dict[str, Any]:
    params = {"max_new_tokens": ask.max_tokens, "n": ask.n, "stop": ask.stop}
    return {"text": ask.text, "sampling_params": params, "stream": ask.stream}


def _whole_native(document: Any) -> Outcome:
    outcome = Outcome()
    for index, entry in enumerate(document if isinstance(document, list) else [document]):
        outcome.choices[index] = Choice(entry["text"], finish=entry["meta_info"]["finish_reason"]["type"])
    return outcome


def _streamed_native(data: bytes) -> Outcome:
    outcome = Outcome()
    for document in _documents(data, outcome):
        choice = outcome.choice(document.get("index", 0))
        assert document["text"].startswith(choice.text), "each event has all text so far"
        choice.text = document["text"]
        reason = document["meta_info"]["finish_reason"]
        choice.finish = None if reason is None else reason["type"]
    return outcome


def _ask_ids(ask: Ask) -> dict[str, Any]:
    params = {"max_tokens": ask.max_tokens, "n": ask.n, "stop": ask.stop}
    return {"token_ids": list(ask.text.encode()), "sampling_params": params, "stream": ask.stream}


def _text(token_ids: list[int]) -> str:
    return bytes(token_id for token_id in token_ids if token_id != END_OF_TURN).decode()


def _whole_ids(document: Any) -> Outcome:
    choices = {
        entry["index"]: Choice(_text(entry["token_ids"]), finish=entry["finish_reason"])
        for entry in document["choices"]
    }
    return Outcome(choices)


def _streamed_ids(data: bytes) -> Outcome:
    outcome = Outcome()
    ids: dict[int, list[int]] = {}
    for document in _documents(data, outcome):
        for entry in document["choices"]:
            outcome.choice(entry["index"]).finish = entry["finish_reason"]
            ids.setdefault(entry["index"], []).extend(entry["token_ids"])
    for index, token_ids in ids.items():
        outcome.choice(index).text = _text(token_ids)
    return outcome


_OPENAI = {"stop": "stop", "stop string": "stop", "length": "length", "tool call": "tool_calls"}
_ONE = "one answer a request"
_TEXT_ONLY = "its answer is text alone: the markup stays in it"
_IDS_ONLY = "its answer is token ids alone"
_OWN = (
    Dialect("chat completions", "/v1/chat/completions", _ask_chat, _whole_choices, _streamed_choices, _OPENAI),
    Dialect(
        "completions",
        "/v1/completions",
        _ask_completion,
        _whole_choices,
        _streamed_choices,
        _OPENAI,
        {"tool call": _TEXT_ONLY, "reasoning": _TEXT_ONLY},
    ),
    Dialect(
        "Messages",
        "/v1/messages",
        _ask_message,
        _whole_message,
        _streamed_message,
        {"stop": "end_turn", "stop string": "stop_sequence", "length": "max_tokens", "tool call": "tool_use"},
        {"n = 2": _ONE},
    ),
    Dialect(
        "Responses",
        "/v1/responses",
        _ask_response,
        _whole_response,
        _streamed_response,
        {"stop": "completed", "length": "max_output_tokens", "tool call": "completed"},
        {"n = 2": _ONE, "stop string": "it has no stop strings"},
    ),
    Dialect(
        "SGLang's generate",
        "/generate",
        _ask_native,
        _whole_native,
        _streamed_native,
        _OPENAI,
        {"tool call": _TEXT_ONLY, "reasoning": _TEXT_ONLY},
    ),
    Dialect(
        "vLLM's generate",
        "/inference/v1/generate",
        _ask_ids,
        _whole_ids,
        _streamed_ids,
        _OPENAI,
        {"tool call": _IDS_ONLY, "reasoning": _IDS_ONLY},
    ),
)
_INVOKED = ("chat completions", "completions", "SGLang's generate", "vLLM's generate")
DIALECTS = _OWN + tuple(
    replace(one, name=f"invocations, {one.name}", path="/invocations") for one in _OWN if one.name in _INVOKED
)
"""Each API that generates, and each that /invocations may be."""
