"""Anthropic's messages → a conversation as chat templates read one.

Templates know OpenAI's form: a tool's result is a message of its own, a call is no part of the content, the system
prompt is the first message. Where messages of one role follow each other they become one, as Anthropic has it.
"""

from collections.abc import Iterator
from typing import Any

from apiserver.card import Card
from apiserver.errors import ContextLengthExceeded, InvalidRequest, shown
from apiserver.protocol.messages_fields import Block, Message

Rendered = dict[str, Any]

_ROLES = ("user", "assistant", "system")
_TAKEN = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
    "system": ("text",),
    "tool_result": ("text",),
}
_BILLING = "x-anthropic-billing-header:"
_JOINED = ("content", "tool_calls", "reasoning_content")


def conversation(system: str | list[Block] | None, messages: list[Message] | None, card: Card) -> list[Rendered]:
    """Raises InvalidRequest with the path of the block that no template could show."""
    if not messages:
        raise InvalidRequest("messages must hold at least one message.", param="messages")
    _check_size(system, messages, card)
    names: dict[str, str] = {}  # of the tools that were called, by the id of the call: some templates want to know
    rendered: list[Rendered] = []
    if system:
        _append(rendered, {"role": "system", "content": _texts(system, "system", "system")})
    for number, message in enumerate(messages):
        for part in _parts(message, f"messages[{number}]", names):
            _append(rendered, part)
    for one in rendered:
        if "reasoning_content" in one:
            one["reasoning_content"] = "\n".join(one["reasoning_content"])
    return [one for one in rendered if one["role"] != "system" or one["content"]]


def _check_size(system: str | list[Block] | None, messages: list[Message], card: Card) -> None:
    """Every block costs a token at least; a million of them would keep the template busy for seconds."""
    contents = [message.content for message in messages]
    if system is not None:
        contents.append(system)
    count = sum(len(content) if isinstance(content, list) else 1 for content in contents)
    if max(count, len(messages)) > card.max_model_len:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {card.max_model_len} tokens, fewer than the content blocks "
            f"({count}) of the messages ({len(messages)}).",
            param="messages",
        )


def _parts(message: Message, path: str, names: dict[str, str]) -> Iterator[Rendered]:
    """One message as the messages that templates know, in the order of its blocks."""
    match message.role:
        case "user":
            yield from _user(message.content, f"{path}.content", names)
        case "assistant":
            yield _assistant(message.content, f"{path}.content", names)
        case "system":
            yield {"role": "system", "content": _texts(message.content, f"{path}.content", "system")}
        case role:
            param = f"{path}.role"
            raise InvalidRequest(f"{param} must be one of {', '.join(_ROLES)}, not {shown(role)}.", param=param)


def _user(content: str | list[Block], path: str, names: dict[str, str]) -> Iterator[Rendered]:
    if isinstance(content, str):
        yield {"role": "user", "content": [_part(content)]}
        return
    if not content:
        yield {"role": "user", "content": []}
    for number, block in enumerate(content):
        where = f"{path}[{number}]"
        _check_type(block, where, "user")
        if block.type == "text":
            yield {"role": "user", "content": [_part(_required(block.text, f"{where}.text"))]}
        else:
            yield _tool_result(block, where, names)


def _tool_result(block: Block, where: str, names: dict[str, str]) -> Rendered:
    call_id = _required(block.tool_use_id, f"{where}.tool_use_id")
    if isinstance(block.content, dict):
        raise InvalidRequest(f"{where}.content must be a string or a list of blocks.", param=f"{where}.content")
    content = _texts(block.content or "", f"{where}.content", "tool_result")
    if block.is_error:
        content = [_part("Error:"), *content]  # templates know no flag for it
    message: Rendered = {"role": "tool", "tool_call_id": call_id, "content": content}
    if call_id in names:
        message["name"] = names[call_id]
    return message


def _assistant(content: str | list[Block], path: str, names: dict[str, str]) -> Rendered:
    """What was thought, said and called. redacted_thinking holds nothing that a model could read."""
    if isinstance(content, str):
        return {"role": "assistant", "content": [_part(content)] if content else []}
    texts: list[Rendered] = []
    thoughts: list[str] = []
    calls: list[Rendered] = []
    for number, block in enumerate(content):
        where = f"{path}[{number}]"
        _check_type(block, where, "assistant")
        if block.type == "text":
            texts.append(_part(_required(block.text, f"{where}.text")))
        elif block.type == "thinking":
            thoughts.append(_required(block.thinking, f"{where}.thinking"))
        elif block.type == "tool_use":
            calls.append(_tool_call(block, where, names))
    message: Rendered = {"role": "assistant", "content": texts}
    if calls:
        message["tool_calls"] = calls
    if any(thoughts):
        message["reasoning_content"] = thoughts
    return message


def _tool_call(block: Block, where: str, names: dict[str, str]) -> Rendered:
    call_id = _required(block.id, f"{where}.id")
    names[call_id] = name = _required(block.name, f"{where}.name")
    arguments: Any = {} if block.input is None else block.input
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{where}.input must be an object.", param=f"{where}.input")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _texts(content: str | list[Block], path: str, place: str) -> list[Rendered]:
    """The text of blocks that can hold nothing else. Claude Code begins its system prompt with a line that differs in
    every request and is not meant for the model: with it, no two prompts would share a beginning in the cache."""
    if isinstance(content, str):
        texts = [content] if content else []
    else:
        texts: list[str] = []
        for number, block in enumerate(content):
            _check_type(block, f"{path}[{number}]", place)
            texts.append(_required(block.text, f"{path}[{number}].text"))
    if place == "system":
        texts = [kept for text in texts if (kept := _without_billing(text))]
    return [_part(text) for text in texts]


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


def _check_type(block: Block, where: str, place: str) -> None:
    taken = _TAKEN[place]
    if block.type in taken:
        return
    known = f"only {', '.join(taken)} can stand there" if len(taken) > 1 else f"only {taken[0]} can stand there"
    if not block.type:
        raise InvalidRequest(f"{where}.type is required; {known}.", param=f"{where}.type")
    raise InvalidRequest(
        f"{where} is of type '{shown(block.type)}', which this server does not take: {known}.", param=where
    )


def _required(value: str | None, param: str) -> str:
    if value is None:
        raise InvalidRequest(f"{param} is required.", param=param)
    return value


def _part(text: str) -> Rendered:
    return {"type": "text", "text": text}


def _append(rendered: list[Rendered], message: Rendered) -> None:
    """Add a message, or add it to the last one if that has the same role. Every tool result stays alone."""
    last = rendered[-1] if rendered else None
    if last is None or last["role"] != message["role"] or message["role"] == "tool":
        rendered.append(message)
        return
    for key in _JOINED:
        if key in message:
            last.setdefault(key, []).extend(message[key])
