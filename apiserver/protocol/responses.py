"""OpenAI responses: POST /v1/responses."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError
from apiserver.events import Event, Finished, ReasoningDelta, Result, Started, TextDelta, ToolCallDelta
from apiserver.protocol import openai
from apiserver.protocol.exchange import Body, Chunk, Pieces
from apiserver.protocol.responses_input import Item, is_own_id, new_id, read_input
from apiserver.protocol.responses_items import Items
from apiserver.protocol.responses_job import response_job
from apiserver.protocol.responses_object import error_of, fixed_fields, incomplete_details, usage
from apiserver.protocol.responses_open import Numbers
from apiserver.protocol.responses_request import ResponseFields
from apiserver.protocol.responses_tools import read_tools
from apiserver.requests import GenerateJob
from engine_bridge.wire import FinishReason

_STATUSES = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.ABORT: "cancelled",
    FinishReason.ERROR: "failed",
}


class Past(NamedTuple):
    """What the store has for a request: the items of the turns before, and those that the input refers to."""

    items: Sequence[Item] = ()
    referenced: Mapping[str, Item] = {}


class Response:
    """One response; see `apiserver.protocol.exchange.Exchange`. It is made of fields and not of bytes, since what the
    store has must be fetched in between."""

    path = "/v1/responses"
    fields: ClassVar = (ResponseFields,)
    streams: ClassVar = True

    background: bool
    """It goes on when the client has left."""
    resumable: bool
    """Whoever knows its id may follow its stream, from any event on."""

    def __init__(self, fields: ResponseFields, past: Past, card: Card, *, stores: bool) -> None:
        """`stores`: the response will be kept, and says so."""
        self.id = new_id("resp")
        self.background = bool(fields.background)
        # What runs in the background is told step by step to the store, whether or not the client listens.
        self.stream = bool(fields.stream) or self.background
        self.resumable = bool(fields.stream) and self.background
        self.previous = fields.previous_response_id
        self.input_items = read_input(fields.input if fields.input is not None else [], past.referenced)
        tools = read_tools(fields.tools, fields.tool_choice)
        self._job = response_job(fields, [*past.items, *self.input_items], tools, card, self.id)
        params = self._job.sampling_params
        self._fixed = fixed_fields(fields, tools, params, model=card.resolve(fields.model), stores=stores)
        self._created = openai.now()
        self._numbers = Numbers()
        summarises = fields.reasoning is not None and bool(
            fields.reasoning.summary or fields.reasoning.generate_summary
        )
        self._items = Items(self._numbers, summarises=summarises)
        self._has_ended = False
        self.status = "in_progress"
        self.document = self._told()
        """The response object as it was told last."""

    @property
    def job(self) -> GenerateJob:
        return self._job

    @property
    def item_ids(self) -> list[str]:
        """Of all items that this response adds to what the store knows, and that others may refer to."""
        return [item["id"] for item in (*self.input_items, *self._items.documents) if is_own_id(item["id"])]

    # ---- whole ----

    def body(self, result: Result) -> Body:
        pieces = self._pieces(result)
        if result.choices[0].logprobs is not None:
            return Body(Pieces(pieces))
        return Body(b"".join(pieces))

    def _pieces(self, result: Result) -> Iterator[bytes]:
        """The document, at the end; until then nothing, with the loop given back in between."""
        choice = result.choices[0]
        assert choice.finished is not None
        for block in choice.blocks:
            for _ in self._items.replay(block):
                yield b""
        for _ in self._finish(choice.finished):
            pass
        yield self._told(result)

    # ---- streamed ----

    def chunks(self, event: Event) -> Iterator[Chunk]:
        match event:
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                yield from self._items.feed(event)
            case Finished():
                yield from self._finish(event)
            case Started():
                response = msgspec.Raw(self.document)
                yield self._numbers.event("response.created", {"response": response})
                yield self._numbers.event("response.in_progress", {"response": response})
            case _:
                raise AssertionError(f"no event of a response: {event}")

    def _finish(self, finished: Finished) -> Iterator[Chunk]:
        self.status = _STATUSES[finished.reason]
        completed = self.status == "completed"
        yield from self._items.end(
            "completed" if completed else "incomplete", at_least_a_message=self.status != "cancelled"
        )

    def last_chunks(self, result: Result) -> Iterator[Chunk]:
        yield self._terminal(result)

    def error_chunks(self, error: ApiError) -> Iterator[Chunk]:
        """What is open is closed, so that nobody waits for the rest of it; then the response says how it ended."""
        self.status = "failed"
        yield from self._items.end("incomplete", at_least_a_message=False)
        yield self._terminal(error=error)

    def cancel(self) -> None:
        """Nobody waits for it any more: `document` is what there is of it. One that has told its end stays as it is."""
        if self._has_ended:
            return
        self.status = "cancelled"
        for _ in self._items.end("incomplete", at_least_a_message=False):
            pass
        self._told()

    def not_kept(self) -> Chunk:
        """In the place of the last event of a response that was made, but could not be stored as it should."""
        fields = {"code": "server_error", "message": "The response could not be stored.", "param": None}
        return self._numbers.instead("error", fields)

    def _terminal(self, result: Result | None = None, error: ApiError | None = None) -> Chunk:
        self._has_ended = True
        response = msgspec.Raw(self._told(result, error))
        name = self.status if self.status in ("completed", "failed") else "incomplete"
        return self._numbers.event(f"response.{name}", {"response": response})

    def _told(self, result: Result | None = None, error: ApiError | None = None) -> bytes:
        """The response object as it is now, which is also what the store keeps."""
        self.document = openai.encode_json(
            {
                "id": self.id,
                "object": "response",
                "created_at": self._created,
                "status": self.status,
                "completed_at": openai.now() if self.status == "completed" else None,
                "error": None if error is None else error_of(error),
                "incomplete_details": incomplete_details(self.status),
                "output": self._items.documents,
                "usage": None if result is None else usage(result),
                **self._fixed,
            }
        )
        return self.document

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)
