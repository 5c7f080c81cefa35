"""Anthropic's Messages: POST /v1/messages.

An answer is a list of blocks (thinking, text, tool_use), and so is its stream: each block is opened, told and closed
before the next, and all of them count from 0. Between them there is nothing, so a client can fold the stream blindly.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError
from apiserver.events import (
    Block,
    Event,
    Finished,
    Reasoning,
    ReasoningDelta,
    Result,
    Started,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)
from apiserver.protocol import anthropic
from apiserver.protocol.exchange import Body, Chunk
from apiserver.protocol.messages_fields import MessagesFields
from apiserver.protocol.messages_request import messages_job, read_messages
from apiserver.protocol.partial_json import completed
from apiserver.requests import GenerateJob
from engine_bridge.wire import FinishReason

_encode = msgspec.json.Encoder().encode

_UNSIGNED = "unsigned"
"""Every thinking block has a signature, which its client sends back with it. Nobody here asks who thought it."""

_PING = Chunk(msgspec.Raw(b'{"type":"ping"}'), "ping")
_MESSAGE_STOP = Chunk(msgspec.Raw(b'{"type":"message_stop"}'), "message_stop")


class Messages:
    """One message; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/messages"
    fields: ClassVar = (MessagesFields,)
    streams: ClassVar = True

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_messages(raw, card)
        self._model = card.resolve(fields.model)
        self.stream = bool(fields.stream)
        self._job = messages_job(fields, card)
        self._most_tokens = self._job.max_tokens
        self._shows_thinking = fields.thinking is None or fields.thinking.display != "omitted"
        self._id = anthropic.new_id()
        self._prompt_tokens = 0
        self._next_index = 0
        self._open: type[Block] | None = None  # the kind of the block that is being told
        self._head = b""  # of that block's deltas, up to their text

    @property
    def job(self) -> GenerateJob:
        return self._job

    # ---- whole ----

    def body(self, result: Result) -> Body:
        choice = result.choices[0]
        assert choice.finished is not None
        content = [self._block(block) for block in choice.blocks]
        return Body(self._message(content, self._stop_fields(choice.finished), anthropic.usage(result)))

    def _message(self, content: list[Any], stop: dict[str, Any], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            **stop,
            "usage": usage,
        }

    def _block(self, block: Block) -> dict[str, Any]:
        match block:
            case Text():
                return {"type": "text", "text": block.text}
            case Reasoning():
                thinking = block.text if self._shows_thinking else ""
                return {"type": "thinking", "thinking": thinking, "signature": _UNSIGNED}
            case ToolCall():
                return {"type": "tool_use", "id": block.id, "name": block.name, "input": _input(block.arguments)}

    def _stop_fields(self, finished: Finished) -> dict[str, Any]:
        reason, sequence = self._stop_reason(finished)
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _stop_reason(self, finished: Finished) -> tuple[str, str | None]:
        """A call wins over the stop string that followed it: a client that misses it would wait for nothing."""
        if finished.reason is FinishReason.LENGTH:
            was_clamped = self._most_tokens is not None and finished.output_tokens < self._most_tokens
            return "model_context_window_exceeded" if was_clamped else "max_tokens", None
        if finished.reason is FinishReason.ABORT:
            return "pause_turn", None  # somebody ended it by its id; what there is can be sent back and continued
        if finished.tool_calls:
            return "tool_use", None
        if isinstance(finished.stop_reason, str):
            return "stop_sequence", finished.stop_reason
        return "end_turn", None

    # ---- streamed ----

    def chunks(self, event: Event) -> Iterator[Chunk]:
        match event:
            case TextDelta():
                yield from self._tell(Text, event.text)
            case ReasoningDelta():
                yield from self._tell(Reasoning, event.text)
            case ToolCallDelta():
                yield from self._call(event)
            case Finished():
                yield from self._end()
            case Started():
                yield from self._opening(event)
            case _:
                raise AssertionError(f"no message event: {event}")

    def _opening(self, started: Started) -> Iterator[Chunk]:
        self._prompt_tokens = sum(prompt.token_count for prompt in started.prompts)
        none: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        message = self._message([], none, anthropic.usage_at_start(self._prompt_tokens))
        yield Chunk({"type": "message_start", "message": message}, "message_start")
        yield _PING

    def _tell(self, kind: type[Text] | type[Reasoning], text: str) -> Iterator[Chunk]:
        """Once a token: the delta is spliced from bytes that were made with the block."""
        if not text:
            return
        if self._open is not kind:
            yield from self._begin(kind, {"text": ""} if kind is Text else {"thinking": "", "signature": ""})
        if kind is Text or self._shows_thinking:
            yield self._delta(text)

    def _call(self, delta: ToolCallDelta) -> Iterator[Chunk]:
        if delta.id is not None or self._open is not ToolCall:
            none: dict[str, Any] = {}
            yield from self._begin(ToolCall, {"id": delta.id or "", "name": delta.name or "", "input": none})
        if delta.arguments:
            yield self._delta(delta.arguments)

    def _delta(self, text: str) -> Chunk:
        return Chunk(msgspec.Raw(self._head + _encode(text) + b"}}"), "content_block_delta")

    def _begin(self, kind: type[Block], fields: dict[str, Any]) -> Iterator[Chunk]:
        yield from self._end()
        name, delta = _KINDS[kind]
        index = self._next_index
        self._open = kind
        self._head = b'{"type":"content_block_delta","index":%d,"delta":{%s:' % (index, delta)
        block = {"type": name, **fields}
        yield Chunk({"type": "content_block_start", "index": index, "content_block": block}, "content_block_start")

    def _end(self) -> Iterator[Chunk]:
        """Close the open block, if there is one."""
        if self._open is None:
            return
        index = self._next_index
        if self._open is Reasoning:
            delta = {"type": "signature_delta", "signature": _UNSIGNED}
            yield Chunk({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
        yield Chunk({"type": "content_block_stop", "index": index}, "content_block_stop")
        self._open = None
        self._next_index += 1

    def last_chunks(self, result: Result) -> Iterator[Chunk]:
        finished = result.choices[0].finished
        assert finished is not None
        usage = anthropic.usage_at_end(self._prompt_tokens, result)
        document = {"type": "message_delta", "delta": self._stop_fields(finished), "usage": usage}
        yield Chunk(document, "message_delta")
        yield _MESSAGE_STOP

    def error_chunks(self, error: ApiError) -> Iterator[Chunk]:
        yield from self._end()
        yield Chunk(anthropic.error_document(error), "error")

    @staticmethod
    def error(error: ApiError) -> Any:
        return anthropic.error_document(error)


_KINDS: dict[type[Block], tuple[str, bytes]] = {
    Text: ("text", b'"type":"text_delta","text"'),
    Reasoning: ("thinking", b'"type":"thinking_delta","thinking"'),
    ToolCall: ("tool_use", b'"type":"input_json_delta","partial_json"'),
}
"""A block's name, and how its deltas begin."""


def _input(arguments: str) -> Any:
    """The call's arguments as the model wrote them; where they were cut off, what is whole of them."""
    for text in (arguments, completed(arguments)):
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            continue
        return msgspec.Raw(text.encode())
    return {}
