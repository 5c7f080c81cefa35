"""Tools and the choice among them, as the dialects agree on it: what the template is given, how the answer is read.

A dialect turns its own form of tools into OpenAI's, and its own form of the choice into a ToolChoice; what follows from
the two is said here, once.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec

from apiserver.card import Card
from apiserver.errors import InvalidRequest, shown
from apiserver.protocol.constraints import Constraint
from apiserver.protocol.schema_check import check_schema
from apiserver.requests import FORCED_CALL, FORCED_CALLS, Structure

MOST_TOOLS = 1024
"""Of one request; each is looked at by itself, and shown to the template."""

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class ToolChoice(NamedTuple):
    """Which tools may, or must, be called. `param` is where the client said so."""

    mode: Literal["none", "auto", "required", "named"]
    name: str | None = None
    param: str = "tool_choice"


class ToolUse(NamedTuple):
    """What follows from the tools and the choice."""

    tools: list[dict[str, Any]] | None
    """For the chat template: OpenAI's function tools, as the client ordered them; None = the prompt has none."""
    structure: Structure | None
    """How the answer is read."""
    constraint: Constraint | None
    """What the answer must match, for a choice that says that a tool must be called."""


def check_tool_count(tools: Sequence[Any] | None, param: str = "tools") -> None:
    """Before any work on them: a body has room for hundreds of thousands. Raises InvalidRequest."""
    if tools is not None and len(tools) > MOST_TOOLS:
        raise InvalidRequest(f"{param} has {len(tools)} tools; at most {MOST_TOOLS} are allowed.", param=param)


def use_tools(
    tools: list[dict[str, Any]] | None,
    choice: ToolChoice,
    card: Card,
    *,
    parallel: bool = True,
    thinking: bool | None = None,
    reads_reasoning: bool = True,
) -> ToolUse:
    """`tools` are checked already: each has a function with a name. Raises InvalidRequest for a choice among none, for
    a tool that there is not, and for what this model or its engine cannot do.

    `parallel=False` allows one call at most. `thinking` is what the request says of reasoning (None: nothing);
    `reads_reasoning=False` leaves it in the text.

    An answer that must be a call has reasoning before it where the engine's constraints can wait for its end; elsewhere
    it is held to the schema from its first token on.
    """
    reasoning = card.reasoning_parser if reads_reasoning else None
    if choice.mode in ("required", "named"):
        waits = card.capabilities.tag_formats
        structure = Structure(reasoning if waits else None, thinking=thinking, parallel=parallel)
        return _forced(tools or [], choice, card, structure)
    if not tools or choice.mode == "none":
        structure = Structure(reasoning=reasoning, thinking=thinking) if reasoning is not None else None
        return ToolUse(None, structure, None)
    if card.tool_call_parser is None:
        raise InvalidRequest(
            "This model's tool calls cannot be read: it has no tool-call parser. Start the server with "
            f"--tool-call-parser NAME, or send {choice.param} none.",
            param="tools",
        )
    if card.capabilities.tag_formats:
        _check_strict(tools)
    structure = Structure(reasoning, card.tool_call_parser, tuple(tools), thinking, parallel)
    return ToolUse(tools, structure, None)


def _check_strict(tools: list[dict[str, Any]]) -> None:
    """The engine gets to see their schemas. Raises InvalidRequest."""
    for tool in tools:
        function = tool["function"]
        if function.get("strict") and function.get("parameters"):
            check_schema(msgspec.json.encode(function["parameters"]).decode(), "tools")


def _forced(tools: list[dict[str, Any]], choice: ToolChoice, card: Card, structure: Structure) -> ToolUse:
    """`structure` is how the answer is read, but for the calls."""
    if not tools:
        raise InvalidRequest(f"{choice.param} asks for a tool, but there are no tools.", param=choice.param)
    if not card.capabilities.json_schema:
        raise InvalidRequest(
            f"{choice.param} can only be none or auto here: the engine ({card.capabilities.engine}) cannot hold an "
            "answer to a schema.",
            param=choice.param,
        )
    if choice.mode == "required":
        schema = _calls_schema(tools, structure.parallel)
        structure = msgspec.structs.replace(structure, tool_calls=FORCED_CALLS, tools=tuple(tools))
    else:
        named = [tool for tool in tools if tool["function"]["name"] == choice.name]
        if not named:
            raise InvalidRequest(
                f"{choice.param} names {shown(choice.name)}, which is none of the tools.", param=choice.param
            )
        schema = named[0]["function"].get("parameters") or _NO_PARAMETERS
        structure = msgspec.structs.replace(structure, tool_calls=FORCED_CALL, tools=(named[0],))
    text = msgspec.json.encode(schema).decode()
    check_schema(text, "tools")
    return ToolUse(tools, structure, Constraint(choice.param, "json_schema", text))


def _calls_schema(tools: list[dict[str, Any]], parallel: bool) -> dict[str, Any]:
    """A list of calls, each of one of the tools."""
    definitions: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for number, tool in enumerate(tools):
        function = tool["function"]
        parameters = function.get("parameters") or _NO_PARAMETERS
        if _refers(parameters):
            definitions[f"tool{number}"] = _moved(parameters, f"#/$defs/tool{number}")
            parameters = {"$ref": f"#/$defs/tool{number}"}
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, "parameters": parameters},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    items = calls[0] if len(calls) == 1 else {"anyOf": calls}
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": items}
    if not parallel:
        schema["maxItems"] = 1
    return schema | {"$defs": definitions} if definitions else schema


def _refers(schema: Any) -> bool:
    return b'"$ref"' in msgspec.json.encode(schema)


def _moved(schema: Any, place: str) -> Any:
    """The schema as it must read at another place of a document: its references to itself go there."""
    if isinstance(schema, dict):
        moved: dict[str, Any] = {key: _moved(value, place) for key, value in cast(dict[str, Any], schema).items()}
        reference = moved.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            moved["$ref"] = place + reference[1:]
        return moved
    if isinstance(schema, list):
        return [_moved(item, place) for item in cast(list[Any], schema)]
    return schema
