"""OpenAI chat completions: POST /v1/chat/completions."""

from collections.abc import Iterator
from typing import Any

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError
from apiserver.events import Choice, Event, Finished, PromptScored, Result, Started, TextDelta, TokenLogprob
from apiserver.protocol import openai
from apiserver.protocol.chat_request import chat_job, read_chat
from apiserver.protocol.exchange import Body, Chunk
from apiserver.protocol.sampling import (
    check_stream_options,
)
from apiserver.requests import GenerateJob


class ChatCompletion:
    """One chat completion; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/chat/completions"

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_chat(raw, card)
        self._model = card.resolve(fields.model)
        options = check_stream_options(fields)
        self.stream = bool(fields.stream)
        self._include_usage = bool(options.include_usage)
        self._continuous_usage = bool(options.continuous_usage_stats) and self._include_usage
        self._with_token_ids = bool(fields.return_token_ids)
        self._with_prompt_ids = self._with_token_ids or bool(fields.return_prompt_token_ids)
        self._with_prompt_text = bool(fields.return_prompt_text)
        self._as_ids = bool(fields.return_tokens_as_token_ids)
        self._job = chat_job(fields, card)
        self._id = openai.new_id("chatcmpl")
        self._created = openai.now()
        self._prompt_tokens = 0
        self._output_tokens: dict[int, int] = {}  # of each choice; counted only for continuous usage
        head = {"id": self._id, "object": "chat.completion.chunk", "created": self._created, "model": self._model}
        self._head = openai.encode_json(head)[:-1]
        usage = b',"usage":null}' if self._include_usage else b"}"
        self._tail = b'},"logprobs":null,"finish_reason":null}]' + usage
        self._heads = {
            index: self._head + b',"choices":[{"index":%d,"delta":{"content":' % index for index in range(self._job.n)
        }

    @property
    def job(self) -> GenerateJob:
        return self._job

    # ---- whole ----

    def body(self, result: Result) -> Body:
        document: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": [self._choice(index, result.choices[index]) for index in sorted(result.choices)],
            "usage": openai.usage(result),
            "system_fingerprint": None,
            "service_tier": None,
        }
        if self._with_prompt_ids:
            document["prompt_token_ids"] = result.prompts[0].token_ids
        if self._with_prompt_text:
            document["prompt_text"] = result.prompts[0].text
        scored = result.choices[0].prompt_logprobs
        if scored is not None:
            document["prompt_logprobs"] = openai.prompt_logprobs(scored)
        return Body(document)

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        assert choice.finished is not None
        document: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": None if choice.logprobs is None else self._logprobs(choice.logprobs),
            "finish_reason": openai.FINISH_REASONS[choice.finished.reason],
            **openai.stop_fields(choice.finished),
        }
        if self._with_token_ids:
            document["token_ids"] = choice.token_ids
        return document

    def _logprobs(self, entries: list[TokenLogprob]) -> dict[str, Any]:
        return openai.chat_logprobs(entries, as_ids=self._as_ids)

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
                choice: dict[str, Any] = {
                    "index": event.index,
                    "delta": {},
                    "logprobs": None,
                    "finish_reason": openai.FINISH_REASONS[event.reason],
                    **openai.stop_fields(event),
                }
                yield Chunk(self._chunk([choice]))
            case Started():
                yield from self._opening(event)
            case PromptScored():
                pass  # the body has them; vLLM refuses prompt_logprobs with stream
            case _:
                raise AssertionError(f"no chat event: {event}")

    def _opening(self, started: Started) -> Iterator[Chunk]:
        self._prompt_tokens = sum(len(prompt.token_ids) for prompt in started.prompts)
        for index in range(self._job.n):
            delta = {"role": "assistant", "content": ""}
            document = self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
            if index == 0 and self._with_prompt_ids:
                document["prompt_token_ids"] = started.prompts[0].token_ids
            if index == 0 and self._with_prompt_text:
                document["prompt_text"] = started.prompts[0].text
            yield Chunk(document)

    def _delta(self, event: TextDelta) -> Any:
        """One delta's document. The plain one is spliced from bytes made once: it is written once a token."""
        if event.logprobs is None and not self._with_token_ids and not self._continuous_usage:
            index = event.index
            return msgspec.Raw(self._heads[index] + openai.encode_json(event.text) + self._tail)
        choice: dict[str, Any] = {
            "index": event.index,
            "delta": {"content": event.text},
            "logprobs": None if event.logprobs is None else self._logprobs(event.logprobs),
            "finish_reason": None,
        }
        if self._with_token_ids:
            choice["token_ids"] = event.token_ids
        return self._chunk([choice])

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        document: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion.chunk",
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
