"""The output items of one response, made of deltas, and the stream events that tell of them.

One item is open at a time. Whatever opens is closed, by what comes after it or by the end, so starts and ends balance.
A whole answer is made by the same code out of the folded blocks, and nobody looks at its events.
"""

from collections.abc import Iterator

from apiserver.events import (
    Block,
    Delta,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
)
from apiserver.protocol.exchange import Chunk
from apiserver.protocol.responses_input import Item
from apiserver.protocol.responses_open import Numbers, OpenCall, OpenItem, OpenMessage, OpenReasoning

_AT_ONCE = 16  # tokens whose logprobs are written in one go: half a millisecond


class Items:
    """Feed it deltas in order, then `end`."""

    def __init__(self, numbers: Numbers, *, summarises: bool) -> None:
        """`summarises`: the client asked for a summary of the reasoning, and reads only that."""
        self._numbers = numbers
        self._summarises = summarises
        self._done: list[Item] = []
        self._open: OpenItem | None = None
        self._held: list[TokenLogprob] = []  # of tokens whose text is yet to come

    @property
    def documents(self) -> list[Item]:
        """Every item so far; the one that is open, as far as it has come."""
        return self._done if self._open is None else [*self._done, self._open.document]

    @property
    def _next_index(self) -> int:
        return len(self._done) + (self._open is not None)

    def feed(self, delta: Delta) -> Iterator[Chunk]:
        match delta:
            case TextDelta():
                yield from self._text(delta.text, delta.logprobs)
            case ReasoningDelta():
                self._held.clear()
                if delta.text:
                    yield from self._reasoning(delta.text)
            case ToolCallDelta():
                self._held.clear()
                yield from self._function_call(delta)

    def replay(self, block: Block) -> Iterator[None]:
        """One block of a folded answer, in steps: one of many tokens with their logprobs takes a while."""
        for delta in _deltas(block):
            for _ in self.feed(delta):
                pass
            yield

    def end(self, status: str, *, at_least_a_message: bool) -> Iterator[Chunk]:
        """Close what is open. `at_least_a_message`: a model that said nothing has said "", for clients that look."""
        if self._open is None and not self._done and at_least_a_message:
            yield from self._begin(OpenMessage(self._numbers, 0))
        yield from self._close(status)

    def _begin(self, item: OpenItem) -> Iterator[Chunk]:
        yield from self._close("completed")
        self._open = item
        yield from item.begin()

    def _close(self, status: str) -> Iterator[Chunk]:
        if self._open is not None:
            item, self._open = self._open, None
            yield from item.end(status)
            self._done.append(item.document)

    def _text(self, text: str, logprobs: list[TokenLogprob] | None) -> Iterator[Chunk]:
        message = self._open
        if not isinstance(message, OpenMessage):
            if not text:
                self._held += logprobs or ()
                return
            message = OpenMessage(self._numbers, self._next_index)
            yield from self._begin(message)
        if self._held:
            logprobs = [*self._held, *(logprobs or ())]
            self._held = []
        yield message.more(text, logprobs)

    def _reasoning(self, text: str) -> Iterator[Chunk]:
        reasoning = self._open
        if not isinstance(reasoning, OpenReasoning):
            reasoning = OpenReasoning(self._numbers, self._next_index, is_summary=self._summarises)
            yield from self._begin(reasoning)
        yield reasoning.more(text)

    def _function_call(self, delta: ToolCallDelta) -> Iterator[Chunk]:
        call = self._open
        if delta.id is not None or not isinstance(call, OpenCall):
            call = OpenCall(self._numbers, self._next_index, delta.id or "", delta.name or "")
            yield from self._begin(call)
        if delta.arguments:
            yield call.more(delta.arguments)


def _deltas(block: Block) -> Iterator[Delta]:
    match block:
        case Text():
            scored = block.logprobs
            yield TextDelta(0, block.text, [], scored[:_AT_ONCE] or None)
            for start in range(_AT_ONCE, len(scored), _AT_ONCE):
                yield TextDelta(0, "", [], scored[start : start + _AT_ONCE])
        case Reasoning():
            yield ReasoningDelta(0, block.text)
        case ToolCall():
            yield ToolCallDelta(0, 0, block.arguments, block.id, block.name)
