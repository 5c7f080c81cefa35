"""OpenAI completions: POST /v1/completions."""

from collections.abc import Iterator
from typing import Any

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
from apiserver.protocol.completion_request import completion_job, read_completion
from apiserver.protocol.exchange import Body, Chunk
from apiserver.protocol.sampling import (
    check_stream_options,
)
from apiserver.requests import GenerateJob


class Completion:
    """One completion request; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/completions"

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_completion(raw, card)
        self._model = card.resolve(fields.model)
        options = check_stream_options(fields)
        self.stream = bool(fields.stream)
        self._include_usage = bool(options.include_usage)
        self._continuous_usage = bool(options.continuous_usage_stats) and self._include_usage
        self._with_token_ids = bool(fields.return_token_ids)
        self._with_prompt_logprobs = fields.prompt_logprobs is not None
        self._with_top = bool(fields.logprobs)
        self._as_ids = bool(fields.return_tokens_as_token_ids)
        self._job = completion_job(fields, card)
        self._id = openai.new_id("cmpl")
        self._created = openai.now()
        self._prompt_tokens = 0
        self._output_tokens: dict[int, int] = {}  # of each choice; counted only for continuous usage
        self._prompts: list[PreparedPrompt] = []
        self._told_prompt_ids: set[int] = set()
        head = {"id": self._id, "object": "text_completion", "created": self._created, "model": self._model}
        self._head = openai.encode_json(head)[:-1] + b',"choices":[{"index":'
        usage = b',"usage":null}' if self._include_usage else b"}"
        self._tail = b',"logprobs":null,"finish_reason":null}]' + usage

    @property
    def job(self) -> GenerateJob:
        return self._job

    # ---- whole ----

    def body(self, result: Result) -> Body:
        return Body(
            {
                "id": self._id,
                "object": "text_completion",
                "created": self._created,
                "model": self._model,
                "choices": [self._choice(index, result.choices[index], result) for index in sorted(result.choices)],
                "usage": openai.usage(result),
                "system_fingerprint": None,
            }
        )

    def _choice(self, index: int, choice: Choice, result: Result) -> dict[str, Any]:
        assert choice.finished is not None
        document: dict[str, Any] = {
            "index": index,
            "text": choice.text,
            "logprobs": None if choice.logprobs is None else self._logprobs(choice.logprobs),
            "finish_reason": openai.FINISH_REASONS[choice.finished.reason],
            **openai.stop_fields(choice.finished),
        }
        if self._with_token_ids:
            document["token_ids"] = choice.token_ids
            document["prompt_token_ids"] = openai.prompt_token_ids(result.prompts, index, self._job.n)
        if self._with_prompt_logprobs and choice.prompt_logprobs is not None:
            document["prompt_logprobs"] = openai.prompt_logprobs(choice.prompt_logprobs)
        return document

    def _logprobs(self, entries: list[TokenLogprob]) -> dict[str, Any]:
        return openai.completion_logprobs(entries, as_ids=self._as_ids, with_top=self._with_top)

    # ---- streamed ----

    def chunks(self, event: Event) -> Iterator[Chunk]:
        match event:
            case TextDelta():
                if self._continuous_usage:
                    told = self._output_tokens.get(event.index, 0)
                    self._output_tokens[event.index] = told + len(event.token_ids)
                yield Chunk(self._delta(event))
            case Finished():
                self._output_tokens[event.index] = event.output_tokens
                choice = {
                    "index": event.index,
                    "text": "",
                    "logprobs": None,
                    "finish_reason": openai.FINISH_REASONS[event.reason],
                    **openai.stop_fields(event),
                }
                yield Chunk(self._chunk([choice]))
            case Started():
                self._prompts = event.prompts
                self._prompt_tokens = sum(len(prompt.token_ids) for prompt in event.prompts)
            case PromptScored():
                pass
            case _:
                raise AssertionError(f"no completion event: {event}")

    def _delta(self, event: TextDelta) -> Any:
        """One delta's document. The plain one is spliced from bytes made once: it is written once a token."""
        if event.logprobs is None and not self._with_token_ids and not self._continuous_usage:
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
        return self._chunk([choice])

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        document: dict[str, Any] = {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
        if self._continuous_usage:
            document["usage"] = openai.usage_counts(self._prompt_tokens, sum(self._output_tokens.values()))
        elif self._include_usage:
            document["usage"] = None
        return document

    def last_chunks(self, result: Result) -> Iterator[Chunk]:
        if self._include_usage:
            yield Chunk(self._chunk([]) | {"usage": openai.usage(result)})
        yield openai.DONE

    def error_chunks(self, error: ApiError) -> Iterator[Chunk]:
        return openai.error_chunks(error)

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)
