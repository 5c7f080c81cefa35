"""SGLang's native API: POST /generate.

A stream's events are cumulative, as SGLang's are: each has all text and ids so far, so a stream of n tokens is n²/2
tokens long by nature. What is ours stays linear: text and ids are encoded once, when they come, and an event is spliced
from bytes. `incremental_streaming_output`, in the request or as a flag, makes events of what is new alone.
"""

import random
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError
from apiserver.events import (
    Choice,
    Event,
    Finished,
    PreparedPrompt,
    PromptScored,
    Result,
    Started,
    TextDelta,
    TokenLogprob,
)
from apiserver.protocol import openai
from apiserver.protocol.exchange import Body, Chunk
from apiserver.protocol.generate_fields import GenerateFields
from apiserver.protocol.generate_request import read_generate
from apiserver.protocol.native_sampling import LogprobView
from apiserver.requests import GenerateJob
from engine_bridge.wire import FinishReason

WEIGHT_VERSION = "default"  # SGLang's word for weights that were never replaced


class _Told:
    """One choice of a stream: what has been told of it, as JSON without its brackets."""

    __slots__ = ("count", "ids", "logprobs", "text", "tops")

    def __init__(self) -> None:
        self.count = 0
        self.clear()

    def clear(self) -> None:
        self.text = bytearray()
        self.ids = bytearray()
        self.logprobs = bytearray()
        self.tops = bytearray()

    def add(self, text: bytes, ids: bytes, logprobs: bytes, tops: bytes) -> None:
        self.text += text[1:-1]
        for held, new in ((self.ids, ids), (self.logprobs, logprobs), (self.tops, tops)):
            if len(new) > 2:  # more than its brackets
                held += b"," * bool(held) + new[1:-1]


