"""Chat messages, brought to the form in which a template shows them.

Clients send the same conversation in many forms: content as a string or as parts, absent or null beside tool calls,
arguments as JSON text. Templates take some of them, and often print nothing or "None" for the others
(vllm-project/vllm#39614, huggingface/transformers#45419). What a template takes is its `MessageStyle`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

Message = dict[str, Any]

NoContent = Literal["missing", "empty", "none"]
Arguments = Literal["object", "json"]

# Names a message's reasoning goes by; templates read the first, gpt-oss's the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class TemplateError(ValueError):
    """The chat template cannot be used, or not with these messages or variables: one sentence for the client."""


@dataclass(frozen=True)
class MessageStyle:
    """The forms of messages that one template shows in the prompt."""

    string_roles: frozenset[str]  # whose content may be a string
    parts_roles: frozenset[str]  # whose content may be a list of {"type": "text"} parts
    no_content: NoContent  # how an assistant that only called tools has no content
    arguments: Arguments  # a tool call's arguments
    knows_developer: bool

    def known_role(self, role: str) -> str:
        """`role`, or where nothing is known about it the user's: most templates treat such roles alike."""
        return role if role in self.string_roles | self.parts_roles else "user"


def normalise_messages(messages: Sequence[Mapping[str, Any]], style: MessageStyle) -> list[Message]:
    """Copies of `messages` whose every text the template will show. Raises TemplateError for what it cannot show."""
    return [_message(message, f"messages[{index}]", style) for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str, style: MessageStyle) -> Message:
    # As transformers: what is null is absent, since templates rather test for "defined" than for "none".
    result = {key: value for key, value in message.items() if value is not None}
    role = result.get("role")
    if not isinstance(role, str):
        raise TemplateError(f"{where}.role must be a string")
    if role == "developer" and not style.knows_developer:
        result["role"] = role = "system"
    _alias_reasoning(result)
    tool_calls = result.get("tool_calls")
    if tool_calls:
        result["tool_calls"] = _tool_calls(tool_calls, f"{where}.tool_calls", style)
    content = result.pop("content", None)
    if content is None or content == []:
        content = ""
    if content or not tool_calls or style.no_content == "empty":
        result["content"] = _content(content, f"{where}.content", style.known_role(role), style)
    elif style.no_content == "none":
        result["content"] = None
    return result


def _alias_reasoning(message: Message) -> None:
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    if reasoning is not None:
        message.setdefault("thinking", reasoning)
        message["reasoning_content"] = reasoning


def _content(content: object, where: str, role: str, style: MessageStyle) -> str | list[Message]:
    match content:
        case str():
            texts = [content]
            as_string = role in style.string_roles
        case list():
            parts = cast("list[object]", content)
            texts = [_text(part, f"{where}[{index}]") for index, part in enumerate(parts)]
            as_string = role not in style.parts_roles
        case _:
            raise TemplateError(f"{where} must be a string or a list of content parts")
    # Joined by a newline as vLLM joins them: parts are paragraphs, and their texts may not grow into one word.
    return "\n".join(texts) if as_string else [{"type": "text", "text": text} for text in texts]


def _text(part: object, where: str) -> str:
    match part:
        case str():
            return part
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": str(kind)} if kind not in ("text", "input_text", "output_text", "refusal"):
            raise TemplateError(f"{where} is of type {kind!r}, but this model takes text only")
        case _:
            raise TemplateError(f"{where} must be a content part with a type and a text")


def _tool_calls(tool_calls: object, where: str, style: MessageStyle) -> list[object]:
    if not isinstance(tool_calls, list):
        raise TemplateError(f"{where} must be a list")
    calls = cast("list[object]", tool_calls)
    return [_tool_call(call, f"{where}[{index}].function", style) for index, call in enumerate(calls)]


def _tool_call(call: object, where: str, style: MessageStyle) -> object:
    match call:
        case {"function": dict()}:
            outer = cast("Message", call)
            function = cast("Message", outer["function"])
            arguments = _arguments(function.get("arguments"), f"{where}.arguments", style)
            return outer | {"function": function | {"arguments": arguments}}
        case _:
            raise TemplateError(f"{where} must be an object")


def _arguments(arguments: object, where: str, style: MessageStyle) -> Message | str:
    """The arguments as the template wants them; no arguments at all are an empty object."""
    text = arguments if isinstance(arguments, str) else None
    try:
        value: object = json.loads(text) if text else arguments or {}
    except ValueError as error:
        raise TemplateError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TemplateError(f"{where} must be a JSON object")
    if style.arguments == "object":
        return cast("Message", value)
    return text or json.dumps(value, ensure_ascii=False)
