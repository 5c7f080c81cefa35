"""The fields of Anthropic's Messages: those we honour, those we refuse, those we ignore; also of count_tokens."""

from typing import Any

import msgspec

from apiserver.protocol.generation_fields import HARMLESS


class Block(msgspec.Struct):
    """One block of content. Which of the fields count is its type's to say."""

    type: str = ""
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: "str | list[Block] | dict[str, Any] | None" = None
    is_error: bool | None = None
    thinking: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[Block]


class Tool(msgspec.Struct):
    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class Choice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct):
    type: str
    schema: Any = None


class OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: OutputFormat | None = None


class ConversationFields(msgspec.Struct, kw_only=True):
    """What count_tokens takes too: all that the prompt is made of."""

    model: str | None = None
    messages: list[Message] | None = None
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Known, and refused unless harmless.
    mcp_servers: Any = None


class MessagesFields(ConversationFields, kw_only=True):
    max_tokens: int | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    cache_salt: str | None = None
    # Known, and refused unless harmless.
    watermarking: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    vllm_xargs: Any = None
    mm_payload: Any = None
    return_mm_kwargs: Any = None
    routed_dp_rank: Any = None
    disagg_prefill_dp_rank: Any = None
    bootstrap_host: Any = None
    bootstrap_port: Any = None
    bootstrap_room: Any = None


HARMLESS_IN_COUNT: dict[str, tuple[Any, ...]] = {"mcp_servers": ([],)}
HARMLESS_IN_MESSAGES: dict[str, tuple[Any, ...]] = HARMLESS_IN_COUNT | {
    name: HARMLESS[name] for name in MessagesFields.__struct_encode_fields__ if name in HARMLESS
}
IGNORED_IN_COUNT = frozenset(
    ("betas", "cache_control", "context_management", "speed", "user_profile_id", "workspace_id")
)
IGNORED_IN_MESSAGES = IGNORED_IN_COUNT | {
    "container",
    "diagnostics",
    "inference_geo",
    "metadata",
    "service_tier",
}
