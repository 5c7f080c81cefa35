"""A conversation, as chat and tokenize are given one: the same fields mean the same prompt, token for token."""

from collections.abc import Mapping
from typing import Any, Protocol, cast

from apiserver.card import Card
from apiserver.errors import ContextLengthExceeded, InvalidRequest, shown
from apiserver.requests import Chat

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

MULTIMODAL: dict[str, tuple[Any, ...]] = {"media_io_kwargs": ({},), "mm_processor_kwargs": ({},)}
"""How to read images and sounds, which a conversation here cannot hold; and what these may be set to all the same."""


class ConversationFields(Protocol):
    """What a dialect's struct must have for `chat_prompt`."""

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


def chat_prompt(fields: ConversationFields, card: Card) -> Chat:
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
    return Chat(
        messages,
        tools=_tools(fields.tools, fields.tool_choice),
        documents=fields.documents,
        add_generation_prompt=not continues if fields.add_generation_prompt is None else fields.add_generation_prompt,
        continue_final_message=continues,
        add_special_tokens=bool(fields.add_special_tokens),
        variables=_variables(fields),
        template=fields.chat_template,
    )


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


def _tools(tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None) -> list[dict[str, Any]] | None:
    """Tools are rendered into the prompt; a choice other than none or auto needs a parser, which is not here yet."""
    if choice is not None and choice not in ("none", "auto"):
        raise InvalidRequest(
            "tool_choice must be none or auto; this server cannot force a tool call.", param="tool_choice"
        )
    if tools is None:
        if choice == "auto":
            raise InvalidRequest("tool_choice is auto, but there are no tools.", param="tool_choice")
        return None
    if not tools:
        raise InvalidRequest("tools must not be an empty list.", param="tools")
    for number, tool in enumerate(tools):
        _check_tool(tool, f"tools[{number}]")
    return None if choice == "none" else tools


def _check_tool(tool: dict[str, Any], param: str) -> None:
    if tool.get("type") != "function":
        raise InvalidRequest(f"{param}.type must be function, not {shown(tool.get('type'))}.", param=f"{param}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest(f"{param}.function must be an object.", param=f"{param}.function")
    named = cast(dict[str, Any], function)
    name = named.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{param}.function.name must be a string.", param=f"{param}.function.name")
    if not isinstance(named.get("parameters", {}), dict | None):
        raise InvalidRequest(
            f"{param}.function.parameters must be a JSON schema, an object.", param=f"{param}.function.parameters"
        )
