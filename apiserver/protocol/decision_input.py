"""The input of OpenAI's Decisions API, which is a text or a conversation with its calls, as one text."""

from typing import Any, cast

from apiserver.errors import InvalidRequest, shown
from apiserver.protocol.deciding import as_text

_ROLES = ("user", "developer", "system", "assistant")
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def input_text(value: str | list[dict[str, Any]]) -> str:
    """Messages of one user stand as they are; where others speak too, each says who it is."""
    if isinstance(value, str):
        return value
    if not value:
        raise InvalidRequest("input is empty.", param="input")
    if all(_kind(item) == "message" and item.get("role") == "user" for item in value):
        return "\n\n".join(_content(item, f"input[{number}]") for number, item in enumerate(value))
    calls: dict[str, str] = {}
    return "\n\n".join(_spoken(item, f"input[{number}]", calls) for number, item in enumerate(value))


def parts_text(value: Any, param: str) -> str:
    """A text, or parts of text and JSON. Raises InvalidRequest for images and for what is neither."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidRequest(f"{param} must be a string, or a list of parts.", param=param)
    parts = enumerate(cast(list[Any], value))
    return "\n".join(_part(part, f"{param}[{number}]") for number, part in parts)


def _part(part: Any, param: str) -> str:
    item = cast(dict[str, Any], part if isinstance(part, dict) else {})
    kind = item.get("type")
    match kind:
        case "input_text" | "output_text":
            return _string(item, "text", param)
        case "refusal":
            return _string(item, "refusal", param)
        case "input_json":
            return as_text(item.get("data"))
        case "input_image":
            raise InvalidRequest("Images are not supported: decisions are about text.", param=param)
        case _:
            raise InvalidRequest(f"{param}.type must be input_text or input_json, not {shown(kind)}.", param=param)


def _string(item: dict[str, Any], name: str, param: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{param}.{name} must be a string.", param=f"{param}.{name}")
    return value


def _content(item: dict[str, Any], param: str) -> str:
    return parts_text(item.get("content"), f"{param}.content")


def _kind(item: dict[str, Any]) -> Any:
    """A message may leave its type out; null is the same."""
    kind = item.get("type")
    return "message" if kind is None else kind


def _spoken(item: dict[str, Any], param: str, calls: dict[str, str]) -> str:
    """One item with who says it; an output belongs to a call that came before."""
    kind = _kind(item)
    if kind == "message":
        role = item.get("role")
        if role not in _ROLES:
            raise InvalidRequest(f"{param}.role must be one of {', '.join(_ROLES)}, not {shown(role)}.", param=param)
        return f"{role}: {_content(item, param)}"
    if not isinstance(kind, str):
        raise InvalidRequest(f"{param}.type must be a string.", param=f"{param}.type")
    if kind in _CALLS:
        name, call_id = _string(item, "name", param), _string(item, "call_id", param)
        calls[call_id] = name
        return f"assistant calls {name}: {_string(item, _CALLS[kind], param)}"
    if kind in _OUTPUTS:
        name = calls.get(_string(item, "call_id", param))
        if name is None:
            raise InvalidRequest(f"{param}.call_id is that of no call before it.", param=f"{param}.call_id")
        return f"{name} returns: {parts_text(item.get('output'), f'{param}.output')}"
    raise InvalidRequest(f"{param}.type is not one of an input's items: {shown(kind)}.", param=f"{param}.type")
