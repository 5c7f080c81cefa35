"""One choice's outputs → events. The only place that looks at every token, and it does so once."""

from collections.abc import Iterator

from apiserver.events import Event, Finished, PreparedPrompt, PromptScored, TextDelta, TokenLogprob
from apiserver.pipeline.apart import Apart
from apiserver.pipeline.detokenize import make_detokenizer
from apiserver.pipeline.scoring import Scorer
from apiserver.pipeline.stop import StopChecker
from apiserver.requests import GenerateJob
from apiserver.tokenizer import Tokenizer
from engine_bridge.wire import FinishReason, Output, TokenLogprobs, unpack_ids


class Decoder:
    """Feed it one choice's outputs in order; `finished` says when the choice has ended, maybe before the engine."""

    __slots__ = (
        "_apart",
        "_cached_tokens",
        "_detokenizer",
        "_eos_token_ids",
        "_index",
        "_job",
        "_made",
        "_min_tokens",
        "_prompt",
        "_prompt_scored",
        "_scorer",
        "_size",
        "_stops",
        "_untold",
        "finished",
    )

    def __init__(
        self,
        index: int,
        job: GenerateJob,
        tokenizer: Tokenizer,
        prompt: PreparedPrompt,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._index = index
        self._job = job
        self._prompt = prompt
        self._eos_token_ids = eos_token_ids
        self._scorer = Scorer(tokenizer, job.sampling_params.token_ids_logprob)
        self._stops = StopChecker(job.stop) if job.stop else None
        structure = job.structure
        self._apart = None if structure is None else Apart(index, structure, self._stops, tokenizer, prompt)
        kept = frozenset[int]() if self._apart is None else self._apart.kept
        self._detokenizer = make_detokenizer(tokenizer, skip_special_tokens=job.skip_special_tokens, kept=kept)
        self._min_tokens = job.sampling_params.min_tokens
        self._made = 0
        self._size = len(prompt.text or "")  # characters of prompt + completion so far
        self._prompt_scored: list[TokenLogprob] | None = None  # by score_prompt, before its output is fed
        self._untold: list[int] = []  # ids whose text is held back
        self._cached_tokens = 0
        self.finished = False

    def start(self) -> list[Event]:
        """With `echo`, the prompt is the beginning of the text (where logprobs come with it, `feed` tells both)."""
        if not self._job.echo or self._job.sampling_params.prompt_logprobs is not None:
            return []
        return [TextDelta(self._index, self._prompt.text or "")]

    def feed(self, output: Output) -> list[Event]:
        """What this output means; several outputs may be fed before the events are used."""
        events: list[Event] = []
        if output.cached_tokens:
            self._cached_tokens = output.cached_tokens
        if output.prompt_logprobs is not None:
            events += self._prompt_events(output)
        new = unpack_ids(output.new_token_ids)
        ends_on_token = output.finish_reason is FinishReason.STOP and output.stop_token_id is not None
        textual = len(new) - 1 if ends_on_token and not self._job.include_stop else len(new)
        apart = self._apart
        if apart is not None:
            matched = self._take_apart(apart, new, textual, output)
            events += apart.take(with_token_ids=self._job.with_token_ids)
            self._close(events, output, matched)
            return events
        parts: list[str] = []
        if output.logprobs is None:
            taken, scored = self._take(new, textual, parts, None), None
        else:
            offsets: list[int] = []
            taken = self._take(new, textual, parts, offsets)
            scored = self._score(new, output.logprobs, offsets)
        matched = self._stops.matched if self._stops is not None else None
        if matched is None and output.finish_reason is not None:
            matched = self._end(parts)
        if matched is not None and self._job.include_stop:
            parts.append(matched)
        self._delta(events, "".join(parts), new[:taken], scored)
        self._close(events, output, matched)
        return events

    def _close(self, events: list[Event], output: Output, matched: str | None) -> None:
        """The end, if this output or a stop string in it is that."""
        reason = output.finish_reason if matched is None else FinishReason.STOP
        if reason is not None:
            self.finished = True
            events.append(self._finish(reason, matched, output.stop_token_id))

    def _take_apart(self, apart: Apart, new: list[int], textual: int, output: Output) -> str | None:
        """As _take, for an answer that is taken apart. Returns the stop string that ended it."""
        feed, stops, logprobs = self._detokenizer.feed, self._stops, output.logprobs
        matched = None
        for position, token_id in enumerate(new):
            self._made += 1
            text = feed(token_id) if position < textual else ""
            scored = None
            if logprobs is not None:
                offset = self._scorer.place(token_id, self._size, text)
                scored = self._scorer.token(token_id, logprobs[position], offset)
                self._size += len(text)
            apart.token(token_id, text, scored, may_end=self._made > self._min_tokens)
            if stops is not None and stops.matched is not None:
                matched = stops.matched
                break
        else:
            if output.finish_reason is not None:
                apart.end(self._detokenizer.flush(), may_end=self._made > self._min_tokens)
                matched = stops.matched if stops is not None else None
        if matched is not None and self._job.include_stop:
            apart.include(matched)
        return matched

    def _take(self, token_ids: list[int], textual: int, parts: list[str], offsets: list[int] | None) -> int:
        """Decode ids one by one (so that the answer does not depend on how they were batched) until a stop string
        completes. From `textual` on they count but are no text: the stop token. Returns how many were taken; where
        each of them begins goes to `offsets`, if somebody wants to know."""
        feed, stops = self._detokenizer.feed, self._stops
        for position, token_id in enumerate(token_ids):
            self._made += 1
            text = feed(token_id) if position < textual else ""
            if offsets is not None:
                offsets.append(self._scorer.place(token_id, self._size, text))
                self._size += len(text)
            if stops is not None and text:
                text = stops.feed(text, may_end=self._made > self._min_tokens)
            if text:
                parts.append(text)
            if stops is not None and stops.matched is not None:
                return position + 1
        return len(token_ids)

    def abort(self) -> Finished:
        """Somebody else ended it: what is held back is dropped, as the engine's own abort would."""
        self.finished = True
        return self._finished(FinishReason.ABORT, None, None)

    def _end(self, parts: list[str]) -> str | None:
        """The engine's own end: give what is held back. Returns the stop string that this completed, if any."""
        text = self._detokenizer.flush()
        stops = self._stops
        if stops is None:
            parts.append(text)
            return None
        parts.append(stops.feed(text, may_end=self._made > self._min_tokens))
        if stops.matched is None:
            parts.append(stops.flush())
        return stops.matched

    def _delta(self, events: list[Event], text: str, token_ids: list[int], scored: list[TokenLogprob] | None) -> None:
        if self._untold:
            token_ids = self._untold + token_ids
        if text or scored or (token_ids and self._job.with_token_ids):
            events.append(TextDelta(self._index, text, token_ids, scored))
            token_ids = []
        self._untold = token_ids

    def _finish(self, reason: FinishReason, matched: str | None, stop_token_id: int | None) -> Finished:
        stop_reason: str | int | None = matched
        matched_stop: str | int | None = matched
        if matched is None and reason is FinishReason.STOP:
            matched_stop = stop_token_id
            is_eos = (
                stop_token_id in self._eos_token_ids and stop_token_id not in self._job.sampling_params.stop_token_ids
            )
            stop_reason = None if is_eos else stop_token_id
        return self._finished(reason, stop_reason, matched_stop)

    def _finished(
        self, reason: FinishReason, stop_reason: str | int | None, matched_stop: str | int | None
    ) -> Finished:
        apart = self._apart
        calls, reasoning = (0, 0) if apart is None else (apart.calls, apart.reasoning_tokens)
        made, cached = self._made, self._cached_tokens
        return Finished(self._index, reason, stop_reason, matched_stop, made, cached, calls, reasoning)

    def _score(
        self, token_ids: list[int], logprobs: tuple[TokenLogprobs, ...], offsets: list[int]
    ) -> list[TokenLogprob]:
        """Of the tokens that were taken, which may be fewer than the engine made."""
        entries = zip(token_ids, logprobs, offsets, strict=False)
        return [self._scorer.token(token_id, entry, offset) for token_id, entry, offset in entries]

    def score_prompt(self, output: Output) -> Iterator[None]:
        """What `feed` would do at once of a long prompt's logprobs, in steps: for whoever shares a loop."""
        assert output.prompt_logprobs is not None
        self._prompt_scored = yield from self._scorer.prompt(self._prompt, output.prompt_logprobs)

    def _prompt_events(self, output: Output) -> list[Event]:
        if self._prompt_scored is None:
            for _ in self.score_prompt(output):
                pass
        scored, self._prompt_scored = self._prompt_scored or [], None
        events: list[Event] = [PromptScored(self._index, scored)]
        if self._job.echo:
            own = scored if self._job.sampling_params.logprobs is not None else None
            events.append(TextDelta(self._index, self._prompt.text or "", [], own))
        return events
