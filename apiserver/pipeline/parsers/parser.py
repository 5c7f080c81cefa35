"""What a parser is: a format of tool calls, a pair of reasoning tags, or both, read out of one answer's text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from apiserver.pipeline.parsers.output import Output, Piece
from apiserver.pipeline.parsers.source import SPACES, Markers, Reading, Source


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """How a model marks its reasoning. `forced`: it begins inside, without a start tag, unless it is told not to think.

    `interrupted_by_calls`: a tool call's opener ends the reasoning too, for models that forget their end tag.
    """

    start: str
    end: str
    forced: bool = False
    interrupted_by_calls: bool = False


@dataclass(frozen=True, slots=True)
class Marks:
    """What a format's calls are known by."""

    openers: tuple[str, ...] = ()
    """What begins a call, or a section of them, wherever it stands in the content."""
    at_start: tuple[str, ...] = ()
    """What begins one only where no content has been said yet. It is left for `read`, which then gets no opener."""
    inner: tuple[str, ...] = ()
    """What else may be a special token of the model, and must be seen all the same."""


class CallFormat(Protocol):
    """How a model writes tool calls. A class is made once per answer, from the request's tools."""

    marks: ClassVar[Marks]

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        """`tools`: each function's name and its parameters' schema."""
        ...

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        """What follows an opener. What cannot be read as a call is content, the opener included."""
        ...


class AnswerParser(Protocol):
    """Feed it an answer's text; it gives pieces, and the same ones in whatever pieces the text comes."""

    markers: Sequence[str]
    """The special tokens whose text it wants to see are parts of these."""

    @property
    def in_reasoning(self) -> bool: ...

    def feed(self, text: str) -> list[Piece]: ...

    def end(self) -> list[Piece]:
        """The answer is over."""
        ...


class ReadingParser:
    """An AnswerParser that runs a reading. It never raises for what a model may write."""

    __slots__ = ("_output", "_reading", "_source", "markers")

    def __init__(self, source: Source, output: Output, reading: Reading[None], markers: Sequence[str]) -> None:
        self.markers = markers
        self._source = source
        self._output = output
        self._reading = reading
        next(reading, None)

    @property
    def in_reasoning(self) -> bool:
        return self._output.in_reasoning

    def feed(self, text: str) -> list[Piece]:
        if not text:
            return []
        source = self._source
        if source.is_plain is not None and source.is_plain(text):
            source.emit_plain(text)
        else:
            source.feed(text)
            next(self._reading, None)
        return self._output.take()

    def end(self) -> list[Piece]:
        self._source.ended = True
        next(self._reading, None)
        self._output.end()
        return self._output.take()


def read_answer(
    source: Source, output: Output, tags: ReasoningTags | None, calls: CallFormat | None, *, inside: bool
) -> Reading[None]:
    """Reasoning by tags, then content with tool calls in it, to the end of the text."""
    marks = Marks() if calls is None else calls.marks
    anywhere = Markers((*marks.openers, *(() if tags is None else (tags.start,))))
    if tags is not None and inside:
        yield from _read_reasoning(source, output, tags, calls)
    while True:
        if calls is not None and marks.at_start and not output.has_spoken:
            yield from source.run_of(SPACES, output.content)
            if (yield from source.next_is(*marks.at_start)):
                yield from calls.read(source, output, "")
                continue
        marker = yield from source.until(anywhere, output.content)
        if not marker:
            return
        if tags is not None and marker == tags.start:
            if output.has_spoken:
                output.content(marker)  # somebody writes about it
            else:
                yield from _read_reasoning(source, output, tags, calls)
        else:
            assert calls is not None
            yield from calls.read(source, output, marker)


def _read_reasoning(source: Source, output: Output, tags: ReasoningTags, calls: CallFormat | None) -> Reading[None]:
    output.think()
    openers = calls.marks.openers if calls is not None and tags.interrupted_by_calls else ()
    yield from source.run_of(SPACES, output.reasoning)
    yield from source.takes(tags.start)  # of a model that was inside already
    marker = yield from source.until(Markers((tags.end, *openers)), output.reasoning)
    if not marker:
        return
    output.think_no_more()
    if marker != tags.end:
        assert calls is not None
        yield from calls.read(source, output, marker)
