"""The sampling fields that chat and completions have in common, checked and turned into the waist's words."""

import math
from typing import Any

import msgspec

from apiserver.card import Card, Limits
from apiserver.errors import InvalidRequest
from apiserver.protocol.decoding import check_range
from apiserver.requests import Truncation
from engine_bridge.wire import SamplingParams

_INT64 = 2**63


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchema(msgspec.Struct):
    name: str | None = None
    schema: Any = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct):
    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct):
    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields of both dialects, OpenAI's first, then what vLLM and SGLang added."""

    model: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    response_format: ResponseFormat | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    regex: str | None = None
    ebnf: str | None = None
    lora_path: str | list[str | None] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    request_id: str | None = None
    rid: str | list[str] | None = None
    # Known, and refused unless harmless: see HARMLESS.
    use_beam_search: Any = None
    best_of: Any = None
    length_penalty: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    logprob_token_ids: Any = None
    stop_regex: Any = None
    thinking_token_budget: Any = None
    repetition_detection: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    vllm_xargs: Any = None
    custom_logit_processor: Any = None
    custom_params: Any = None
    session_params: Any = None
    watermark: Any = None
    watermarking: Any = None
    return_hidden_states: Any = None
    return_routed_experts: Any = None
    return_sampling_mask: Any = None
    stream_interval: Any = None
    mm_processor_kwargs: Any = None
    images_config: Any = None
    bootstrap_host: Any = None
    bootstrap_port: Any = None
    bootstrap_room: Any = None


HARMLESS: dict[str, tuple[Any, ...]] = {
    "use_beam_search": (False,),
    "best_of": (1,),
    "length_penalty": (1, 1.0),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "logprob_token_ids": ([],),
    "stop_regex": ("", []),
    "thinking_token_budget": (),
    "repetition_detection": (),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
    "vllm_xargs": ({},),
    "custom_logit_processor": (),
    "custom_params": ({},),
    "session_params": ({},),
    "watermark": ({},),
    "watermarking": (False,),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "return_sampling_mask": (False,),
    "stream_interval": (1,),
    "mm_processor_kwargs": ({},),
    "images_config": ({},),
    "bootstrap_host": (),
    "bootstrap_port": (),
    "bootstrap_room": (),
}


def check_n(n: int | None, limits: Limits) -> int:
    check_range("n", n, 1, limits.max_n)
    return 1 if n is None else n


def check_stream_options(fields: SamplingFields) -> StreamOptions:
    """`{}` and null mean nothing is wanted; without `stream` there is nothing they could mean."""
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequest("stream_options needs stream to be true.", param="stream_options")
    return fields.stream_options or StreamOptions()


def stop_strings(stop: str | list[str] | None, limits: Limits) -> tuple[str, ...]:
    """Counted before anything is done with them: half a million stop strings cost a minute (vllm#51447)."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > limits.max_stop_strings:
        raise InvalidRequest(
            f"stop has {len(stops)} strings; at most {limits.max_stop_strings} are allowed.", param="stop"
        )
    for text in stops:
        if not text:
            raise InvalidRequest("stop holds an empty string, which would end every answer at once.", param="stop")
        if len(text) > limits.max_stop_length:
            raise InvalidRequest(f"A stop string may have {limits.max_stop_length} characters at most.", param="stop")
    return tuple(stops)


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
            raise InvalidRequest(f"logit_bias keys are token ids, not {key[:20]!r}.", param="logit_bias")
        check_range("logit_bias", value, -100, 100)
        entries.append((int(key), value))
    return tuple(entries)


def truncation(keep: int | None, side: str | None, default_side: str) -> Truncation | None:
    """-1 is the model's own maximum; 0 and less than -1 mean nothing."""
    side = side or default_side
    if side not in ("left", "right"):
        raise InvalidRequest(f"truncation_side must be left or right, not {side[:20]!r}.", param="truncation_side")
    if keep is None:
        return None
    if keep < -1 or keep == 0:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1 or at least 1, not {keep}.", param="truncate_prompt_tokens"
        )
    return Truncation(keep, "left" if side == "left" else "right")


