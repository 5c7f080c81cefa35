"""What every stream of /v1/messages keeps, by its bytes; and its fold by the official client's accumulator."""

import json
from collections.abc import Sequence
from typing import Any

from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_DELTAS = {
    "text": ("text_delta",),
    "thinking": ("thinking_delta", "signature_delta"),
    "tool_use": ("input_json_delta",),
}
_STOP_REASONS = ("end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "model_context_window_exceeded")


def frames(data: bytes) -> list[dict[str, Any]]:
    """The documents of an event stream. Each frame has its event's name and one line of data, which agree."""
    *events, rest = data.decode().split("\n\n")
    assert rest == "", "the stream ends with a whole frame"
    documents: list[dict[str, Any]] = []
    for event in events:
        name, _, line = event.partition("\n")
        assert name.startswith("event: "), event
        assert line.startswith("data: "), event
        assert "\n" not in line
        document = json.loads(line.removeprefix("data: "))
        assert document["type"] == name.removeprefix("event: ")
        documents.append(document)
    return documents


def check(documents: Sequence[dict[str, Any]], *, whole: bool = True) -> None:
    """The grammar. `whole=False` is for a stream that its client left: it may stop anywhere."""
    stream = _Stream()
    for document in documents:
        stream.take(document)
    if whole:
        assert stream.ended, "the stream ends with message_stop or an error"
        assert stream.open is None, "every block is closed"


class _Stream:
    """Where a stream is; a document that has no place there is an AssertionError."""

    def __init__(self) -> None:
        self.started = False
        self.open: str | None = None  # the type of the block that is open
        self.index = 0
        self.signed = False
        self.stop_reason: str | None = None
        self.ended = False

    def take(self, document: dict[str, Any]) -> None:
        assert not self.ended, f"nothing follows the end: {document}"
        kind = document["type"]
        if kind == "error":
            self._error(document)
            return
        if kind == "ping":
            assert document == {"type": "ping"}
            return
        _EVENT.validate_python(document, strict=False)
        assert self.started == (kind != "message_start"), f"message_start is first, and once: {document}"
        getattr(self, f"_{kind}")(document)

    def _message_start(self, document: dict[str, Any]) -> None:
        self.started = True
        message = document["message"]
        assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
        assert message["usage"]["input_tokens"] > 0
        assert message["usage"]["output_tokens"] == 0

    def _content_block_start(self, document: dict[str, Any]) -> None:
        assert self.open is None, "one block at a time"
        assert self.stop_reason is None
        assert document["index"] == self.index
        block: dict[str, Any] = document["content_block"]
        kind: str = block["type"]
        self.open = kind
        self.signed = False
        empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}
        assert block.items() >= empty[kind].items()
        if kind == "tool_use":
            assert block["id"]
            assert block["name"]

    def _content_block_delta(self, document: dict[str, Any]) -> None:
        assert self.open is not None
        assert document["index"] == self.index
        delta = document["delta"]
        assert delta["type"] in _DELTAS[self.open]
        assert not self.signed, "the signature is a block's last word"
        self.signed = delta["type"] == "signature_delta"
        (said,) = (value for key, value in delta.items() if key != "type")
        assert said, "no delta is empty"

    def _content_block_stop(self, document: dict[str, Any]) -> None:
        assert self.open is not None
        assert document["index"] == self.index
        assert self.signed == (self.open == "thinking"), "thinking is signed, and nothing else"
        self.open = None
        self.index += 1

    def _message_delta(self, document: dict[str, Any]) -> None:
        assert self.open is None
        assert self.stop_reason is None, "one message_delta"
        self.stop_reason = document["delta"]["stop_reason"]
        assert self.stop_reason in _STOP_REASONS
        assert (document["delta"]["stop_sequence"] is not None) == (self.stop_reason == "stop_sequence")

    def _message_stop(self, document: dict[str, Any]) -> None:
        assert self.stop_reason is not None
        self.ended = True

    def _error(self, document: dict[str, Any]) -> None:
        assert self.open is None, "an error closes the block before it"
        assert self.stop_reason is None, "a message that has ended does not fail"
        assert set(document) == {"type", "error", "request_id"}
        assert set(document["error"]) == {"type", "message"}
        self.ended = True


def folded(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the official client makes of a stream, as the document of a whole answer. The grammar is checked first."""
    check(documents)
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for document in documents:
        if document["type"] != "ping":
            event = _EVENT.validate_python(document)
            snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    return _plain(snapshot.to_dict())


def read(document: dict[str, Any]) -> dict[str, Any]:
    """A whole answer, as the official client reads it: valid by its model."""
    return _plain(Message.model_validate(document).to_dict())


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """Without what only one of the two ways fills in: nulls, and the type parameter's field."""
    return {
        key: _plain(value) if isinstance(value, dict) else _items(value) if isinstance(value, list) else value
        for key, value in document.items()
        if value is not None and key != "parsed_output"
    }


def _items(values: list[Any]) -> list[Any]:
    return [_plain(value) if isinstance(value, dict) else value for value in values]
