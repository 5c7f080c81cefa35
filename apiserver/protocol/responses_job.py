"""The job that a response's fields mean, together with the turns before."""

from collections.abc import Sequence
from typing import Any

from apiserver.card import Card
from apiserver.errors import InvalidRequest, shown
from apiserver.protocol.constraints import Constraint, schema_text
from apiserver.protocol.conversation import effort_variables
from apiserver.protocol.decoding import check_range
from apiserver.protocol.responses_conversation import conversation
from apiserver.protocol.responses_input import Item
from apiserver.protocol.responses_request import LOGPROBS, ResponseFields, TextConfig, check_item_count
from apiserver.protocol.responses_tools import Tools
from apiserver.protocol.sampling import cache_salt, check_logprobs, sampling_params, stop_strings
from apiserver.protocol.tool_use import ToolUse, use_tools
from apiserver.requests import Chat, GenerateJob, Truncation

_MOST_TOKENS = 2**63 - 1
_ANY_OBJECT = '{"type":"object"}'


def response_job(
    fields: ResponseFields, items: Sequence[Item], tools: Tools, card: Card, response_id: str
) -> GenerateJob:
    """`items` are the whole conversation: what the turns before left, and then this one's input."""
    check_range("max_output_tokens", fields.max_output_tokens, 1, _MOST_TOKENS)
    variables = _variables(fields)
    use = use_tools(
        tools.callable,
        tools.choice,
        card,
        parallel=fields.parallel_tool_calls is not False,
        thinking=_thinking(variables),
    )
    constraints = [*_text_constraint(fields.text), *([use.constraint] if use.constraint is not None else [])]
    return GenerateJob(
        prompts=[_chat(fields, items, card, use, variables)],
        sampling_params=sampling_params(fields, card, _logprobs_count(fields, card), *constraints),
        max_tokens=fields.max_output_tokens,
        max_tokens_param="max_output_tokens",
        stop=stop_strings(fields.stop, card.limits),
        include_stop=bool(fields.include_stop_str_in_output or fields.no_stop_trim),
        skip_special_tokens=fields.skip_special_tokens is not False,
        truncation=_truncation(fields, card),
        client_request_id=response_id,
        priority=fields.priority or 0,
        cache_salt=cache_salt(fields),
        structure=use.structure,
    )


def _chat(fields: ResponseFields, items: Sequence[Item], card: Card, use: ToolUse, variables: dict[str, Any]) -> Chat:
    check_item_count(len(items), card)
    return Chat(conversation(items, fields.instructions), param="input", tools=use.tools, variables=variables)


def _variables(fields: ResponseFields) -> dict[str, Any]:
    """What the template may read; what the client says itself about a variable wins over what the effort implies."""
    effort = fields.reasoning.effort if fields.reasoning is not None else None
    return effort_variables(effort, "reasoning.effort") | (fields.chat_template_kwargs or {})


def _thinking(variables: dict[str, Any]) -> bool | None:
    """Whether the template is told to let the model think, by one of the names that templates know."""
    for name in ("enable_thinking", "thinking"):
        if isinstance(variables.get(name), bool):
            return variables[name]
    return None


def wants_logprobs(fields: ResponseFields) -> bool:
    """OpenAI asks for them by `include`; a count of alternatives asks for them as well."""
    return LOGPROBS in (fields.include or ()) or bool(fields.top_logprobs)


def _logprobs_count(fields: ResponseFields, card: Card) -> int | None:
    check_range("top_logprobs", fields.top_logprobs, 0, card.limits.max_logprobs)
    if not wants_logprobs(fields):
        return None
    count = fields.top_logprobs or 0
    check_logprobs("top_logprobs" if count else "include", count, card.capabilities)
    return count


def _text_constraint(text: TextConfig | None) -> list[Constraint]:
    form = text.format if text is not None else None
    if form is None or form.type == "text":
        return []
    if form.type == "json_object":
        return [Constraint("text.format", "json_schema", _ANY_OBJECT)]
    if form.type == "json_schema":
        if not form.name:
            raise InvalidRequest("text.format.name is required.", param="text.format.name")
        return [Constraint("text.format", "json_schema", schema_text(form.schema, "text.format.schema"))]
    raise InvalidRequest(
        f"text.format.type must be text, json_object or json_schema, not {shown(form.type)}.",
        param="text.format.type",
    )


def _truncation(fields: ResponseFields, card: Card) -> Truncation | None:
    """`auto` keeps the prompt's last tokens, as many as leave room for the answer: for max_output_tokens, or where that
    is unset for a quarter of the context."""
    if fields.truncation != "auto":
        return None
    room = fields.max_output_tokens or card.max_model_len // 4
    return Truncation(max(1, card.max_model_len - room), "left", "truncation")
