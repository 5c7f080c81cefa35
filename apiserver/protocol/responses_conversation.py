"""Items, whoever made them, as the messages that a chat template is shown."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from apiserver.errors import InvalidRequest, shown
from apiserver.protocol.responses_input import Item


def conversation(items: Sequence[Item], instructions: str | None) -> list[dict[str, Any]]:
    """The messages that a chat template is shown: `instructions` first, the assistant's neighbouring items as one turn.

    Raises InvalidRequest for a function call whose arguments are no JSON object: no template could show it.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        match item["type"]:
            case "reasoning":
                thought = _joined(item["content"] or item["summary"])
                if thought:  # else it is encrypted, for another server
                    _turn(messages, "reasoning")["reasoning_content"] = thought
            case "function_call":
                _turn(messages, "tool_calls").setdefault("tool_calls", []).append(_tool_call(item))
            case "function_call_output":
                content = _content(item["output"])
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
            case _ if item["role"] == "assistant":
                _turn(messages, "content")["content"] = _content(item["content"])
            case _:
                messages.append({"role": item["role"], "content": _content(item["content"])})
    return messages


_FOLLOWS = {
    "reasoning": (),
    "content": ("reasoning_content",),
    "tool_calls": ("reasoning_content", "content", "tool_calls"),
}
"""What an assistant's message may have already when more is added to it: a turn thinks, then speaks, then calls."""


def _turn(messages: list[dict[str, Any]], addition: str) -> dict[str, Any]:
    """The assistant's message that this belongs to: the last one, or a new one."""
    last = messages[-1] if messages else {"role": ""}
    if last["role"] == "assistant" and {*last} - {"role"} <= {*_FOLLOWS[addition]}:
        return last
    messages.append({"role": "assistant"})
    return messages[-1]


def _content(content: str | list[Item]) -> str | list[Item]:
    """One text as a string, several as parts."""
    if isinstance(content, str):
        return content
    texts = [part["text"] for part in content]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _joined(parts: Iterable[Item]) -> str:
    return "\n".join(part["text"] for part in parts)


def _tool_call(item: Item) -> dict[str, Any]:
    arguments = item["arguments"]
    try:
        is_object = isinstance(msgspec.json.decode(arguments or "{}"), dict)
    except (msgspec.DecodeError, RecursionError):
        is_object = False
    if not is_object:
        raise InvalidRequest(
            f"The arguments of the function call {shown(item['call_id'])} are not a JSON object.", param="input"
        )
    return {
        "id": item["call_id"],
        "type": "function",
        "function": {"name": item["name"], "arguments": arguments},
    }
