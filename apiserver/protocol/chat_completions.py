"""OpenAI chat completions: POST /v1/chat/completions."""

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError
from apiserver.events import (
    Choice,
    Delta,
    Event,
    Finished,
    PromptScored,
    ReasoningDelta,
    Result,
    Started,
    TextDelta,
    ToolCallDelta,
)
from apiserver.protocol import openai
from apiserver.protocol.chat_request import ChatFields, chat_job, read_chat
from apiserver.protocol.exchange import Body, Chunk
from apiserver.protocol.listed import Listed, written
from apiserver.protocol.openai_stream import Envelope
from apiserver.protocol.sampling import check_stream_options
from apiserver.requests import FORCED_CALL, GenerateJob


class ChatCompletion:
    """One chat completion; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/chat/completions"
    fields: ClassVar = (ChatFields,)
    streams: ClassVar = True

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_chat(raw, card)
        options = check_stream_options(fields)
        self.stream = bool(fields.stream)
        self._envelope = Envelope("chatcmpl", "chat.completion.chunk", card.resolve(fields.model), options)
        self._with_token_ids = bool(fields.return_token_ids)
        self._with_prompt_ids = self._with_token_ids or bool(fields.return_prompt_token_ids)
        self._with_prompt_text = bool(fields.return_prompt_text)
        self._as_ids = bool(fields.return_tokens_as_token_ids)
        self._job = chat_job(fields, card)
        structure = self._job.structure
        self._with_reasoning = structure is not None and structure.reasoning is not None
        self._tells_reasoning = fields.include_reasoning is not False
        self._holds_reasoning = fields.stream_reasoning is False
        self._held: dict[int, list[ReasoningDelta]] = {}
        self._is_named = structure is not None and structure.tool_calls == FORCED_CALL
        self._tail = b'},"logprobs":null,"finish_reason":null}]' + self._envelope.tail
        self._heads = {
            index: self._envelope.head + b',"choices":[{"index":%d,"delta":{"content":' % index
            for index in range(self._job.n)
        }

    @property
    def job(self) -> GenerateJob:
        return self._job

    # ---- whole ----

    def body(self, result: Result) -> Body:
        document: dict[str, Any] = {
            **self._envelope.fields,
            "object": "chat.completion",
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
            document["prompt_logprobs"] = openai.prompt_logprobs(scored, Listed)
        has_lists = scored is not None or self._job.sampling_params.logprobs is not None
        return Body(written(document) if has_lists else document)

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        assert choice.finished is not None
        scored = choice.logprobs
        document: dict[str, Any] = {
            "index": index,
            "message": self._message(choice),
            "logprobs": None if scored is None else openai.chat_logprobs(scored, as_ids=self._as_ids, many=Listed),
            "finish_reason": self._finish_reason(choice.finished),
            **openai.stop_fields(choice.finished),
        }
        if self._with_token_ids:
            document["token_ids"] = choice.token_ids
        return document

    def _message(self, choice: Choice) -> dict[str, Any]:
        calls = choice.tool_calls
        text = choice.text
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if self._with_reasoning and self._tells_reasoning:
            message |= _reasoning(choice.reasoning or None)
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
        return message

    def _finish_reason(self, finished: Finished) -> str:
        """A call that was asked for by name ends with "stop", as OpenAI has it."""
        return openai.finish_reason(finished, calls=not self._is_named)

    # ---- streamed ----

    def chunks(self, event: Event) -> Iterator[Chunk]:
        match event:
            case TextDelta():
                self._envelope.count(event)
                yield from self._held_reasoning(event.index)
                yield Chunk(self._text(event))
            case ReasoningDelta():
                self._envelope.count(event)
                yield from self._reasoning(event)
            case ToolCallDelta():
                self._envelope.count(event)
                yield from self._held_reasoning(event.index)
                yield self._chunk(event, {"tool_calls": [_tool_call(event)]})
            case Finished():
                self._envelope.finish(event)
                yield from self._held_reasoning(event.index)
                choice: dict[str, Any] = {
                    "index": event.index,
                    "delta": {},
                    "logprobs": None,
                    "finish_reason": self._finish_reason(event),
                    **openai.stop_fields(event),
                }
                yield Chunk(self._envelope.chunk([choice]))
            case Started():
                yield from self._opening(event)
            case PromptScored():
                pass  # the body has them; vLLM refuses prompt_logprobs with stream
            case _:
                raise AssertionError(f"no chat event: {event}")

    def _opening(self, started: Started) -> Iterator[Chunk]:
        self._envelope.start(started)
        for index in range(self._job.n):
            delta = {"role": "assistant", "content": ""}
            document = self._envelope.chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
            if index == 0 and self._with_prompt_ids:
                document["prompt_token_ids"] = started.prompts[0].token_ids
            if index == 0 and self._with_prompt_text:
                document["prompt_text"] = started.prompts[0].text
            yield Chunk(document)

    def _text(self, event: TextDelta) -> Any:
        """One delta's document. The plain one is spliced from bytes made once: it is written once a token."""
        if event.logprobs is None and not self._with_token_ids and self._envelope.is_constant:
            return msgspec.Raw(self._heads[event.index] + openai.encode_json(event.text) + self._tail)
        return self._chunk(event, {"content": event.text}).document

    def _reasoning(self, event: ReasoningDelta) -> Iterator[Chunk]:
        if not self._tells_reasoning:
            if self._with_token_ids or event.logprobs is not None:
                yield self._chunk(event, {})
        elif self._holds_reasoning:
            self._held.setdefault(event.index, []).append(event)
        else:
            yield self._chunk(event, _reasoning(event.text))

    def _held_reasoning(self, index: int) -> Iterator[Chunk]:
        """All of it at once, where the client wants no pieces."""
        held = self._held.pop(index, None) if self._held else None
        if held is not None:
            scored = [entry for delta in held for entry in delta.logprobs or ()]
            token_ids = [token_id for delta in held for token_id in delta.token_ids]
            text = "".join([delta.text for delta in held])
            yield self._chunk(ReasoningDelta(index, text, token_ids, scored or None), _reasoning(text))

    def _chunk(self, event: Delta, delta: dict[str, Any]) -> Chunk:
        scored = event.logprobs
        choice: dict[str, Any] = {
            "index": event.index,
            "delta": delta,
            "logprobs": None if scored is None else openai.chat_logprobs(scored, as_ids=self._as_ids),
            "finish_reason": None,
        }
        if self._with_token_ids:
            choice["token_ids"] = event.token_ids
        return Chunk(self._envelope.chunk([choice]))

    def last_chunks(self, result: Result) -> Iterator[Chunk]:
        return self._envelope.last(result)

    def error_chunks(self, error: ApiError) -> Iterator[Chunk]:
        return openai.error_chunks(error)

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


def _reasoning(text: str | None) -> dict[str, Any]:
    """Under both names that clients know it by: SGLang's and vLLM's."""
    return {"reasoning_content": text, "reasoning": text}


def _tool_call(event: ToolCallDelta) -> dict[str, Any]:
    if event.id is None:
        return {"index": event.call, "function": {"arguments": event.arguments}}
    function = {"name": event.name, "arguments": event.arguments}
    return {"index": event.call, "id": event.id, "type": "function", "function": function}
