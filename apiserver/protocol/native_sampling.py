"""SGLang's own sampling parameters: what they are, and what they mean in the waist's words."""

from typing import Any

import msgspec

from apiserver.card import Card
from apiserver.errors import InvalidRequest
from apiserver.protocol.constraints import Constraint, schema_text
from apiserver.protocol.decoding import check_range, refuse_unsupported
from apiserver.protocol.generation_fields import SamplingFields
from apiserver.protocol.sampling import sampling_params, stop_strings
from engine_bridge.wire import SamplingParams

DEFAULT_MAX_NEW_TOKENS = 128  # SGLang's


class NativeSampling(msgspec.Struct, kw_only=True):
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    no_stop_trim: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    sampling_seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    json_schema: Any = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    # Known, and refused unless harmless.
    stop_regex: Any = None
    beam_width: Any = None
    stream_interval: Any = None
    custom_params: Any = None
    watermark: Any = None
    stop_strs: Any = None
    stop_regex_strs: Any = None
    stop_str_max_len: Any = None
    stop_regex_max_len: Any = None
    is_normalized: Any = None
    ebnf_full_assistant: Any = None
    best_of: Any = None


HARMLESS_IN_SAMPLING: dict[str, tuple[Any, ...]] = {
    "stop_regex": ("", []),
    "beam_width": (1,),
    "stream_interval": (1,),
    "custom_params": ({},),
    "watermark": ({},),
    "stop_strs": ("", []),
    "stop_regex_strs": ("", []),
    "stop_str_max_len": (0,),
    "stop_regex_max_len": (0,),
    "is_normalized": (False,),
    "ebnf_full_assistant": (False,),
    "best_of": (1,),
}
IGNORED_IN_SAMPLING = frozenset(("spaces_between_special_tokens",))

_NATIVE_NAMES = {"min_tokens": "min_new_tokens", "seed": "sampling_seed"}


class LogprobView(msgspec.Struct, frozen=True, gc=False):
    """Which logprobs one prompt's answers show: of the prompt from token `start` on (-1: none), how many others, and
    which others."""

    start: int
    top: int
    token_ids: tuple[int, ...] = ()


class Sampling(msgspec.Struct, frozen=True, gc=False):
    """What one prompt asks for."""

    params: SamplingParams
    max_tokens: int
    stop: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool


def native_sampling(
    asked: NativeSampling, card: Card, path: str, view: LogprobView | None, *, lora_path: str | None = None
) -> Sampling:
    """Raises InvalidRequest naming the field below `path` ("sampling_params", "sampling_params[3]")."""
    try:
        refuse_unsupported(asked, HARMLESS_IN_SAMPLING)
        max_tokens = DEFAULT_MAX_NEW_TOKENS if asked.max_new_tokens is None else asked.max_new_tokens
        check_range("max_new_tokens", max_tokens, 0, 2**63 - 1)
        check_range("min_new_tokens", asked.min_new_tokens, 0, max_tokens)
        params = sampling_params(
            _shared_fields(asked, lora_path), card, None if view is None else view.top, *_json_schema(asked)
        )
        params = msgspec.structs.replace(
            params,
            prompt_logprobs=view.top if view is not None and view.start >= 0 else None,
            structural_tag=_structural_tag(asked, params, card),
            token_ids_logprob=() if view is None else view.token_ids,
        )
        stop = stop_strings(asked.stop, card.limits)
    except InvalidRequest as error:
        raise below(path, error) from error
    return Sampling(params, max_tokens, stop, bool(asked.no_stop_trim), asked.skip_special_tokens is not False)


def _shared_fields(asked: NativeSampling, lora_path: str | None) -> SamplingFields:
    return SamplingFields(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        min_p=asked.min_p,
        seed=asked.sampling_seed,
        frequency_penalty=asked.frequency_penalty,
        presence_penalty=asked.presence_penalty,
        repetition_penalty=asked.repetition_penalty,
        min_tokens=asked.min_new_tokens,
        ignore_eos=asked.ignore_eos,
        stop_token_ids=asked.stop_token_ids,
        logit_bias=asked.logit_bias,
        regex=asked.regex,
        ebnf=asked.ebnf,
        lora_path=lora_path,
    )


def _json_schema(asked: NativeSampling) -> list[Constraint]:
    if asked.json_schema is None:
        return []
    return [Constraint("json_schema", "json_schema", schema_text(asked.json_schema, "json_schema"))]


def _structural_tag(asked: NativeSampling, params: SamplingParams, card: Card) -> str | None:
    if asked.structural_tag is None:
        return params.structural_tag
    if not card.capabilities.structural_tag:
        engine = card.capabilities.engine
        raise InvalidRequest(f"The engine ({engine}) cannot honour structural_tag.", param="structural_tag")
    if params.json_schema is not None or params.regex is not None or params.grammar is not None:
        raise InvalidRequest("Only one constraint on the output can be given.", param="structural_tag")
    return schema_text(asked.structural_tag, "structural_tag")


def below(path: str, error: InvalidRequest) -> InvalidRequest:
    """The same error, under the names and in the place that the client used."""
    param, message = error.param or "", error.message
    name = _NATIVE_NAMES.get(param, param)
    if param == "lora_path":
        return error  # it stands beside the sampling parameters
    return InvalidRequest(f"{path}: {message.replace(param, name) if param else message}", param=f"{path}.{name}")
