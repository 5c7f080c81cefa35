"""The fields of SGLang's native generate request: those we honour, those we refuse, those we ignore."""

from typing import Any

import msgspec

from apiserver.protocol.native_sampling import NativeSampling


class GenerateFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    sampling_params: NativeSampling | list[NativeSampling] | None = None
    stream: bool | None = None
    incremental_streaming_output: bool | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[Any] | None = None
    return_text_in_logprobs: bool | None = None
    return_prompt_token_ids: bool | None = None
    lora_path: str | list[str | None] | None = None
    priority: int | None = None
    cache_salt: str | list[str] | None = None
    extra_key: str | list[str] | None = None
    # Known, and refused unless harmless.
    input_embeds: Any = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    modalities: Any = None
    mm_hashes: Any = None
    mm_content_hashes: Any = None
    mm_processor_kwargs: Any = None
    images_config: Any = None
    video_config: Any = None
    use_audio_in_video: Any = None
    max_dynamic_patch: Any = None
    min_dynamic_patch: Any = None
    image_max_dynamic_patch: Any = None
    video_max_dynamic_patch: Any = None
    watermark: Any = None
    custom_logit_processor: Any = None
    session_params: Any = None
    return_sampling_mask: Any = None
    sampling_logprobs_mode: Any = None
    return_flat_raw_top_logprobs: Any = None
    return_flat_raw_output_top_logprobs: Any = None
    return_flat_raw_top_logprobs_b64: Any = None
    return_hidden_states: Any = None
    return_routed_experts: Any = None
    routed_experts_start_len: Any = None
    return_indexer_topk: Any = None
    return_entropy: Any = None
    return_bytes: Any = None
    require_reasoning: Any = None
    max_thinking_tokens: Any = None
    positional_embed_overrides: Any = None
    multi_item_delimiter_indices: Any = None
    token_indices_to_pool: Any = None
    kv_hints: Any = None
    lora_id: Any = None
    routed_dp_rank: Any = None
    data_parallel_rank: Any = None
    disagg_prefill_dp_rank: Any = None
    decode_tp_size: Any = None
    bootstrap_host: Any = None
    bootstrap_port: Any = None
    bootstrap_room: Any = None
    bootstrap_pair_key: Any = None


HARMLESS_IN_GENERATE: dict[str, tuple[Any, ...]] = {
    "input_embeds": (),
    "image_data": ([],),
    "video_data": ([],),
    "audio_data": ([],),
    "modalities": (["text"], []),
    "mm_hashes": ([],),
    "mm_content_hashes": ([],),
    "mm_processor_kwargs": ({},),
    "images_config": ({},),
    "video_config": ({},),
    "use_audio_in_video": (False,),
    "max_dynamic_patch": (),
    "min_dynamic_patch": (),
    "image_max_dynamic_patch": (),
    "video_max_dynamic_patch": (),
    "watermark": ({},),
    "custom_logit_processor": (),
    "session_params": ({},),
    "return_sampling_mask": (False,),
    "sampling_logprobs_mode": (),
    "return_flat_raw_top_logprobs": (False,),
    "return_flat_raw_output_top_logprobs": (False,),
    "return_flat_raw_top_logprobs_b64": (False,),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "routed_experts_start_len": (0,),
    "return_indexer_topk": (False,),
    "return_entropy": (False,),
    "return_bytes": (False,),
    "require_reasoning": (False,),
    "max_thinking_tokens": (),
    "positional_embed_overrides": (),
    "multi_item_delimiter_indices": (),
    "token_indices_to_pool": (),
    "kv_hints": ({},),
    "lora_id": (),
    "routed_dp_rank": (0,),
    "data_parallel_rank": (0,),
    "disagg_prefill_dp_rank": (0,),
    "decode_tp_size": (),
    "bootstrap_host": (),
    "bootstrap_port": (),
    "bootstrap_room": (),
    "bootstrap_pair_key": (),
}
IGNORED_IN_GENERATE = frozenset(
    (
        "stream_options",  # load tools send it; what it asks for is in every chunk here
        "log_metrics",
        "no_logs",
        "routing_key",
        "conversation_id",
        "session_id",
        "custom_labels",
        "background",
        "http_worker_ipc",
        "external_trace_header",
        "received_time",
        "need_wait_for_mm_inputs",
        "num_items_assigned",
        "encoder_urls",
        "user",
    )
)
