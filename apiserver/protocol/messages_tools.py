"""Anthropic's tools and choice of tools, in the words that all dialects share."""

from typing import Any

from apiserver.card import Card
from apiserver.errors import InvalidRequest, shown
from apiserver.protocol.messages_fields import Choice, Tool
from apiserver.protocol.tool_use import ToolChoice, ToolUse, check_tool_count, use_tools


def tool_use(tools: list[Tool] | None, choice: Choice | None, card: Card, *, thinking: bool | None) -> ToolUse:
    """Raises InvalidRequest naming the tool, or the part of the choice, that cannot be honoured."""
    check_tool_count(tools)
    functions = [_function(tool, f"tools[{number}]") for number, tool in enumerate(tools or ())]
    _check_unique(functions)
    parallel = choice is None or not choice.disable_parallel_tool_use
    return use_tools(functions or None, _choice(choice, functions), card, parallel=parallel, thinking=thinking)


def _function(tool: Tool, path: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise InvalidRequest(
            f"{path} is of type '{shown(tool.type)}', a tool of Anthropic's own, which this server does not have: "
            "only custom tools, with a name and an input_schema.",
            param=f"{path}.type",
        )
    if not tool.name:
        raise InvalidRequest(f"{path}.name is required.", param=f"{path}.name")
    if tool.input_schema is None:
        raise InvalidRequest(f"{path}.input_schema is required: a JSON schema.", param=f"{path}.input_schema")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _check_unique(functions: list[dict[str, Any]]) -> None:
    names: set[str] = set()
    for number, function in enumerate(functions):
        name = function["function"]["name"]
        if name in names:
            param = f"tools[{number}].name"
            raise InvalidRequest(f"{param} is {shown(name)}, as another tool's: names must differ.", param=param)
        names.add(name)


def _choice(choice: Choice | None, functions: list[dict[str, Any]]) -> ToolChoice:
    if choice is None:
        return ToolChoice("auto" if functions else "none")
    match choice.type:
        case "auto" | "none":
            return ToolChoice(choice.type)
        case "any":
            return ToolChoice("required")
        case "tool":
            if functions and all(function["function"]["name"] != choice.name for function in functions):
                raise InvalidRequest(
                    f"tool_choice.name is {shown(choice.name)}, which is none of the tools.", param="tool_choice.name"
                )
            return ToolChoice("named", choice.name)
        case kind:
            raise InvalidRequest(
                f"tool_choice.type must be auto, any, tool or none, not {shown(kind)}.", param="tool_choice.type"
            )
