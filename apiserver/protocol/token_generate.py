"""vLLM's token API: POST /inference/v1/generate. Ids in, ids out; text is made here only to find stop strings."""

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest
from apiserver.events import Choice, Event, Finished, PromptScored, Result, Started, TextDelta, TokenLogprob
from apiserver.protocol import openai
from apiserver.protocol.decoding import check_length, check_range, read_fields, refuse_unsupported
from apiserver.protocol.exchange import Body, Chunk
from apiserver.protocol.generation_fields import HARMLESS, SamplingFields, StreamOptions
from apiserver.protocol.listed import Listed, written
from apiserver.protocol.prompts import token_ids
from apiserver.protocol.sampling import (
    cache_salt,
    check_logprobs,
    check_n,
    client_request_id,
    sampling_params,
    stop_strings,
    truncation,
)
from apiserver.requests import GenerateJob, TokenIds

_DEFAULT_MAX_TOKENS = 16  # vLLM's


class TokenSampling(SamplingFields, kw_only=True):
    """vLLM's SamplingParams: the shared fields, and those that it has besides."""

    logprobs: int | None = None
    # Known, and refused unless harmless.
    extra_args: Any = None
    flat_logprobs: Any = None
    logits_processors: Any = None


class TokenGenerateFields(msgspec.Struct, kw_only=True):
    token_ids: list[Any] | None = None
    sampling_params: TokenSampling | None = None
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    # Known, and refused unless harmless.
    features: Any = None
    kv_transfer_params: Any = None


HARMLESS_IN_TOKEN_SAMPLING: dict[str, tuple[Any, ...]] = HARMLESS | {
    "extra_args": ({},),
    "flat_logprobs": (False,),
    "logits_processors": ([],),
}
HARMLESS_IN_TOKEN_GENERATE: dict[str, tuple[Any, ...]] = {"features": ({},), "kv_transfer_params": ({},)}
_decoder = msgspec.json.Decoder(TokenGenerateFields)


class TokenGenerate:
    """One token request; see `apiserver.protocol.exchange.Exchange`."""

    path = "/inference/v1/generate"
    fields: ClassVar = (TokenGenerateFields,)
    streams: ClassVar = True

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _decoder, card, harmless=HARMLESS_IN_TOKEN_GENERATE)
        self.stream = bool(fields.stream)
        self._include_usage = fields.stream_options is not None and bool(fields.stream_options.include_usage)
        sampling = fields.sampling_params or TokenSampling()
        if sampling.prompt_logprobs is not None and self.stream:
            raise InvalidRequest("prompt_logprobs cannot be streamed.", param="sampling_params.prompt_logprobs")
        try:
            self._job = _job(fields, sampling, card)
        except InvalidRequest as error:
            raise _placed(error) from error
        self._id = fields.request_id or openai.new_id("generate")

    @property
    def job(self) -> GenerateJob:
        return self._job

    # ---- whole ----

    def body(self, result: Result) -> Body:
        first = result.choices[0]
        scored = first.prompt_logprobs
        document: dict[str, Any] = {
            "request_id": self._id,
            "choices": [self._choice(index, result.choices[index]) for index in sorted(result.choices)],
            "prompt_logprobs": None if scored is None else openai.prompt_logprobs(scored, Listed),
            "kv_transfer_params": None,
            "usage": openai.usage(result),
        }
        return Body(written(document))

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        assert choice.finished is not None
        reason = openai.FINISH_REASONS[choice.finished.reason]
        return self._entry(index, choice.token_ids, choice.logprobs, reason, Listed)

    def _entry(
        self,
        index: int,
        ids: list[int],
        logprobs: list[TokenLogprob] | None,
        finish_reason: str | None,
        many: openai.Many = list,
    ) -> dict[str, Any]:
        return {
            "index": index,
            "token_ids": ids,
            "logprobs": None if logprobs is None else openai.chat_logprobs(logprobs, as_ids=True, many=many),
            "finish_reason": finish_reason,
        }

    # ---- streamed ----

    def chunks(self, event: Event) -> Iterator[Chunk]:
        match event:
            case TextDelta():
                yield self._chunk([self._entry(event.index, event.token_ids, event.logprobs, None)])
            case Finished():
                yield self._chunk([self._entry(event.index, [], None, openai.FINISH_REASONS[event.reason])])
            case Started() | PromptScored():
                pass
            case _:
                raise AssertionError(f"no event of a generation: {event}")

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> Chunk:
        document: dict[str, Any] = {"request_id": self._id, "choices": choices}
        if self._include_usage:
            document["usage"] = usage
        return Chunk(document)

    def last_chunks(self, result: Result) -> Iterator[Chunk]:
        if self._include_usage:
            yield self._chunk([], openai.usage(result))
        yield openai.DONE

    def error_chunks(self, error: ApiError) -> Iterator[Chunk]:
        return openai.error_chunks(error)

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


def _job(fields: TokenGenerateFields, sampling: TokenSampling, card: Card) -> GenerateJob:
    refuse_unsupported(sampling, HARMLESS_IN_TOKEN_SAMPLING | {"best_of": (1, sampling.n)})
    check_range("logprobs", sampling.logprobs, 0, card.limits.max_logprobs)
    check_logprobs("logprobs", sampling.logprobs, card.capabilities)
    check_range("max_tokens", sampling.max_tokens, 1, 2**63 - 1)
    check_range("priority", fields.priority, -(2**63), 2**63 - 1)
    check_length("cache_salt", fields.cache_salt, 1024)
    return GenerateJob(
        prompts=[TokenIds(token_ids(fields.token_ids, "token_ids"), "token_ids")],
        sampling_params=sampling_params(sampling, card, sampling.logprobs),
        max_tokens=_DEFAULT_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens,
        max_tokens_param="sampling_params.max_tokens",
        n=check_n(sampling.n, 1, card.limits),
        n_param="sampling_params.n",
        stop=stop_strings(sampling.stop, card.limits),
        include_stop=bool(sampling.include_stop_str_in_output),
        skip_special_tokens=sampling.skip_special_tokens is not False,
        with_token_ids=True,
        truncation=truncation(sampling.truncate_prompt_tokens, sampling.truncation_side, "left"),
        client_request_id=client_request_id(fields.request_id, None),
        priority=fields.priority or 0,
        cache_salt=fields.cache_salt or cache_salt(sampling),
    )


def _placed(error: InvalidRequest) -> InvalidRequest:
    """Where the field stands in the body."""
    if error.param is None or error.param.split("[")[0] in TokenGenerateFields.__struct_encode_fields__:
        return error
    return InvalidRequest(f"sampling_params: {error.message}", param=f"sampling_params.{error.param}")
