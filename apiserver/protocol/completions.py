"""OpenAI completions: POST /v1/completions."""

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest
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
from apiserver.protocol.constraints import Constraint, schema_text
from apiserver.protocol.decoding import check_range, decode, refuse_unknown, refuse_unsupported
from apiserver.protocol.exchange import Body, Chunk
from apiserver.protocol.generation_fields import HARMLESS, IGNORED, SamplingFields
from apiserver.protocol.prompts import prompts
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
from apiserver.requests import GenerateJob

_DEFAULT_MAX_TOKENS = 16  # OpenAI's


class CompletionFields(SamplingFields, kw_only=True):
    prompt: str | list[Any] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    json_schema: str | None = None
    # Known, and refused unless harmless.
    prompt_embeds: Any = None
    custom_labels: Any = None


HARMLESS_IN_COMPLETIONS: dict[str, tuple[Any, ...]] = HARMLESS | {
    "suffix": ("",),
    "prompt_embeds": (),
    "custom_labels": ({},),
}
_decoder = msgspec.json.Decoder(CompletionFields)


class Completion:
    """One completion request; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/completions"

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = decode(raw, _decoder)
        if card.strict_fields:
            refuse_unknown(raw, CompletionFields, IGNORED)
        self._model = card.resolve(fields.model)
        refuse_unsupported(fields, HARMLESS_IN_COMPLETIONS | {"best_of": (1, fields.n)})
        options = check_stream_options(fields)
        self.stream = bool(fields.stream)
        self._include_usage = bool(options.include_usage)
        self._continuous_usage = bool(options.continuous_usage_stats) and self._include_usage
        self._with_token_ids = bool(fields.return_token_ids)
        self._with_prompt_logprobs = fields.prompt_logprobs is not None
        self._with_top = bool(fields.logprobs)
        self._as_ids = bool(fields.return_tokens_as_token_ids)
        self._job = _job(fields, card)
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


def _job(fields: CompletionFields, card: Card) -> GenerateJob:
    echo = bool(fields.echo)
    _check_logprobs(fields, echo, card)
    parsed = prompts(
        cast(Any, fields.prompt), "prompt", card.limits.max_batch_prompts, fields.add_special_tokens is not False
    )
    params = sampling_params(fields, card, fields.logprobs, *_json_schema(fields))
    if echo and fields.logprobs is not None and params.prompt_logprobs is None:
        params = msgspec.structs.replace(params, prompt_logprobs=fields.logprobs)
    return GenerateJob(
        prompts=parsed,
        sampling_params=params,
        max_tokens=_max_tokens(fields, echo),
        n=check_n(fields.n, len(parsed), card.limits),
        stop=stop_strings(fields.stop, card.limits),
        include_stop=bool(fields.include_stop_str_in_output or fields.no_stop_trim),
        skip_special_tokens=fields.skip_special_tokens is not False,
        echo=echo,
        with_token_ids=bool(fields.return_token_ids),
        truncation=truncation(fields.truncate_prompt_tokens, fields.truncation_side, "left"),
        client_request_id=client_request_id(fields.request_id, fields.rid),
        priority=fields.priority or 0,
        cache_salt=cache_salt(fields),
    )


def _max_tokens(fields: CompletionFields, echo: bool) -> int:
    """None at all only where the prompt itself is the answer."""
    if fields.max_tokens is None:
        return _DEFAULT_MAX_TOKENS
    check_range("max_tokens", fields.max_tokens, 0 if echo else 1, 2**63 - 1)
    return fields.max_tokens


def _check_logprobs(fields: CompletionFields, echo: bool, card: Card) -> None:
    check_range("logprobs", fields.logprobs, 0, card.limits.max_logprobs)
    check_logprobs("logprobs", fields.logprobs, card.capabilities)
    if echo and fields.logprobs is not None and not card.capabilities.prompt_logprobs:
        raise InvalidRequest(
            f"echo with logprobs means those of the prompt too, which the engine ({card.capabilities.engine}) "
            "does not give.",
            param="echo",
        )
    if fields.prompt_logprobs is not None and fields.stream and not echo:
        raise InvalidRequest("prompt_logprobs cannot be streamed.", param="prompt_logprobs")


def _json_schema(fields: CompletionFields) -> list[Constraint]:
    """SGLang's own field, beside those that chat has too."""
    if fields.json_schema is None:
        return []
    return [Constraint("json_schema", "json_schema", schema_text(fields.json_schema, "json_schema"))]
