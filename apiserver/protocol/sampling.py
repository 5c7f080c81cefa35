"""The sampling fields that chat and completions have in common, checked and turned into the waist's words."""

import math
from typing import Any

import msgspec

from apiserver.card import Card, Limits
from apiserver.errors import InvalidRequest, shown
from apiserver.protocol.constraints import Constraint, constraint
from apiserver.protocol.decoding import check_length, check_range
from apiserver.protocol.generation_fields import SamplingFields, StreamOptions
from apiserver.requests import Truncation
from engine_bridge.wire import Capabilities, SamplingParams

_INT64 = 2**63
_MOST_REQUEST_ID = 256
_MOST_CACHE_SALT = 1024  # vLLM's


def check_n(n: int | None, prompts: int, limits: Limits) -> int:
    """Choices a prompt. All choices of a request together are bounded too: each is a request to the engine."""
    check_range("n", n, 1, limits.max_n)
    choices = 1 if n is None else n
    if choices > 1 and choices * prompts > limits.max_batch_prompts:
        raise InvalidRequest(
            f"{prompts} prompts with n {choices} are {choices * prompts} choices; "
            f"at most {limits.max_batch_prompts} are allowed.",
            param="n",
        )
    return choices


def check_stream_options(fields: SamplingFields) -> StreamOptions:
    """`{}` and null mean nothing is wanted; without `stream` there is nothing that the others could mean."""
    options = fields.stream_options or StreamOptions()
    if not fields.stream and (options.include_usage or options.continuous_usage_stats):
        raise InvalidRequest("stream_options needs stream to be true.", param="stream_options")
    return options


def check_logprobs(name: str, count: int | None, capabilities: Capabilities) -> None:
    """Raises InvalidRequest under the client's own name for what the engine cannot give."""
    if count is None:
        return
    if capabilities.logprobs < 0:
        raise InvalidRequest(f"The engine ({capabilities.engine}) gives no logprobs.", param=name)
    if count > capabilities.logprobs:
        most = capabilities.logprobs
        raise InvalidRequest(f"{name} is {count}; the engine ({capabilities.engine}) gives at most {most}.", param=name)


def stop_strings(stop: str | list[str] | None, limits: Limits, *, param: str = "stop") -> tuple[str, ...]:
    """Counted before anything is done with them: half a million stop strings cost a minute (vllm#51447)."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > limits.max_stop_strings:
        raise InvalidRequest(
            f"{param} has {len(stops)} strings; at most {limits.max_stop_strings} are allowed.", param=param
        )
    for text in stops:
        if not text:
            raise InvalidRequest(f"{param} holds an empty string, which would end every answer at once.", param=param)
        if len(text) > limits.max_stop_length:
            raise InvalidRequest(f"A stop string may have {limits.max_stop_length} characters at most.", param=param)
    return tuple(stops)


def check_stop_token_ids(token_ids: list[int] | None, limits: Limits) -> None:
    """As many as logit_bias may have; whether they are ids of this model is the pipeline's to check."""
    if token_ids is not None and len(token_ids) > limits.max_logit_bias:
        raise InvalidRequest(
            f"stop_token_ids has {len(token_ids)} entries; at most {limits.max_logit_bias} are allowed.",
            param="stop_token_ids",
        )


def logit_bias(bias: dict[str, float] | None, limits: Limits) -> tuple[tuple[int, float], ...]:
    if not bias:
        return ()
    if len(bias) > limits.max_logit_bias:
        raise InvalidRequest(
            f"logit_bias has {len(bias)} entries; at most {limits.max_logit_bias} are allowed.", param="logit_bias"
        )
    entries: list[tuple[int, float]] = []
    for key, value in bias.items():
        if not key.isascii() or not key.isdigit() or len(key) > 10:
            raise InvalidRequest(f"logit_bias keys are token ids, not {shown(key)}.", param="logit_bias")
        check_range("logit_bias", value, -100, 100)
        entries.append((int(key), value))
    return tuple(entries)


