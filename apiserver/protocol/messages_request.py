"""A Messages request: its fields, and the job they mean. Shared by the answer and by count_tokens."""

from typing import Any, NamedTuple

import msgspec

from apiserver.card import Card
from apiserver.errors import InvalidRequest, shown
from apiserver.protocol.constraints import Constraint, schema_text
from apiserver.protocol.decoding import check_range, decode, read_fields, refuse_unknown, refuse_unsupported
from apiserver.protocol.generation_fields import SamplingFields
from apiserver.protocol.messages_conversation import conversation
from apiserver.protocol.messages_fields import (
    HARMLESS_IN_COUNT,
    HARMLESS_IN_MESSAGES,
    IGNORED_IN_COUNT,
    IGNORED_IN_MESSAGES,
    ConversationFields,
    MessagesFields,
    OutputFormat,
    Thinking,
)
from apiserver.protocol.messages_tools import tool_use
from apiserver.protocol.sampling import cache_salt, sampling_params, stop_strings
from apiserver.protocol.tool_use import ToolUse
from apiserver.requests import Chat, GenerateJob

_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_LEAST_BUDGET = 1024
_MOST_TOKENS = 2**63 - 1
_messages_decoder = msgspec.json.Decoder(MessagesFields)
_count_decoder = msgspec.json.Decoder(ConversationFields)


class Asked(NamedTuple):
    """The prompt, and how its answer is read."""

    chat: Chat
    use: ToolUse


def read_messages(raw: bytes, card: Card) -> MessagesFields:
    """The body's fields. Raises NotFound for another model, InvalidRequest for what is wrong or cannot be honoured."""
    return read_fields(raw, _messages_decoder, card, harmless=HARMLESS_IN_MESSAGES, ignored=IGNORED_IN_MESSAGES)


def read_count(raw: bytes, card: Card) -> ConversationFields:
    """As read_messages; what would only matter to an answer is ignored."""
    fields = decode(raw, _count_decoder)
    if card.strict_fields:
        refuse_unknown(raw, MessagesFields, IGNORED_IN_MESSAGES | IGNORED_IN_COUNT)
    card.resolve(fields.model)
    refuse_unsupported(fields, HARMLESS_IN_COUNT)
    return fields


def messages_job(fields: MessagesFields, card: Card) -> GenerateJob:
    if fields.max_tokens is None:
        raise InvalidRequest("max_tokens is required.", param="max_tokens")
    check_range("max_tokens", fields.max_tokens, 1, _MOST_TOKENS)
    _check_budget(fields.thinking, fields.max_tokens)
    chat, use = asked(fields, card)
    # The checks and the model's own defaults of these fields are the same in every dialect.
    sampling = SamplingFields(
        temperature=fields.temperature, top_p=fields.top_p, top_k=fields.top_k, cache_salt=fields.cache_salt
    )
    constraints = [*_constraints(fields), *((use.constraint,) if use.constraint is not None else ())]
    return GenerateJob(
        prompts=[chat],
        sampling_params=sampling_params(sampling, card, None, *constraints),
        max_tokens=fields.max_tokens,
        clamp_max_tokens=True,  # agents send 65,535 and mean "as much as there is room for" (vllm#42474)
        stop=stop_strings(fields.stop_sequences, card.limits, param="stop_sequences"),
        cache_salt=cache_salt(sampling),
        structure=use.structure,
    )


def asked(fields: ConversationFields, card: Card) -> Asked:
    """Raises InvalidRequest for what no template could make a prompt of; the rest is the template's to judge."""
    messages = conversation(fields.system, fields.messages, card)
    continues = _continues(messages)
    thinks = _thinks(fields.thinking)
    # An answer that has begun is past its reasoning.
    use = tool_use(fields.tools, fields.tool_choice, card, thinking=False if continues else thinks)
    chat = Chat(
        messages,
        tools=use.tools,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        variables=_variables(fields, thinks),
    )
    return Asked(chat, use)


def _continues(messages: list[dict[str, Any]]) -> bool:
    """Whether the last message is the beginning of the answer. An empty one says nothing, and is taken away."""
    last = messages[-1]
    if last["role"] != "assistant":
        return False
    if "tool_calls" in last:
        raise InvalidRequest("The last message calls a tool; a tool_result must follow.", param="messages")
    if last["content"]:
        return True
    if "reasoning_content" in last:
        raise InvalidRequest("The last message ends with thinking, which cannot be continued.", param="messages")
    del messages[-1]
    if not messages:
        raise InvalidRequest("messages must hold more than an empty message.", param="messages")
    return False


def _thinks(thinking: Thinking | None) -> bool | None:
    if thinking is None:
        return None
    if thinking.type not in ("enabled", "adaptive", "disabled"):
        raise InvalidRequest(
            f"thinking.type must be enabled, adaptive or disabled, not {shown(thinking.type)}.", param="thinking.type"
        )
    if thinking.display not in (None, "summarized", "omitted"):
        raise InvalidRequest(
            f"thinking.display must be summarized or omitted, not {shown(thinking.display)}.", param="thinking.display"
        )
    return thinking.type != "disabled"


def _check_budget(thinking: Thinking | None, max_tokens: int) -> None:
    """A hint: nothing here cuts the thinking short. But one that makes no sense is told so."""
    if thinking is None or thinking.budget_tokens is None:
        return
    param = "thinking.budget_tokens"
    check_range(param, thinking.budget_tokens, _LEAST_BUDGET, _MOST_TOKENS)
    if thinking.type == "enabled" and thinking.budget_tokens >= max_tokens:
        raise InvalidRequest(
            f"{param} is {thinking.budget_tokens}; it must be less than max_tokens ({max_tokens}).", param=param
        )


def _variables(fields: ConversationFields, thinks: bool | None) -> dict[str, Any]:
    """What the template may read; chat_template_kwargs wins. Templates switch thinking by one of two names."""
    variables = dict(fields.chat_template_kwargs or {})
    effort = fields.output_config.effort if fields.output_config is not None else None
    if effort is not None:
        if effort not in _EFFORTS:
            raise InvalidRequest(
                f"output_config.effort must be one of {', '.join(_EFFORTS)}, not {shown(effort)}.",
                param="output_config.effort",
            )
        variables.setdefault("reasoning_effort", effort)
    if thinks is not None:
        variables.setdefault("enable_thinking", thinks)
        variables.setdefault("thinking", thinks)
    return variables


def _constraints(fields: ConversationFields) -> list[Constraint]:
    """The schema of the answer, under the name of today and the beta's."""
    configured = fields.output_config.format if fields.output_config is not None else None
    formats: tuple[tuple[str, OutputFormat | None], ...] = (
        ("output_config.format", configured),
        ("output_format", fields.output_format),
    )
    found: list[Constraint] = []
    for param, output in formats:
        if output is None:
            continue
        if output.type != "json_schema":
            raise InvalidRequest(f"{param}.type must be json_schema, not {shown(output.type)}.", param=f"{param}.type")
        found.append(Constraint(param, "json_schema", schema_text(output.schema, f"{param}.schema")))
    return found