class Generate:
    """One native request; see `apiserver.protocol.exchange.Exchange`."""

    path = "/generate"
    fields: ClassVar = (GenerateFields,)
    streams: ClassVar = True

    def __init__(self, raw: bytes, card: Card) -> None:
        self._began = time.perf_counter()
        request = read_generate(raw, card)
        fields = request.fields
        self.stream = bool(fields.stream)
        asked = fields.incremental_streaming_output
        self._is_incremental = card.incremental_streaming_output if asked is None else asked
        self._with_prompt_ids = bool(fields.return_prompt_token_ids)
        self._with_texts = bool(fields.return_text_in_logprobs)
        self._views = request.views
        self._job = request.job
        self._is_listed = request.is_batch or request.job.n > 1
        self._ids = self._make_ids(request.rids)
        self._told: dict[int, _Told] = {}
        self._prompts: list[PreparedPrompt] = []
        self._prompt_logprobs: dict[int, dict[str, Any]] = {}

    @property
    def job(self) -> GenerateJob:
        return self._job

    def _make_ids(self, rids: list[str] | None) -> list[str]:
        """What each answer is called: the client's id, with a number where one id stands for several."""
        n, count = self._job.n, len(self._job.prompts)
        names = rids or [f"{random.getrandbits(128):032x}"]
        if len(names) == 1:
            return [f"{names[0]}_{index}" for index in range(n * count)] if self._is_listed else names
        return names if n == 1 else [f"{name}_{choice}" for name in names for choice in range(n)]

    # ---- whole ----

    def body(self, result: Result) -> Body:
        items = [
            self._item(index, result.choices[index], result.prompts[index // self._job.n])
            for index in sorted(result.choices)
        ]
        return Body(items if self._is_listed else items[0])

    def _item(self, index: int, choice: Choice, prompt: PreparedPrompt) -> dict[str, Any]:
        assert choice.finished is not None
        meta = self._meta(index, choice.finished, prompt.token_count)
        view = self._view(index)
        if view is not None:
            meta |= self._input_logprobs(view, choice.prompt_logprobs or [])
            meta |= self._output_logprobs(view, choice.logprobs or [])
        document: dict[str, Any] = {"text": choice.text, "output_ids": choice.token_ids, "meta_info": meta}
        if self._with_prompt_ids:
            document["prompt_token_ids"] = prompt.token_ids
        return document

    def _meta(self, index: int, finished: Finished, prompt_tokens: int) -> dict[str, Any]:
        return {
            "id": self._ids[index],
            "finish_reason": _finish_reason(finished),
            "prompt_tokens": prompt_tokens,
            "completion_tokens": finished.output_tokens,
            "cached_tokens": finished.cached_tokens,
            "reasoning_tokens": finished.reasoning_tokens,
            "weight_version": WEIGHT_VERSION,
            "e2e_latency": round(time.perf_counter() - self._began, 6),
        }

    # ---- logprobs: [logprob, id, text or null] ----

    def _view(self, index: int) -> LogprobView | None:
        return self._views[index // self._job.n]

    def _entry(self, token: TokenLogprob) -> list[Any]:
        return [token.logprob, token.token_id, token.text if self._with_texts else None]

    def _tops(self, tokens: list[TokenLogprob]) -> list[Any]:
        return [[self._entry(other) for other in token.top] or None for token in tokens]

    def _input_logprobs(self, view: LogprobView, tokens: list[TokenLogprob]) -> dict[str, Any]:
        shown = tokens[view.start :] if view.start >= 0 else []
        document: dict[str, Any] = {"input_token_logprobs": [self._entry(token) for token in shown]}
        if view.top:
            document["input_top_logprobs"] = self._tops(shown)
        return document

    def _output_logprobs(self, view: LogprobView, tokens: list[TokenLogprob]) -> dict[str, Any]:
        document: dict[str, Any] = {
            "output_token_logprobs": [self._entry(token) for token in tokens],
            "output_token_logprobs_length": len(tokens),
        }
        if view.top:
            document["output_top_logprobs"] = self._tops(tokens)
        return document

    # ---- streamed ----

    def chunks(self, event: Event) -> Iterator[Chunk]:
        match event:
            case TextDelta():
                yield self._delta(event)
            case Finished():
                yield self._end(event)
            case PromptScored():
                view = self._view(event.index)
                assert view is not None
                self._prompt_logprobs[event.index] = self._input_logprobs(view, event.logprobs)
            case Started():
                self._prompts = event.prompts
            case _:
                raise AssertionError(f"no event of a generation: {event}")

    def _delta(self, event: TextDelta) -> Chunk:
        told = self._told_of(event.index)
        logprobs = tops = b"[]"
        if event.logprobs is not None:
            logprobs = openai.encode_json([self._entry(token) for token in event.logprobs])
            tops = openai.encode_json(self._tops(event.logprobs))
        told.count += len(event.token_ids)
        told.add(openai.encode_json(event.text), openai.encode_json(event.token_ids), logprobs, tops)
        meta = {
            "id": self._ids[event.index],
            "finish_reason": None,
            "prompt_tokens": self._prompt(event.index).token_count,
            "completion_tokens": told.count,
            "cached_tokens": 0,
            "weight_version": WEIGHT_VERSION,
        }
        return self._chunk(event.index, told, meta)

    def _end(self, finished: Finished) -> Chunk:
        told = self._told_of(finished.index)
        told.count = finished.output_tokens
        meta = self._meta(finished.index, finished, self._prompt(finished.index).token_count)
        return self._chunk(finished.index, told, meta)

    def _chunk(self, index: int, told: _Told, meta: dict[str, Any]) -> Chunk:
        """Spliced: what was told before is copied, and not encoded again."""
        head = b'{"index":%d,"text":"' % index if self._is_listed else b'{"text":"'
        meta |= self._prompt_logprobs.get(index, {})
        parts = [head, told.text, b'","output_ids":[', told.ids, b'],"meta_info":', openai.encode_json(meta)[:-1]]
        view = self._view(index)
        if view is not None:
            length = b'],"output_token_logprobs_length":%d' % told.count
            parts += [b',"output_token_logprobs":[', told.logprobs, length]
            if view.top:
                parts += [b',"output_top_logprobs":[', told.tops, b"]"]
        parts.append(b"}")
        if self._with_prompt_ids:
            parts += [b',"prompt_token_ids":', openai.encode_json(self._prompt(index).token_ids)]
        parts.append(b"}")
        document = msgspec.Raw(b"".join(parts))
        if self._is_incremental:
            told.clear()
        return Chunk(document)

    def _told_of(self, index: int) -> _Told:
        told = self._told.get(index)
        if told is None:
            told = self._told[index] = _Told()
        return told

    def _prompt(self, index: int) -> PreparedPrompt:
        return self._prompts[index // self._job.n]

    def last_chunks(self, result: Result) -> Iterator[Chunk]:
        yield openai.DONE

    def error_chunks(self, error: ApiError) -> Iterator[Chunk]:
        return openai.error_chunks(error)

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


def _finish_reason(finished: Finished) -> dict[str, Any]:
    match finished.reason:
        case FinishReason.STOP:
            return {"type": "stop", "matched": finished.matched_stop}
        case FinishReason.LENGTH:
            return {"type": "length", "length": finished.output_tokens}
        case _:
            return {"type": "abort", "message": "The request was aborted.", "status_code": None, "err_type": None}