def truncation(keep: int | None, side: str | None, default_side: str) -> Truncation | None:
    """-1 is the model's own maximum; 0 and less than -1 mean nothing."""
    side = side or default_side
    if side not in ("left", "right"):
        raise InvalidRequest(f"truncation_side must be left or right, not {shown(side)}.", param="truncation_side")
    if keep is None:
        return None
    if keep < -1 or keep == 0:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1 or at least 1, not {shown(keep)}.", param="truncate_prompt_tokens"
        )
    return Truncation(keep, "left" if side == "left" else "right")


def client_request_id(request_id: str | None, rid: str | list[str] | None) -> str | None:
    """What the client calls this request, for aborting it: vLLM's name or SGLang's."""
    if isinstance(rid, list):
        if len(rid) > 1:
            raise InvalidRequest("rid must be one string: a request is aborted as a whole.", param="rid")
        rid = rid[0] if rid else None
    check_length("request_id", request_id, _MOST_REQUEST_ID)
    check_length("rid", rid, _MOST_REQUEST_ID)
    return request_id or rid or None


def cache_salt(fields: SamplingFields) -> str | None:
    """What keeps this prompt's cache entries apart: vLLM's name or SGLang's."""
    check_length("cache_salt", fields.cache_salt, _MOST_CACHE_SALT)
    check_length("extra_key", fields.extra_key, _MOST_CACHE_SALT)
    return fields.cache_salt or fields.extra_key or None


def lora(path: str | list[str | None] | None, capabilities: Capabilities) -> str | None:
    """The one adapter of this request; SGLang's form of one a prompt only where they are all the same."""
    names = {name or None for name in path} if isinstance(path, list) else {path or None}
    if len(names) > 1:
        raise InvalidRequest("lora_path must name one adapter for the whole request.", param="lora_path")
    name = names.pop() if names else None
    if name is not None and not capabilities.lora:
        raise InvalidRequest(f"The engine ({capabilities.engine}) has no adapters.", param="lora_path")
    return name


def sampling_params(
    fields: SamplingFields, card: Card, logprobs: int | None, *constraints: Constraint
) -> SamplingParams:
    """Everything but max_tokens, which depends on the prompt. Raises InvalidRequest out of range.

    `constraints` are those that the dialect itself found, beside the fields that all have.
    """
    check_range("temperature", fields.temperature, 0, math.inf)
    check_range("top_p", fields.top_p, 0, 1, exclusive_low=True)
    check_range("top_k", fields.top_k, -1, _INT64 - 1)
    check_range("min_p", fields.min_p, 0, 1)
    check_range("presence_penalty", fields.presence_penalty, -2, 2)
    check_range("frequency_penalty", fields.frequency_penalty, -2, 2)
    check_range("repetition_penalty", fields.repetition_penalty, 0, math.inf, exclusive_low=True)
    check_range("min_tokens", fields.min_tokens, 0, _INT64 - 1)
    check_range("seed", fields.seed, -_INT64, _INT64 - 1)
    check_range("priority", fields.priority, -_INT64, _INT64 - 1)
    check_range("prompt_logprobs", fields.prompt_logprobs, 0, card.limits.max_logprobs)
    check_stop_token_ids(fields.stop_token_ids, card.limits)
    defaults = card.capabilities
    found = constraint(fields, defaults, *constraints)
    params = SamplingParams(
        temperature=_first(fields.temperature, defaults.temperature, 1.0),
        top_p=_first(fields.top_p, defaults.top_p, 1.0),
        top_k=_first(fields.top_k, defaults.top_k, -1) or -1,
        min_p=fields.min_p or 0.0,
        seed=fields.seed,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        repetition_penalty=_first(fields.repetition_penalty, None, 1.0),
        min_tokens=fields.min_tokens or 0,
        ignore_eos=bool(fields.ignore_eos),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        logit_bias=logit_bias(fields.logit_bias, card.limits),
        logprobs=logprobs,
        prompt_logprobs=fields.prompt_logprobs,
        lora=lora(fields.lora_path, defaults),
    )
    return params if found is None else msgspec.structs.replace(params, **{found.kind: found.text})


def _first(asked: Any, model_default: Any, ours: Any) -> Any:
    """What the client asked for, else the model's own default, else ours. 0 is an answer."""
    if asked is not None:
        return asked
    return model_default if model_default is not None else ours
