"""OpenAI completions: POST /v1/completions."""

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
from apiserver.protocol.completion_request import CompletionFields, completion_job, read_completion
from apiserver.protocol.exchange import Body, Chunk
from apiserver.protocol.listed import Listed, written
from apiserver.protocol.openai_stream import Envelope
from apiserver.protocol.sampling import check_stream_options
from apiserver.requests import GenerateJob


class Completion:
    """One completion request; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/completions"
    fields: ClassVar = (CompletionFields,)
    streams: ClassVar = True

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_completion(raw, card)
        self.stream = bool(fields.stream)
        self._envelope = Envelope("cmpl", "text_completion", card.resolve(fields.model), check_stream_options(fields))
        self._with_token_ids = bool(fields.return_token_ids)
        self._with_prompt_logprobs = fields.prompt_logprobs is not None
        self._with_top = bool(fields.logprobs)
        self._as_ids = bool(fields.return_tokens_as_token_ids)
        self._job = completion_job(fields, card)
        self._prompts: list[PreparedPrompt] = []
        self._told_prompt_ids: set[int] = set()
        self._head = self._envelope.head + b',"choices":[{"index":'
        self._tail = b',"logprobs":null,"finish_reason":null}]' + self._envelope.tail

    @property
    def job(self) -> GenerateJob:
        return self._job

    # ---- whole ----

    def body(self, result: Result) -> Body:
        document: dict[str, Any] = {
            **self._envelope.fields,
            "choices": [self._choice(index, result.choices[index], result) for index in sorted(result.choices)],
            "usage": openai.usage(result),
            "system_fingerprint": None,
        }
        params = self._job.sampling_params
        has_lists = params.logprobs is not None or params.prompt_logprobs is not None
        return Body(written(document) if has_lists else document)

    def _choice(self, index: int, choice: Choice, result: Result) -> dict[str, Any]:
        assert choice.finished is not None
        document: dict[str, Any] = {
            "index": index,
            "text": choice.text,
            "logprobs": None if choice.logprobs is None else self._logprobs(choice.logprobs, Listed),
            "finish_reason": openai.FINISH_REASONS[choice.finished.reason],
            **openai.stop_fields(choice.finished),
        }
        if self._with_token_ids:
            document["token_ids"] = choice.token_ids
            document["prompt_token_ids"] = openai.prompt_token_ids(result.prompts, index, self._job.n)
        if self._with_prompt_logprobs and choice.prompt_logprobs is not None:
            document["prompt_logprobs"] = openai.prompt_logprobs(choice.prompt_logprobs, Listed)
        return document

    def _logprobs(self, entries: list[TokenLogprob], many: openai.Many = list) -> dict[str, Any]:
        return openai.completion_logprobs(entries, as_ids=self._as_ids, with_top=self._with_top, many=many)

    # ---- streamed ----

    def chunks(self, event: Event) -> Iterator[Chunk]:
        match event:
            case TextDelta():
                self._envelope.count(event)
                yield Chunk(self._delta(event))
            case Finished():
                self._envelope.finish(event)
                choice = {
                    "index": event.index,
                    "text": "",
                    "logprobs": None,
                    "finish_reason": openai.FINISH_REASONS[event.reason],
                    **openai.stop_fields(event),
                }
                yield Chunk(self._envelope.chunk([choice]))
            case Started():
                self._prompts = event.prompts
                self._envelope.start(event)
            case PromptScored():
                pass
            case _:
                raise AssertionError(f"no completion event: {event}")

    def _delta(self, event: TextDelta) -> Any:
        """One delta's document. The plain one is spliced from bytes made once: it is written once a token."""
        if event.logprobs is None and not self._with_token_ids and self._envelope.is_constant:
            text = openai.encode_json(event.text)
            return msgspec.Raw(b"%s%d%s%s%s" % (self._head, event.index, b',"text":', text, self._tail))
        choice: dict[str, Any] = {
            "index": event.index,
            "text": event.text,
            "logprobs": None if event.logprobs is None else self._logprobs(event.logprobs),
            "finish_reason": None,
        }
        if self._with_token_ids:
            choice["token_ids"] = event.token_ids
            if event.index not in self._told_prompt_ids:
                self._told_prompt_ids.add(event.index)
                choice["prompt_token_ids"] = openai.prompt_token_ids(self._prompts, event.index, self._job.n)
        return self._envelope.chunk([choice])

    def last_chunks(self, result: Result) -> Iterator[Chunk]:
        return self._envelope.last(result)

    def error_chunks(self, error: ApiError) -> Iterator[Chunk]:
        return openai.error_chunks(error)

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)
