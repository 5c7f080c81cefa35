"""Tools and the choice among them, as the dialects agree on it: what the template is given, how the answer is read.

A dialect turns its own form of tools into OpenAI's, and its own form of the choice into a ToolChoice; what follows from
the two is said here, once.
"""

from typing import Any, Literal, NamedTuple

from apiserver.card import Card
from apiserver.errors import InvalidRequest
from apiserver.protocol.constraints import Constraint
from apiserver.requests import Structure


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


def use_tools(
    tools: list[dict[str, Any]] | None,
    choice: ToolChoice,
    card: Card,
    *,
    parallel: bool = True,
    thinking: bool | None = None,
) -> ToolUse:
    """`tools` are checked already: each has a function with a name. Raises InvalidRequest for a choice among none.

    `parallel=False` allows one call at most. `thinking` is what the request says of reasoning (None: nothing).
    """
    reasoning = card.reasoning_parser
    if not tools:
        if choice.mode in ("required", "named"):
            raise InvalidRequest(f"{choice.param} asks for a tool, but there are no tools.", param=choice.param)
        structure = Structure(reasoning=reasoning, thinking=thinking) if reasoning is not None else None
        return ToolUse(None, structure, None)
    if choice.mode in ("required", "named"):
        raise InvalidRequest(f"{choice.param} can only be none or auto here.", param=choice.param)
    parser = card.tool_call_parser if choice.mode == "auto" else None
    return ToolUse(tools, Structure(reasoning, parser, tuple(tools), thinking), None)
