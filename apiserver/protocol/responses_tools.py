"""A response's tools and its choice among them: the Responses API's flat form, turned into chat's for the template."""

from collections.abc import Set
from typing import Any, NamedTuple, cast

from apiserver.errors import InvalidRequest, shown
from apiserver.protocol.tool_use import ToolChoice, check_tool_count

_MOST_NAME = 128

Tool = dict[str, Any]
Choice = str | dict[str, Any] | None


class Tools(NamedTuple):
    """What a request says about tools."""

    sent: list[Tool]
    """As a response shows them: every field is there."""
    callable: list[Tool]
    """Those that may be called, in chat's form."""
    choice: ToolChoice


def read_tools(tools: list[Tool] | None, choice: Choice) -> Tools:
    """Raises InvalidRequest with the path of a tool that is no function, or a choice that is none."""
    check_tool_count(tools)
    sent = [_read_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools or ())]
    names = {tool["name"] for tool in sent}
    match choice:
        case None | "auto":
            chosen = ToolChoice("auto")
        case "none":
            chosen = ToolChoice("none")
        case "required":
            chosen = ToolChoice("required")
        case {"type": "function"}:
            chosen = ToolChoice("named", _known(choice.get("name"), names, "tool_choice.name"), "tool_choice")
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode} if isinstance(choice.get("tools"), list):
            names = _allowed(choice["tools"], names)
            chosen = ToolChoice(mode)
        case _:
            raise InvalidRequest(
                'tool_choice must be none, auto, required, {"type": "function", "name": …} or '
                '{"type": "allowed_tools", "mode": "auto" or "required", "tools": […]}.',
                param="tool_choice",
            )
    return Tools(sent, [_in_chat_form(tool) for tool in sent if tool["name"] in names], chosen)


def _allowed(allowed: list[Any], names: Set[str]) -> set[str]:
    """The names of the tools that may be called; the others are kept from the model."""
    check_tool_count(allowed, "tool_choice.tools")
    found: set[str] = set()
    for number, tool in enumerate(allowed):
        where = f"tool_choice.tools[{number}]"
        if not isinstance(tool, dict) or cast(Tool, tool).get("type") != "function":
            raise InvalidRequest(f"{where} must be a function's type and name.", param=where)
        found.add(_known(cast(Tool, tool).get("name"), names, f"{where}.name"))
    return found


def _known(name: Any, names: Set[str], param: str) -> str:
    if not isinstance(name, str) or name not in names:
        raise InvalidRequest(f"{param} is {shown(name)}, which is none of the tools.", param=param)
    return name


def _read_tool(tool: Tool, where: str) -> Tool:
    kind = tool.get("type")
    if kind != "function":
        raise InvalidRequest(
            f"{where}.type must be function, not {shown(kind)}: this server has no tools of its own.",
            param=f"{where}.type",
        )
    name = tool.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME:
        raise InvalidRequest(f"{where}.name must be a string of 1 to {_MOST_NAME} characters.", param=f"{where}.name")
    return {
        "type": "function",
        "name": name,
        "description": _checked(tool, "description", where, str, "a string"),
        "parameters": _checked(tool, "parameters", where, dict, "a JSON schema, an object"),
        "strict": _checked(tool, "strict", where, bool, "true or false"),
    }


def _checked(tool: Tool, name: str, where: str, kind: type, what: str) -> Any:
    value = tool.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidRequest(f"{where}.{name} must be {what}.", param=f"{where}.{name}")
    return value


def _in_chat_form(tool: Tool) -> Tool:
    function = {key: value for key, value in tool.items() if key != "type" and value is not None}
    return {"type": "function", "function": function}
