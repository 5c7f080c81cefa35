"""The fields that chat and completions have in common: those we honour, those we refuse, those we ignore."""

from typing import Any

import msgspec

from apiserver.protocol.constraints import ResponseFormat, StructuredOutputs


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


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
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
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
    routed_experts_start_len: Any = None
    routed_experts_prompt_start: Any = None
    return_cached_tokens_details: Any = None
    return_spec_tokens_details: Any = None
    return_meta_info: Any = None
    return_sampling_mask: Any = None
    return_weight_versions: Any = None
    return_token_offsets: Any = None
    stream_interval: Any = None
    mm_processor_kwargs: Any = None
    images_config: Any = None
    mm_payload: Any = None
    return_mm_kwargs: Any = None
    routed_dp_rank: Any = None
    data_parallel_rank: Any = None
    disagg_prefill_dp_rank: Any = None
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
    # vLLM's names of old: ignoring them would give free text to somebody who expects JSON.
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
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
    "routed_experts_start_len": (0,),
    "routed_experts_prompt_start": (0,),
    "return_cached_tokens_details": (False,),
    "return_spec_tokens_details": (False,),
    "return_meta_info": (False,),
    "return_sampling_mask": (False,),
    "return_weight_versions": (False,),
    "return_token_offsets": (False,),
    "stream_interval": (1,),
    "mm_processor_kwargs": ({},),
    "images_config": ({},),
    "mm_payload": ("tensors",),
    "return_mm_kwargs": (False,),
    # The pool speaks to one engine, which places its requests itself; gateways send rank 0 to such.
    "routed_dp_rank": (0,),
    "data_parallel_rank": (0,),
    "disagg_prefill_dp_rank": (0,),
    "bootstrap_host": (),
    "bootstrap_port": (),
    "bootstrap_room": (),
}
"""What each refused field may be set to: values that ask for nothing."""

IGNORED = frozenset(
    (
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "session_id",
        "spaces_between_special_tokens",
    )
)
"""Known, and without a promise about the answer: tags, hints and other people's bookkeeping."""
