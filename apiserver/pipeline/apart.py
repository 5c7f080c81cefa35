"""An answer that is taken apart as it comes: tokens in, deltas of the three kinds out, each with its ids and logprobs.

Stop strings are looked for in the content alone: what a model thinks, or hands to a tool, cannot end its answer. Nor
can a stop string reach across a tool call.
"""

import functools

from apiserver.events import Delta, PreparedPrompt, ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta
from apiserver.pipeline.answer_start import prompt_end
from apiserver.pipeline.parsers import make_parser
from apiserver.pipeline.parsers.output import Piece
from apiserver.pipeline.stop import StopChecker
from apiserver.requests import Structure
from apiserver.tokenizer import Tokenizer


class Apart:
    """One choice's answer. `token` every token in order, `end` once, and `take` the deltas whenever they are wanted."""

    __slots__ = (
        "_index",
        "_logprobs",
        "_parser",
        "_pieces",
        "_reasons",
        "_stops",
        "_token_ids",
        "calls",
        "kept",
        "reasoning_tokens",
    )

    def __init__(
        self, index: int, structure: Structure, stops: StopChecker | None, tokenizer: Tokenizer, prompt: PreparedPrompt
    ) -> None:
        self._index = index
        self._stops = stops
        self._parser = make_parser(structure, prompt_end(structure, tokenizer, prompt))
        self._reasons = self._parser.in_reasoning
        self._pieces: list[Piece] = []
        self._token_ids: list[int] = []  # whose text is held back
        self._logprobs: list[TokenLogprob] | None = None
        self.kept = kept_ids(tokenizer, tuple(self._parser.markers))
        """The special tokens that the parser must see."""
        self.calls = 0
        self.reasoning_tokens = 0

    def token(self, token_id: int, text: str, logprob: TokenLogprob | None, *, may_end: bool) -> None:
        """One token and the text that it added. Nothing may follow once the stop checker has its match."""
        self._token_ids.append(token_id)
        if logprob is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs.append(logprob)
        if text:
            for piece in self._parser.feed(text):
                self._add(piece, may_end)
            reasons = self._parser.in_reasoning
            if reasons or self._reasons:
                self.reasoning_tokens += 1
            self._reasons = reasons

    def end(self, text: str, *, may_end: bool) -> None:
        """The generation is over; `text` is what the detokenizer still had."""
        for piece in (*self._parser.feed(text), *self._parser.end()):
            self._add(piece, may_end)
        if self._stops is not None and self._stops.matched is None:
            self._put(Piece("content", self._stops.flush()))

    def include(self, stop: str) -> None:
        """The stop string that ended it is part of the answer."""
        self._put(Piece("content", stop))

    def take(self, *, with_token_ids: bool) -> list[Delta]:
        """What has come since. Ids and logprobs whose text is held back wait for it, unless the client wants them."""
        if self._logprobs is not None or (with_token_ids and self._token_ids):
            if not self._pieces:
                self._pieces.append(Piece("reasoning" if self._reasons else "content", ""))
            self._give(self._pieces[-1])
        pieces, self._pieces = self._pieces, []
        return [self._delta(piece) for piece in pieces]

    def _add(self, piece: Piece, may_end: bool) -> None:
        stops = self._stops
        if stops is not None:
            if stops.matched is not None:
                return
            if piece.kind == "content":
                piece.text = stops.feed(piece.text, may_end=may_end)
            else:
                self._put(Piece("content", stops.flush()))
        self._put(piece)

    def _put(self, piece: Piece) -> None:
        """Neighbours of one kind are one piece."""
        begins = piece.id is not None
        if begins:
            self.calls += 1
        elif not piece.text:
            return
        last = self._pieces[-1] if self._pieces else None
        if last is None or last.kind != piece.kind or begins:
            self._pieces.append(piece)
            last = piece
        else:
            last.text += piece.text
        self._give(last)

    def _give(self, piece: Piece) -> None:
        """The ids since the last delta."""
        if self._token_ids:
            piece.token_ids += self._token_ids
            self._token_ids = []
        if self._logprobs is not None:
            if piece.logprobs is None:
                piece.logprobs = self._logprobs
            else:
                piece.logprobs += self._logprobs
            self._logprobs = None

    def _delta(self, piece: Piece) -> Delta:
        kind = piece.kind
        if kind == "content":
            return TextDelta(self._index, piece.text, piece.token_ids, piece.logprobs)
        if kind == "reasoning":
            return ReasoningDelta(self._index, piece.text, piece.token_ids, piece.logprobs)
        index, call = self._index, piece.call
        return ToolCallDelta(index, call, piece.text, piece.id, piece.name, piece.token_ids, piece.logprobs)


@functools.lru_cache(maxsize=64)
def kept_ids(tokenizer: Tokenizer, markers: tuple[str, ...]) -> frozenset[int]:
    """The special tokens whose text is a part of a marker, or has one in it."""
    texts = {token_id: tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in tokenizer.special_ids}
    return frozenset(
        token_id
        for token_id, text in texts.items()
        if text and any(text in marker or marker in text for marker in markers)
    )
