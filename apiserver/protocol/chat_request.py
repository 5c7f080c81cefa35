"""A chat completion's request: its fields, and the job they mean. Shared by the answer and by its rendering."""

from typing import Any

import msgspec

from apiserver.card import Card
from apiserver.errors import InvalidRequest
from apiserver.protocol.chat_tools import read_tools
from apiserver.protocol.conversation import MULTIMODAL, read_conversation
from apiserver.protocol.decoding import check_range, read_fields
from apiserver.protocol.generation_fields import HARMLESS, IGNORED, SamplingFields
from apiserver.protocol.sampling import (
    cache_salt,
    check_logprobs,
    check_n,
    client_request_id,
    sampling_params,
    stop_strings,
    truncation,
)
from apiserver.protocol.tool_use import ToolUse, use_tools
from apiserver.requests import GenerateJob, Prompt, TokenIds

_MOST_TOKENS = 2**63 - 1


class ChatFields(SamplingFields, kw_only=True):
    messages: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    include_reasoning: bool | None = None
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
    "return_flat_raw_top_logprobs_b64",
}
_decoder = msgspec.json.Decoder(ChatFields)


def read_chat(raw: bytes, card: Card) -> ChatFields:
    """The body's fields. Raises NotFound for another model, InvalidRequest for what is wrong or cannot be honoured."""
    return read_fields(raw, _decoder, card, harmless=HARMLESS_IN_CHAT, ignored=IGNORED_IN_CHAT)


def chat_job(fields: ChatFields, card: Card) -> GenerateJob:
    logprobs = _logprobs_count(fields, card)
    if fields.prompt_logprobs is not None and fields.stream:
        raise InvalidRequest("prompt_logprobs cannot be streamed.", param="prompt_logprobs")
    max_tokens, param = _max_tokens(fields)
    prompt, use = _prompt(fields, card)
    constraints = () if use.constraint is None else (use.constraint,)
    return GenerateJob(
        prompts=[prompt],
        sampling_params=sampling_params(fields, card, logprobs, *constraints),
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
        structure=use.structure,
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


def _prompt(fields: ChatFields, card: Card) -> tuple[Prompt, ToolUse]:
    separates = fields.separate_reasoning is not False
    parallel = fields.parallel_tool_calls is not False
    if fields.input_ids is None:
        return read_conversation(fields, card, parallel=parallel, reads_reasoning=separates)
    if fields.messages:
        raise InvalidRequest("messages and input_ids cannot be given together.", param="input_ids")
    tools, choice = read_tools(fields.tools, fields.tool_choice)
    use = use_tools(tools, choice, card, parallel=parallel, reads_reasoning=separates)
    return TokenIds(fields.input_ids, "input_ids"), use
