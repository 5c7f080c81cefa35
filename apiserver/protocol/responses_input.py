"""A response's input: what the client sent, as complete items.

An item is a JSON object as `GET …/input_items` lists it: with type, id and status, its content in parts. Input and
output of the turns before are such items as well.
"""

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, cast

from apiserver.errors import InvalidRequest, shown

Item = dict[str, Any]

_ROLES = ("user", "assistant", "system", "developer")
_STATUSES = ("in_progress", "completed", "incomplete")
_TEXT_PARTS = ("input_text", "output_text", "text")
_OWN_ID = re.compile(r"[a-z]+_[0-9a-f]{32}")


def new_id(prefix: str) -> str:
    """Out of the system's randomness: whoever knows a response's id may read and continue it."""
    return f"{prefix}_{secrets.token_hex(16)}"


def is_own_id(item_id: str) -> bool:
    """Whether it may be one of `new_id`, which nobody has twice. What one client calls its items, others may, too."""
    return _OWN_ID.fullmatch(item_id) is not None


def referenced_ids(sent: str | list[Item]) -> list[str]:
    """The ids of stored items that stand for themselves in the input."""
    if isinstance(sent, str):
        return []
    return [item["id"] for item in sent if _kind(item) == "item_reference" and isinstance(item.get("id"), str)]


def read_input(sent: str | list[Item], stored: Mapping[str, Item]) -> list[Item]:
    """The input as complete items. `stored` has those that are referred to.

    Raises InvalidRequest with the path of what is wrong, or is no text and no function call.
    """
    if isinstance(sent, str):
        return [_read_message({"role": "user", "content": sent}, "input")]
    if not sent:
        raise InvalidRequest("input must hold at least one item.", param="input")
    return [_read(item, f"input[{number}]", stored) for number, item in enumerate(sent)]


def _kind(item: Item) -> Any:
    """An item's type; a message may leave it out, and so may a reference."""
    if item.get("type") is not None:
        return item["type"]
    return "message" if "role" in item else "item_reference"


def _read(item: Item, where: str, stored: Mapping[str, Item]) -> Item:
    kind = _kind(item)
    if kind == "item_reference":
        item_id = _string(item, "id", where)
        if item_id not in stored:
            raise InvalidRequest(f"{where}: no stored item has the id {shown(item_id, most=80)}.", param=f"{where}.id")
        return stored[item_id]
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise InvalidRequest(
            f"{where}.type must be one of {', '.join((*_READERS, 'item_reference'))}, not {shown(kind)}.",
            param=f"{where}.type",
        )
    return reader(item, where)


def _read_message(item: Item, where: str) -> Item:
    role = item.get("role")
    if role not in _ROLES:
        raise InvalidRequest(
            f"{where}.role must be one of {', '.join(_ROLES)}, not {shown(role)}.", param=f"{where}.role"
        )
    texts = _texts(item.get("content"), f"{where}.content")
    if role == "assistant":
        content: list[Item] = [
            {"type": "output_text", "text": text, "annotations": [], "logprobs": []} for text in texts
        ]
    else:
        content = [{"type": "input_text", "text": text} for text in texts]
    return {
        "id": _id(item, "msg"),
        "type": "message",
        "role": role,
        "status": _status(item),
        "content": content,
    }


def _texts(content: Any, where: str) -> list[str]:
    """The texts of a content: one string, or parts. Anything else than text is refused by its path."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must be a string or a list of parts.", param=where)
    return [_text(part, f"{where}[{number}]") for number, part in enumerate(cast(list[Any], content))]


def _text(part: Any, where: str) -> str:
    match part:
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": kind, "text": str(text)} if kind in _TEXT_PARTS:
            return text
        case {"type": str(kind)} if kind not in (*_TEXT_PARTS, "refusal"):
            raise InvalidRequest(f"{where} is of type {shown(kind)}, but this model takes text only.", param=where)
        case _:
            raise InvalidRequest(f"{where} must be a part with a type and a text.", param=where)


def _read_function_call(item: Item, where: str) -> Item:
    return {
        "id": _id(item, "fc"),
        "type": "function_call",
        "call_id": _string(item, "call_id", where),
        "name": _string(item, "name", where),
        "arguments": _string(item, "arguments", where),
        "status": _status(item),
    }


def _read_function_call_output(item: Item, where: str) -> Item:
    output = item.get("output")
    if not isinstance(output, str):
        output = [{"type": "input_text", "text": text} for text in _texts(output, f"{where}.output")]
    return {
        "id": _id(item, "fco"),
        "type": "function_call_output",
        "call_id": _string(item, "call_id", where),
        "output": output,
        "status": _status(item),
    }


def _read_reasoning(item: Item, where: str) -> Item:
    read: Item = {"id": _id(item, "rs"), "type": "reasoning", "status": _status(item)}
    for name, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        parts: Any = item.get(name) or []
        if not isinstance(parts, list):
            raise InvalidRequest(f"{where}.{name} must be a list of parts.", param=f"{where}.{name}")
        texts: list[Item] = []
        for number, part in enumerate(cast(list[Any], parts)):
            if not isinstance(part, dict) or not isinstance(cast(Item, part).get("text"), str):
                path = f"{where}.{name}[{number}]"
                raise InvalidRequest(f"{path} must be a part with a text.", param=path)
            texts.append({"type": kind, "text": part["text"]})
        read[name] = texts
    return read


_READERS: dict[str, Callable[[Item, str], Item]] = {
    "message": _read_message,
    "function_call": _read_function_call,
    "function_call_output": _read_function_call_output,
    "reasoning": _read_reasoning,
}


def _id(item: Item, prefix: str) -> str:
    own = item.get("id")
    return own if isinstance(own, str) and own else new_id(prefix)


def _status(item: Item) -> str:
    status = item.get("status")
    return status if status in _STATUSES else "completed"


def _string(item: Item, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}.{name} must be a string.", param=f"{where}.{name}")
    return value
