"""SGLang's native API: POST /generate.

A stream's events are cumulative, as SGLang's are: each has all text and ids so far, so a stream of n tokens is n²/2
tokens long by nature. What is ours stays linear: text and ids are encoded once, when they come, and an event is spliced
from bytes. `incremental_streaming_output`, in the request or as a flag, makes events of what is new alone.
"""

import random
import time
from collections.abc import Iterator
from typing import Any, ClassVar

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
from apiserver.protocol.generate_logprobs import LogprobColumns
from apiserver.protocol.generate_request import read_generate
from apiserver.protocol.generate_stream import Told
from apiserver.protocol.listed import Listed, written
from apiserver.requests import GenerateJob
from engine_bridge.wire import FinishReason

WEIGHT_VERSION = "default"  # SGLang's word for weights that were never replaced


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
        with_texts = bool(fields.return_text_in_logprobs)
        self._columns = [
            None if view is None else LogprobColumns(view, with_texts=with_texts) for view in request.views
        ]
        self._job = request.job
        self._is_listed = request.is_batch or request.job.n > 1
        self._ids = self._make_ids(request.rids)
        self._told: dict[int, Told] = {}
        self._prompts: list[PreparedPrompt] = []
        self._prompt_logprobs: dict[int, list[TokenLogprob]] = {}

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
        document = items if self._is_listed else items[0]
        has_lists = any(columns is not None for columns in self._columns)
        return Body(written(document) if has_lists else document)

    def _item(self, index: int, choice: Choice, prompt: PreparedPrompt) -> dict[str, Any]:
        assert choice.finished is not None
        meta = self._meta(index, choice.finished, prompt.token_count)
        columns = self._columns[index // self._job.n]
        if columns is not None:
            told = choice.logprobs or []
            meta |= columns.of_prompt(choice.prompt_logprobs or (), Listed)
            meta |= columns.of_output(told, Listed) | {"output_token_logprobs_length": len(told)}
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

    # ---- streamed ----

    def chunks(self, event: Event) -> Iterator[Chunk]:
        match event:
            case TextDelta():
                yield self._delta(event)
            case Finished():
                yield self._end(event)
            case PromptScored():
                self._prompt_logprobs[event.index] = event.logprobs
            case Started():
                self._prompts = event.prompts
            case _:
                raise AssertionError(f"no event of a generation: {event}")

    def _delta(self, event: TextDelta) -> Chunk:
        told = self._told_of(event.index)
        columns = self._columns[event.index // self._job.n]
        told.count += len(event.token_ids)
        told.add(event.text, event.token_ids, {} if columns is None else columns.of_output(event.logprobs or ()))
        meta = {
            "id": self._ids[event.index],
            "finish_reason": None,
            "prompt_tokens": self._prompt(event.index).token_count,
            "completion_tokens": told.count,
            "cached_tokens": 0,
            "weight_version": WEIGHT_VERSION,
        }
        return self._chunk(told, meta)

    def _end(self, finished: Finished) -> Chunk:
        told = self._told_of(finished.index)
        told.count = finished.output_tokens
        return self._chunk(told, self._meta(finished.index, finished, self._prompt(finished.index).token_count))

    def _chunk(self, told: Told, meta: dict[str, Any]) -> Chunk:
        document = told.event(meta)
        if self._is_incremental:
            told.clear()
        return Chunk(document)

    def _told_of(self, index: int) -> Told:
        told = self._told.get(index)
        if told is None:
            columns = self._columns[index // self._job.n]
            prompt_logprobs = self._prompt_logprobs.pop(index, ())
            told = self._told[index] = Told(
                index if self._is_listed else None,
                {} if columns is None else columns.of_prompt(prompt_logprobs),
                () if columns is None else tuple(columns.of_output(())),
                self._prompt(index).token_ids if self._with_prompt_ids else None,
            )
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
