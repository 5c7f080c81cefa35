"""A conversation, as chat and tokenize are given one: the same fields mean the same prompt, token for token."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from apiserver.card import Card
from apiserver.errors import ContextLengthExceeded, InvalidRequest, shown
from apiserver.protocol.chat_tools import read_tools
from apiserver.protocol.tool_use import ToolUse, use_tools
from apiserver.requests import Chat

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

MULTIMODAL: dict[str, tuple[Any, ...]] = {"media_io_kwargs": ({},), "mm_processor_kwargs": ({},)}
"""How to read images and sounds, which a conversation here cannot hold; and what these may be set to all the same."""


class ConversationFields(Protocol):
    """What a dialect's struct must have for `read_conversation`."""

    @property
    def messages(self) -> list[dict[str, Any]] | None: ...
    @property
    def tools(self) -> list[dict[str, Any]] | None: ...
    @property
    def tool_choice(self) -> str | dict[str, Any] | None: ...
    @property
    def documents(self) -> list[dict[str, Any]] | None: ...
    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def add_special_tokens(self) -> bool | None: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...
    @property
    def reasoning_effort(self) -> str | float | None: ...
    @property
    def thinking(self) -> Any: ...


class Conversation(NamedTuple):
    """The prompt, and what else follows from the fields: how the answer is read, and what it must match."""

    prompt: Chat
    use: ToolUse


def read_conversation(
    fields: ConversationFields, card: Card, *, parallel: bool = True, reads_reasoning: bool = True
) -> Conversation:
    """Raises InvalidRequest for what no template could make a prompt of; the rest is the template's to judge."""
    messages = _messages(fields.messages, card)
    if fields.chat_template is not None and not card.trust_request_chat_template:
        raise InvalidRequest(
            "A chat_template in the request is refused; the server allows it with --trust-request-chat-template.",
            param="chat_template",
        )
    continues = bool(fields.continue_final_message)
    if continues and fields.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other.", param="continue_final_message"
        )
    variables = _variables(fields)
    tools, choice = read_tools(fields.tools, fields.tool_choice)
    thinking = _thinking(variables)
    use = use_tools(tools, choice, card, parallel=parallel, thinking=thinking, reads_reasoning=reads_reasoning)
    prompt = Chat(
        messages,
        tools=use.tools,
        documents=fields.documents,
        add_generation_prompt=not continues if fields.add_generation_prompt is None else fields.add_generation_prompt,
        continue_final_message=continues,
        add_special_tokens=bool(fields.add_special_tokens),
        variables=variables,
        template=fields.chat_template,
    )
    return Conversation(prompt, use)


def _messages(messages: list[dict[str, Any]] | None, card: Card) -> list[dict[str, Any]]:
    if not messages:
        raise InvalidRequest("messages must hold at least one message.", param="messages")
    if len(messages) > card.max_model_len:
        # Every message costs a token at least; a million of them would keep the template busy for seconds.
        raise ContextLengthExceeded(
            f"This model's maximum context length is {card.max_model_len} tokens, fewer than the messages "
            f"({len(messages)}).",
            param="messages",
        )
    for number, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            param = f"messages[{number}].role"
            raise InvalidRequest(f"{param} must be one of {', '.join(_ROLES)}, not {shown(role)}.", param=param)
    return messages


def _variables(fields: ConversationFields) -> Mapping[str, Any]:
    """What the template may read; what the client says itself about a variable wins over what a field implies.

    Templates switch thinking by one of two names; an effort asked for is thinking asked for, "none" is none.
    """
    effort = fields.reasoning_effort
    variables = effort_variables(effort, "reasoning_effort") | (fields.chat_template_kwargs or {})
    if fields.thinking is not None:
        variables.setdefault("thinking", fields.thinking)
    return variables


def _thinking(variables: Mapping[str, Any]) -> bool | None:
    """What the variables say, under one of the names that templates have for it."""
    found = (variables.get(name) for name in ("enable_thinking", "thinking"))
    return next((value for value in found if isinstance(value, bool)), None)


def effort_variables(effort: str | float | None, param: str) -> dict[str, Any]:
    """What an effort asked for means to a template. Raises InvalidRequest for one that is none."""
    if effort is None:
        return {}
    if (effort not in _EFFORTS) if isinstance(effort, str) else not 0 <= effort <= 1:
        raise InvalidRequest(
            f"{param} must be a number from 0 to 1 or one of {', '.join(_EFFORTS)}, not {shown(effort)}.", param=param
        )
    thinks = effort not in ("none", 0)
    return {"reasoning_effort": effort, "enable_thinking": thinks, "thinking": thinks}