def client_request_id(fields: SamplingFields) -> str | None:
    """What the client calls this request, for aborting it: vLLM's name or SGLang's."""
    return fields.request_id or (fields.rid if isinstance(fields.rid, str) else None)


def sampling_params(fields: SamplingFields, card: Card, logprobs: int | None) -> SamplingParams:
    """Everything but max_tokens, which depends on the prompt. Raises InvalidRequest out of range."""
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
    if fields.stop_token_ids is not None and len(fields.stop_token_ids) > card.limits.max_logit_bias:
        raise InvalidRequest("stop_token_ids has too many entries.", param="stop_token_ids")
    defaults = card.capabilities
    json_schema, regex, grammar = constraint(fields)
    return SamplingParams(
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
        json_schema=json_schema,
        regex=regex,
        grammar=grammar,
        lora=fields.lora_path if isinstance(fields.lora_path, str) else None,
    )


def _first(asked: Any, model_default: Any, ours: Any) -> Any:
    """What the client asked for, else the model's own default, else ours. 0 is an answer."""
    if asked is not None:
        return asked
    return model_default if model_default is not None else ours


def constraint(fields: SamplingFields) -> tuple[str | None, str | None, str | None]:
    """(json_schema, regex, grammar), one set at most. Raises InvalidRequest for two, or for one we cannot pass on."""
    found = [*_from_response_format(fields.response_format), *_from_structured_outputs(fields.structured_outputs)]
    if fields.regex is not None:
        found.append(("regex", fields.regex))
    if fields.ebnf is not None:
        found.append(("grammar", fields.ebnf))
    if len(found) > 1:
        raise InvalidRequest(
            "Only one of response_format, structured_outputs, regex and ebnf can be given.", param="response_format"
        )
    kinds = dict(found)
    return kinds.get("json_schema"), kinds.get("regex"), kinds.get("grammar")


def _from_response_format(response_format: ResponseFormat | None) -> list[tuple[str, str]]:
    if response_format is None or response_format.type == "text":
        return []
    if response_format.type == "json_object":
        return [("json_schema", '{"type":"object"}')]
    if response_format.type == "json_schema":
        schema = response_format.json_schema.schema if response_format.json_schema is not None else None
        if not isinstance(schema, dict):
            raise InvalidRequest(
                "response_format of type json_schema needs json_schema.schema, an object.",
                param="response_format.json_schema.schema",
            )
        return [("json_schema", msgspec.json.encode(schema).decode())]
    raise InvalidRequest(
        f"response_format.type must be text, json_object or json_schema, not {response_format.type[:40]!r}.",
        param="response_format.type",
    )


def _from_structured_outputs(outputs: StructuredOutputs | None) -> list[tuple[str, str]]:
    if outputs is None:
        return []
    if outputs.structural_tag is not None:
        raise InvalidRequest("structural_tag is not supported here.", param="structured_outputs.structural_tag")
    found: list[tuple[str, str]] = []
    if outputs.json is not None:
        schema = outputs.json if isinstance(outputs.json, str) else msgspec.json.encode(outputs.json).decode()
        found.append(("json_schema", schema))
    if outputs.json_object:
        found.append(("json_schema", '{"type":"object"}'))
    if outputs.regex is not None:
        found.append(("regex", outputs.regex))
    if outputs.grammar is not None:
        found.append(("grammar", outputs.grammar))
    if outputs.choice is not None:
        if not outputs.choice:
            raise InvalidRequest("structured_outputs.choice is empty.", param="structured_outputs.choice")
        # One of some literal strings is a grammar of one rule; JSON's quoting is GBNF's.
        alternatives = " | ".join(msgspec.json.encode(choice).decode() for choice in outputs.choice)
        found.append(("grammar", f"root ::= {alternatives}"))
    if len(found) > 1:
        raise InvalidRequest("structured_outputs may hold one constraint only.", param="structured_outputs")
    return found
