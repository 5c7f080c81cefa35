"""A text that a client brings is taken apart as an answer would be; no engine and no tokenizer take part."""

import asyncio
from collections.abc import AsyncGenerator

from apiserver.errors import InvalidRequest
from apiserver.events import Delta, Event, Finished, ReasoningDelta, Started, TextDelta, ToolCallDelta
from apiserver.pipeline.parsers import make_parser
from apiserver.pipeline.parsers.names import UnknownParser
from apiserver.pipeline.parsers.output import Piece
from apiserver.requests import ParseJob
from engine_bridge.wire import FinishReason

_SLICE = 16_384  # characters between two looks at the loop


async def parse(job: ParseJob) -> AsyncGenerator[list[Event]]:
    """The events of an answer that is this text. Raises InvalidRequest for a parser that there is not."""
    try:
        parser = make_parser(job.structure)
    except UnknownParser as error:
        raise InvalidRequest(str(error), param=job.param) from error
    yield [Started([])]
    calls = 0
    for start in range(0, len(job.text), _SLICE):
        pieces = parser.feed(job.text[start : start + _SLICE])
        calls += sum(piece.id is not None for piece in pieces)
        yield [_delta(piece) for piece in pieces]
        await asyncio.sleep(0)
    pieces = parser.end()
    calls += sum(piece.id is not None for piece in pieces)
    yield [*(_delta(piece) for piece in pieces), Finished(0, FinishReason.STOP, None, None, 0, 0, calls)]


def _delta(piece: Piece) -> Delta:
    match piece.kind:
        case "content":
            return TextDelta(0, piece.text)
        case "reasoning":
            return ReasoningDelta(0, piece.text)
        case "call":
            return ToolCallDelta(0, piece.call, piece.text, piece.id, piece.name)
