"""One output item while it is being made (a message, reasoning, or a function call), and its numbered events."""

from collections.abc import Iterator
from typing import Any

import msgspec

from apiserver.events import TokenLogprob
from apiserver.protocol import openai
from apiserver.protocol.exchange import Chunk
from apiserver.protocol.responses_input import Item, new_id


class Numbers:
    """The sequence numbers of one stream's events: from 0, without a gap."""

    def __init__(self) -> None:
        self._next = 0

    def event(self, name: str, fields: dict[str, Any]) -> Chunk:
        number = self._next
        self._next += 1
        return Chunk({"type": name, **fields, "sequence_number": number}, name)

    def instead(self, name: str, fields: dict[str, Any]) -> Chunk:
        """An event in the place of the last one, which is not sent."""
        self._next -= 1
        return self.event(name, fields)

    def spliced(self, name: str, opened: bytes) -> Chunk:
        """The same of a document that is written but for its number and its closing brace."""
        number = self._next
        self._next += 1
        return Chunk(msgspec.Raw(b'%b,"sequence_number":%d}' % (opened, number)), name)


def _head(name: str, place: dict[str, Any]) -> bytes:
    """A delta's document as far as its delta, which alone changes from token to token."""
    return openai.encode_json({"type": name, **place, "delta": ""})[: -len('""}')]


class OpenMessage:
    """What the model says. Its delta is spliced from bytes made once: it is written once a token."""

    def __init__(self, numbers: Numbers, output_index: int) -> None:
        self._numbers = numbers
        self._id = new_id("msg")
        self._place = {"item_id": self._id, "output_index": output_index, "content_index": 0}
        self._head = _head("response.output_text.delta", self._place)
        self._output_index = output_index
        self._texts: list[str] = []
        self._logprobs: list[msgspec.Raw] = []
        self._status = "in_progress"

    @property
    def document(self) -> Item:
        content = [] if self._status == "in_progress" and not self._texts else [self._part]
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "status": self._status,
            "content": content,
        }

    @property
    def _part(self) -> Item:
        return {
            "type": "output_text",
            "text": "".join(self._texts),
            "annotations": [],
            "logprobs": self._logprobs,
        }

    def begin(self) -> Iterator[Chunk]:
        yield self._numbers.event(
            "response.output_item.added", {"output_index": self._output_index, "item": self.document}
        )
        yield self._numbers.event("response.content_part.added", self._place | {"part": self._part})

    def more(self, text: str, logprobs: list[TokenLogprob] | None) -> Chunk:
        self._texts.append(text)
        if not logprobs:
            return self._numbers.spliced(
                "response.output_text.delta", self._head + openai.encode_json(text) + b',"logprobs":[]'
            )
        # Encoded once: the end tells them four times.
        scored = openai.chat_logprobs(logprobs, as_ids=False)["content"]
        entries = [msgspec.Raw(openai.encode_json(entry)) for entry in scored]
        self._logprobs += entries
        return self._numbers.event("response.output_text.delta", self._place | {"delta": text, "logprobs": entries})

    def end(self, status: str) -> Iterator[Chunk]:
        self._status = status
        part = self._part
        yield self._numbers.event(
            "response.output_text.done", self._place | {"text": part["text"], "logprobs": self._logprobs}
        )
        yield self._numbers.event("response.content_part.done", self._place | {"part": part})
        yield self._numbers.event(
            "response.output_item.done", {"output_index": self._output_index, "item": self.document}
        )


class OpenReasoning:
    """What the model thinks: as it is, or, for a client that asked for a summary, in the summary's place."""

    def __init__(self, numbers: Numbers, output_index: int, *, is_summary: bool) -> None:
        self._numbers = numbers
        self._id = new_id("rs")
        self._is_summary = is_summary
        self._output_index = output_index
        self._place = {"item_id": self._id, "output_index": output_index}
        self._place |= {"summary_index": 0} if is_summary else {"content_index": 0}
        self._event = "response.reasoning_summary_text" if is_summary else "response.reasoning_text"
        self._part_event = "response.reasoning_summary_part" if is_summary else "response.content_part"
        self._head = _head(f"{self._event}.delta", self._place)
        self._texts: list[str] = []
        self._status = "in_progress"

    @property
    def document(self) -> Item:
        parts = [self._part] if self._texts else []
        return {
            "id": self._id,
            "type": "reasoning",
            "summary": parts if self._is_summary else [],
            "content": [] if self._is_summary else parts,
            "status": self._status,
        }

    @property
    def _part(self) -> Item:
        return {"type": "summary_text" if self._is_summary else "reasoning_text", "text": "".join(self._texts)}

    def begin(self) -> Iterator[Chunk]:
        yield self._numbers.event(
            "response.output_item.added", {"output_index": self._output_index, "item": self.document}
        )
        yield self._numbers.event(f"{self._part_event}.added", self._place | {"part": self._part})

    def more(self, text: str) -> Chunk:
        self._texts.append(text)
        return self._numbers.spliced(f"{self._event}.delta", self._head + openai.encode_json(text))

    def end(self, status: str) -> Iterator[Chunk]:
        self._status = status
        part = self._part
        yield self._numbers.event(f"{self._event}.done", self._place | {"text": part["text"]})
        yield self._numbers.event(f"{self._part_event}.done", self._place | {"part": part})
        yield self._numbers.event(
            "response.output_item.done", {"output_index": self._output_index, "item": self.document}
        )


class OpenCall:
    """A function that the client shall call."""

    def __init__(self, numbers: Numbers, output_index: int, call_id: str, name: str) -> None:
        self._numbers = numbers
        self._id = new_id("fc")
        self._call_id = call_id
        self._name = name
        self._output_index = output_index
        self._place = {"item_id": self._id, "output_index": output_index}
        self._head = _head("response.function_call_arguments.delta", self._place)
        self._arguments: list[str] = []
        self._status = "in_progress"

    @property
    def document(self) -> Item:
        return {
            "id": self._id,
            "type": "function_call",
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "".join(self._arguments),
            "status": self._status,
        }

    def begin(self) -> Iterator[Chunk]:
        yield self._numbers.event(
            "response.output_item.added", {"output_index": self._output_index, "item": self.document}
        )

    def more(self, arguments: str) -> Chunk:
        self._arguments.append(arguments)
        return self._numbers.spliced(
            "response.function_call_arguments.delta", self._head + openai.encode_json(arguments)
        )

    def end(self, status: str) -> Iterator[Chunk]:
        self._status = status
        document = self.document
        yield self._numbers.event(
            "response.function_call_arguments.done",
            self._place | {"name": self._name, "arguments": document["arguments"]},
        )
        yield self._numbers.event("response.output_item.done", {"output_index": self._output_index, "item": document})


OpenItem = OpenMessage | OpenReasoning | OpenCall
