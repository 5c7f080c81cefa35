"""One choice's outputs → events. The only place that looks at every token, and it does so once."""

from apiserver.events import Event, Finished, PreparedPrompt, PromptScored, TextDelta, TokenLogprob
from apiserver.pipeline.detokenize import make_detokenizer
from apiserver.pipeline.stop import StopChecker
from apiserver.requests import GenerateJob
from apiserver.tokenizer import Tokenizer
from engine_bridge.wire import FinishReason, Output, TokenLogprobs, unpack_ids


class Decoder:
    """Feed it one choice's outputs in order; `finished` says when the choice has ended, maybe before the engine."""

    __slots__ = (
        "_cached_tokens",
        "_detokenizer",
        "_eos_token_ids",
        "_index",
        "_job",
        "_made",
        "_min_tokens",
        "_prompt",
        "_stops",
        "_tokenizer",
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
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._eos_token_ids = eos_token_ids
        self._detokenizer = make_detokenizer(tokenizer, skip_special_tokens=job.skip_special_tokens)
        self._stops = StopChecker(job.stop) if job.stop else None
        self._min_tokens = job.sampling_params.min_tokens
        self._made = 0
        self._cached_tokens = 0
        self.finished = False

    def start(self) -> list[Event]:
        """With `echo`, the prompt is the beginning of the text (where logprobs come with it, `feed` tells both)."""
        if not self._job.echo or self._job.sampling_params.prompt_logprobs is not None:
            return []
        return [TextDelta(self._index, self._prompt_text())]

    def feed(self, output: Output) -> list[Event]:
        """What this output means; several outputs may be fed before the events are used."""
        events: list[Event] = []
        if output.cached_tokens:
            self._cached_tokens = output.cached_tokens
        if output.prompt_logprobs is not None:
            scored = self._score_prompt(output.prompt_logprobs)
            events.append(PromptScored(self._index, scored))
            if self._job.echo:
                events.append(TextDelta(self._index, self._prompt_text(), [], scored))
        new = unpack_ids(output.new_token_ids)
        ends_on_token = output.finish_reason is FinishReason.STOP and output.stop_token_id is not None
        parts: list[str] = []
        taken = self._take(new, len(new) - 1 if ends_on_token and not self._job.include_stop else len(new), parts)
        matched = self._stops.matched if self._stops is not None else None
        reason = output.finish_reason
        if matched is None and reason is not None:
            matched = self._end(parts)
        if matched is not None:
            reason = FinishReason.STOP
            if self._job.include_stop:
                parts.append(matched)
        self._delta(events, parts, new[:taken], output.logprobs)
        if reason is not None:
            self.finished = True
            events.append(self._finish(reason, matched, output.stop_token_id))
        return events

    def _take(self, token_ids: list[int], textual: int, parts: list[str]) -> int:
        """Decode ids one by one (so that the answer does not depend on how they were batched) until a stop string
        completes. From `textual` on they count but are no text: the stop token. Returns how many were taken."""
        feed, stops = self._detokenizer.feed, self._stops
        for position, token_id in enumerate(token_ids):
            self._made += 1
            text = feed(token_id) if position < textual else ""
            if stops is not None and text and self._made > self._min_tokens:
                text = stops.feed(text)
            if text:
                parts.append(text)
            if stops is not None and stops.matched is not None:
                return position + 1
        return len(token_ids)

    def abort(self) -> Finished:
        """Somebody else ended it: what is held back is dropped, as the engine's own abort would."""
        self.finished = True
        return Finished(self._index, FinishReason.ABORT, None, None, self._made, self._cached_tokens)

    def _end(self, parts: list[str]) -> str | None:
        """The engine's own end: give what is held back. Returns the stop string that this completed, if any."""
        text = self._detokenizer.flush()
        stops = self._stops
        if stops is None or self._made <= self._min_tokens:
            parts.append(text)
            return None
        parts.append(stops.feed(text))
        if stops.matched is None:
            parts.append(stops.flush())
        return stops.matched

    def _delta(
        self, events: list[Event], parts: list[str], token_ids: list[int], logprobs: tuple[TokenLogprobs, ...] | None
    ) -> None:
        text = "".join(parts)
        scored = None
        if logprobs is not None:
            scored = [self._logprob(token_id, entry) for token_id, entry in zip(token_ids, logprobs, strict=False)]
        if text or scored or (token_ids and self._job.with_token_ids):
            events.append(TextDelta(self._index, text, token_ids, scored))

    def _finish(self, reason: FinishReason, matched: str | None, stop_token_id: int | None) -> Finished:
        stop_reason: str | int | None = matched
        matched_stop: str | int | None = matched
        if matched is None and reason is FinishReason.STOP:
            matched_stop = stop_token_id
            is_eos = (
                stop_token_id in self._eos_token_ids and stop_token_id not in self._job.sampling_params.stop_token_ids
            )
            stop_reason = None if is_eos else stop_token_id
        return Finished(self._index, reason, stop_reason, matched_stop, self._made, self._cached_tokens)

    def _prompt_text(self) -> str:
        if self._prompt.text is not None:
            return self._prompt.text
        return self._tokenizer.decode(self._prompt.token_ids, skip_special_tokens=self._job.skip_special_tokens)

    def _score_prompt(self, logprobs: tuple[TokenLogprobs | None, ...]) -> list[TokenLogprob]:
        return [
            self._logprob(token_id, entry) for token_id, entry in zip(self._prompt.token_ids, logprobs, strict=True)
        ]

    def _logprob(self, token_id: int, entry: TokenLogprobs | None) -> TokenLogprob:
        raw = self._tokenizer.token_bytes(token_id)
        if entry is None:
            return TokenLogprob(token_id, None, raw.decode(errors="replace"), raw)
        top: list[TokenLogprob] = []
        for other, logprob in entry.top:
            other_raw = self._tokenizer.token_bytes(other)
            top.append(TokenLogprob(other, _finite(logprob), other_raw.decode(errors="replace"), other_raw))
        return TokenLogprob(token_id, _finite(entry.logprob), raw.decode(errors="replace"), raw, tuple(top))


def _finite(logprob: float) -> float:
    """JSON has no infinity; vLLM's floor for it."""
    return max(logprob, -9999.0)
