"""A completion's request: its fields, and the job they mean. Shared by the answer and by its rendering."""

from typing import Any, cast

import msgspec

from apiserver.card import Card
from apiserver.errors import InvalidRequest
from apiserver.protocol.constraints import Constraint, schema_text
from apiserver.protocol.decoding import check_range, read_fields, refuse_unsupported
from apiserver.protocol.generation_fields import HARMLESS, IGNORED, SamplingFields
from apiserver.protocol.prompts import prompts
from apiserver.protocol.sampling import (
    cache_salt,
    check_logprobs,
    check_n,
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


def read_completion(raw: bytes, card: Card) -> CompletionFields:
    """The body's fields. Raises NotFound for another model, InvalidRequest for what is wrong or cannot be honoured."""
    fields = read_fields(raw, _decoder, card, ignored=IGNORED)
    refuse_unsupported(fields, HARMLESS_IN_COMPLETIONS | {"best_of": (1, fields.n)})
    return fields


def completion_job(fields: CompletionFields, card: Card) -> GenerateJob:
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
