"""The tools of a chat, and OpenAI's forms of the choice among them."""

from typing import Any, cast

from apiserver.errors import InvalidRequest, shown
from apiserver.protocol.tool_use import ToolChoice, check_tool_count

_CHOICE = "none, auto, required, a named function or allowed_tools"


def read_tools(
    tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None
) -> tuple[list[dict[str, Any]] | None, ToolChoice]:
    """The tools that may be called, and the choice. Raises InvalidRequest naming what is wrong."""
    if tools is not None and not tools:
        raise InvalidRequest("tools must not be an empty list.", param="tools")
    check_tool_count(tools)
    for number, tool in enumerate(tools or ()):
        _check_tool(tool, f"tools[{number}]")
    match choice:
        case None:
            return tools, ToolChoice("auto" if tools else "none")
        case "none":
            return tools, ToolChoice("none")
        case "auto" if tools is None:
            raise InvalidRequest("tool_choice is auto, but there are no tools.", param="tool_choice")
        case "auto" | "required":
            return tools, ToolChoice(choice)
        case {"type": "function", "function": {"name": str(name)}}:
            return tools, ToolChoice("named", name)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list()}}:
            allowed = choice["allowed_tools"]["tools"]
            return _only(tools or [], allowed), ToolChoice(mode)
        case _:
            what = choice if isinstance(choice, str) else "this object"
            raise InvalidRequest(f"tool_choice must be {_CHOICE}, not {shown(what)}.", param="tool_choice")


def _only(tools: list[dict[str, Any]], allowed: list[Any]) -> list[dict[str, Any]]:
    """The allowed ones, in the order of the tools."""
    param = "tool_choice.allowed_tools.tools"
    known = {tool["function"]["name"] for tool in tools}
    names: set[str] = set()
    for number, tool in enumerate(allowed):
        match tool:
            case {"type": "function", "function": {"name": str(name)}} if name in known:
                names.add(name)
            case _:
                raise InvalidRequest(f"{param}[{number}] is none of the tools.", param=f"{param}[{number}]")
    if not names:
        raise InvalidRequest(f"{param} must not be an empty list.", param=param)
    return [tool for tool in tools if tool["function"]["name"] in names]


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
    if not isinstance(named.get("strict"), bool | None):
        raise InvalidRequest(f"{param}.function.strict must be true or false.", param=f"{param}.function.strict")
