"""Each dialect's answers, whole and streamed, as what they say. A stream may break off anywhere."""

import json
from typing import Any

from chaoslib.ask import Reader, Said

_VOLATILE = frozenset(
    ("id", "created", "created_at", "request_id", "e2e_latency", "weight_version", "meta", "usage", "server_timing")
)


def events(body: bytes) -> list[Any]:
    """The documents of the frames that are whole; "[DONE]" is itself."""
    found: list[Any] = []
    for frame in body.decode(errors="surrogateescape").split("\n\n")[:-1]:
        for line in frame.split("\n"):
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                found.append(data if data == "[DONE]" else json.loads(data))
    return found


def by(whole: Any, streamed: Any, stream: bool) -> Reader:
    """A reader out of one for a document and one for events."""
    if stream:
        return lambda body, complete: streamed(events(body))
    return lambda body, complete: whole(json.loads(body)) if complete else Said()


def chat(document: Any) -> Said:
    texts: dict[int, str] = {}
    calls: list[tuple[str, Any]] = []
    for choice in document["choices"]:
        message = choice["message"]
        texts[choice["index"]] = message["content"] or ""
        functions = [call["function"] for call in message.get("tool_calls") or []]
        calls += [(function["name"], json.loads(function["arguments"])) for function in functions]
    return Said(texts, tuple(calls), all(choice["finish_reason"] for choice in document["choices"]))


def chat_events(documents: list[Any]) -> Said:
    return _choices(documents, lambda choice: choice["delta"].get("content") or "")


def completion(document: Any) -> Said:
    texts = {choice["index"]: choice["text"] for choice in document["choices"]}
    return Said(texts, (), all(choice["finish_reason"] for choice in document["choices"]))


def completion_events(documents: list[Any]) -> Said:
    return _choices(documents, lambda choice: choice["text"])


def _choices(documents: list[Any], text_of: Any) -> Said:
    texts: dict[int, str] = {}
    ended: set[int] = set()
    names: dict[tuple[int, int], str] = {}
    arguments: dict[tuple[int, int], str] = {}
    error = None
    for document in documents:
        if document == "[DONE]":
            continue
        error = _error(document) or error
        for choice in document.get("choices", ()):
            index = choice["index"]
            texts[index] = texts.get(index, "") + text_of(choice)
            if choice["finish_reason"]:
                ended.add(index)
            for call in choice.get("delta", {}).get("tool_calls") or ():
                place = index, call["index"]
                names[place] = names.get(place, "") + (call["function"].get("name") or "")
                arguments[place] = arguments.get(place, "") + (call["function"].get("arguments") or "")
    done = bool(documents) and documents[-1] == "[DONE]" and ended == set(texts)
    calls = tuple((names[place], json.loads(arguments[place])) for place in sorted(names)) if done else ()
    return Said(texts, calls, done and bool(texts), error)


def _error(document: Any) -> str | None:
    return str(document["error"]) if document.get("error") else None


def message(document: Any) -> Said:
    calls = tuple((block["name"], block["input"]) for block in document["content"] if block["type"] == "tool_use")
    text = "".join(block["text"] for block in document["content"] if block["type"] == "text")
    return Said({0: text}, calls, document["stop_reason"] is not None)


def message_events(documents: list[Any]) -> Said:
    text, error, finished = "", None, False
    name, arguments = "", ""
    for document in documents:
        kind = document["type"]
        if kind == "content_block_delta":
            text += document["delta"].get("text", "")
            arguments += document["delta"].get("partial_json", "")
        elif kind == "content_block_start" and document["content_block"]["type"] == "tool_use":
            name = document["content_block"]["name"]
        elif kind == "error":
            error = str(document["error"])
        elif kind == "message_stop":
            finished = True
    calls = ((name, json.loads(arguments)),) if name and finished else ()
    return Said({0: text}, calls, finished, error)


def response(document: Any) -> Said:
    status = document["status"]
    text = "".join(part["text"] for item in document["output"] if item["type"] == "message" for part in item["content"])
    error = str(document["error"]) if status in ("failed", "cancelled") else None
    return Said({0: text}, (), status in ("completed", "incomplete"), error, status in ("queued", "in_progress"))


def response_events(documents: list[Any]) -> Said:
    text, end, error = "", None, None
    for document in documents:
        if document == "[DONE]":
            continue
        kind = document["type"]
        if kind == "response.output_text.delta":
            text += document["delta"]
        elif kind in ("response.completed", "response.incomplete"):
            end = response(document["response"])
        elif kind in ("response.failed", "error"):
            error = str(document.get("response", document).get("error", document))
    if end is not None and end.texts[0] != text:
        raise ValueError(f"the deltas say {text!r}, the end {end.texts[0]!r}")
    return Said({0: text}, (), end is not None, error)


def generated(document: Any) -> Said:
    """SGLang's: one, or a list of them."""
    documents = document if isinstance(document, list) else [document]
    texts = {index: one["text"] for index, one in enumerate(documents)}
    return Said(texts, (), all(one["meta_info"]["finish_reason"] for one in documents))


def generated_events(documents: list[Any]) -> Said:
    """Cumulative: each holds all so far."""
    text, finished, error = "", False, None
    for document in documents:
        if document == "[DONE]":
            continue
        error = _error(document) or error
        if "text" in document:
            if not document["text"].startswith(text):
                raise ValueError(f"{document['text']!r} does not go on from {text!r}")
            text = document["text"]
            finished = document["meta_info"]["finish_reason"] is not None
    return Said({0: text}, (), finished and documents[-1] == "[DONE]", error)


def token_ids(document: Any) -> Said:
    """vLLM's, whose ids are bytes here."""
    texts = {one["index"]: bytes(i for i in one["token_ids"] if i < 256).decode() for one in document["choices"]}
    return Said(texts, (), all(one["finish_reason"] for one in document["choices"]))


def same(document: Any) -> Said:
    """All that may not differ between two answers to the same request, as a text."""
    return Said({0: json.dumps(_lasting(document), sort_keys=True)}, (), True)


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in _VOLATILE}
    return [_lasting(item) for item in value] if isinstance(value, list) else value
