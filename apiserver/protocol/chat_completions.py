"""OpenAI chat completions: POST /v1/chat/completions."""

from collections.abc import Iterator
from typing import Any

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest
from apiserver.events import Choice, Event, Finished, PromptScored, Result, Started, TextDelta, TokenLogprob
from apiserver.protocol import openai
from apiserver.protocol.conversation import MULTIMODAL, chat_prompt
from apiserver.protocol.decoding import check_range, decode, refuse_unknown, refuse_unsupported
from apiserver.protocol.exchange import Body, Chunk
from apiserver.protocol.generation_fields import HARMLESS, IGNORED, SamplingFields
from apiserver.protocol.sampling import (
    cache_salt,
    check_logprobs,
    check_n,
    check_stream_options,
    client_request_id,
    sampling_params,
    stop_strings,
    truncation,
)
from apiserver.requests import GenerateJob, Prompt, TokenIds

_MOST_TOKENS = 2**63 - 1


class ChatFields(SamplingFields, kw_only=True):
    messages: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | float | None = None
    thinking: Any = None
    input_ids: list[int] | None = None
    return_prompt_text: bool | None = None
    return_prompt_token_ids: bool | None = None
    # Known, and refused unless harmless.
    echo: Any = None
    audio: Any = None
    modalities: Any = None
    moderation: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None
    include_reasoning: Any = None
    return_input_ids_in_sglext: Any = None
    return_output_ids_in_sglext: Any = None
    return_flat_raw_output_top_logprobs: Any = None
    sampling_logprobs_mode: Any = None
    max_dynamic_patch: Any = None
    min_dynamic_patch: Any = None
    use_audio_in_video: Any = None
    video_config: Any = None
    media_io_kwargs: Any = None
    task: Any = None


HARMLESS_IN_CHAT: dict[str, tuple[Any, ...]] = (
    HARMLESS
    | MULTIMODAL
    | {
        "echo": (False,),
        "audio": (),
        "modalities": (["text"], []),
        "moderation": (),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "web_search_options": (),
        "include_reasoning": (True,),
        "return_input_ids_in_sglext": (False,),
        "return_output_ids_in_sglext": (False,),
        "return_flat_raw_output_top_logprobs": (False,),
        "sampling_logprobs_mode": (),
        "max_dynamic_patch": (),
        "min_dynamic_patch": (),
        "use_audio_in_video": (False,),
        "video_config": ({},),
        "task": (),
    }
)
IGNORED_IN_CHAT = IGNORED | {
    "prediction",
    "verbosity",
    # The answer is text: there is nothing yet that could be taken apart, or held back.
    "parallel_tool_calls",
    "separate_reasoning",
    "stream_reasoning",
    "return_flat_raw_top_logprobs_b64",
}
_decoder = msgspec.json.Decoder(ChatFields)


class ChatCompletion:
    """One chat completion; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/chat/completions"

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = decode(raw, _decoder)
        if card.strict_fields:
            refuse_unknown(raw, ChatFields, IGNORED_IN_CHAT)
        self._model = card.resolve(fields.model)
        refuse_unsupported(fields, HARMLESS_IN_CHAT)
        options = check_stream_options(fields)
        self.stream = bool(fields.stream)
        self._include_usage = bool(options.include_usage)
        self._continuous_usage = bool(options.continuous_usage_stats) and self._include_usage
        self._with_token_ids = bool(fields.return_token_ids)
        self._with_prompt_ids = self._with_token_ids or bool(fields.return_prompt_token_ids)
        self._with_prompt_text = bool(fields.return_prompt_text)
        self._as_ids = bool(fields.return_tokens_as_token_ids)
        self._job = _job(fields, card)
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


def _job(fields: ChatFields, card: Card) -> GenerateJob:
    logprobs = _logprobs_count(fields, card)
    if fields.prompt_logprobs is not None and fields.stream:
        raise InvalidRequest("prompt_logprobs cannot be streamed.", param="prompt_logprobs")
    max_tokens, param = _max_tokens(fields)
    return GenerateJob(
        prompts=[_prompt(fields, card)],
        sampling_params=sampling_params(fields, card, logprobs),
        max_tokens=max_tokens,
        max_tokens_param=param,
        n=check_n(fields.n, 1, card.limits),
        stop=stop_strings(fields.stop, card.limits),
        include_stop=bool(fields.include_stop_str_in_output or fields.no_stop_trim),
        skip_special_tokens=fields.skip_special_tokens is not False,
        with_token_ids=bool(fields.return_token_ids),
        truncation=truncation(fields.truncate_prompt_tokens, fields.truncation_side, "left"),
        client_request_id=client_request_id(fields.request_id, fields.rid),
        priority=fields.priority or 0,
        cache_salt=cache_salt(fields),
    )


def _max_tokens(fields: ChatFields) -> tuple[int | None, str]:
    """The newer name wins; unset means the rest of the context."""
    if fields.max_completion_tokens is not None:
        check_range("max_completion_tokens", fields.max_completion_tokens, 1, _MOST_TOKENS)
        return fields.max_completion_tokens, "max_completion_tokens"
    check_range("max_tokens", fields.max_tokens, 1, _MOST_TOKENS)
    return fields.max_tokens, "max_tokens"


def _logprobs_count(fields: ChatFields, card: Card) -> int | None:
    """None is off; 0 is the sampled token alone."""
    check_range("top_logprobs", fields.top_logprobs, 0, card.limits.max_logprobs)
    if not fields.logprobs:
        if fields.top_logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
        return None
    count = fields.top_logprobs or 0
    check_logprobs("top_logprobs" if count else "logprobs", count, card.capabilities)
    return count


def _prompt(fields: ChatFields, card: Card) -> Prompt:
    if fields.input_ids is None:
        return chat_prompt(fields, card)
    if fields.messages:
        raise InvalidRequest("messages and input_ids cannot be given together.", param="input_ids")
    return TokenIds(fields.input_ids, "input_ids")
