"""Finds a template's `MessageStyle` by trying it out.

Each form is rendered with made-up words, and the form counts as shown if the words come out, in order, and not as the
printout of a data structure. Reading the template's syntax tree for a loop over `message.content` (as vLLM and SGLang
do) says what a template does for some role; trying says it for each, and sees through macros and variables.
"""

from collections.abc import Callable
from typing import Any

from apiserver.tokenizer.messages import Arguments, Message, MessageStyle, NoContent

Render = Callable[[list[Message], list[Message] | None], str | None]
"""The prompt for messages and tools, or None where the template fails."""

_FIRST, _SECOND = "qvonewordqv", "qvtwowordqv"
_NAME, _KEY, _VALUE = "qvnamewordqv", "qvkeywordqv", "qvvaluewordqv"
_STRING = f"{_FIRST} {_SECOND}"
_PARTS = [{"type": "text", "text": _FIRST}, {"type": "text", "text": _SECOND}]
_CALL_ID = "call12345"  # nine letters and digits: Mistral's templates insist
_TOOLS: list[Message] = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Looks up",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    }
]
# The first is what transformers would pass on, and so the one to use where it works.
_TOOL_CALL_FORMS: tuple[tuple[NoContent, Arguments], ...] = (
    ("missing", "object"),
    ("empty", "object"),
    ("none", "object"),
    ("missing", "json"),
    ("empty", "json"),
    ("none", "json"),
)
_ROLES = ("system", "developer", "user", "assistant", "tool")


def probe_style(source: str, render: Render) -> MessageStyle:
    """The style of the template `source`, which `render` renders. Where nothing is shown, strings are assumed."""
    probe = _Probe(render)
    strings = {role for role in _ROLES if probe.shows(role, _STRING)}
    parts = {role for role in _ROLES if probe.shows(role, _PARTS)}
    # A role the template refuses, or shows in no form, goes the way the user's messages go.
    hidden = {role for role in _ROLES if role not in strings | parts}
    if "user" not in strings and "user" in parts:
        parts |= hidden
    else:
        strings |= hidden
    return MessageStyle(
        string_roles=frozenset(strings),
        parts_roles=frozenset(parts),
        no_content=probe.no_content,
        arguments=probe.arguments,
        knows_developer="developer" in source,
    )


class _Probe:
    no_content: NoContent
    arguments: Arguments

    def __init__(self, render: Render) -> None:
        self._render = render
        self._question: Message = {"role": "user", "content": "a"}
        if not self.shows("user", _STRING) and self.shows("user", _PARTS):
            self._question = {"role": "user", "content": [{"type": "text", "text": "a"}]}
        self.no_content, self.arguments = self._tool_call_form()

    def shows(self, role: str, content: object) -> bool:
        message: Message = {"role": role, "content": content}
        match role:
            case "user":
                prompt = self._render([message], None)
            case "assistant":
                prompt = self._render([self._question, message, self._question], None)
            case "tool":
                call = self._tool_call(self.no_content, self.arguments)
                answer = message | {"tool_call_id": _CALL_ID, "name": _NAME}
                prompt = self._render([self._question, call, answer], _TOOLS)
            case _:
                prompt = self._render([message, self._question], None)
        if prompt is None or _FIRST not in prompt or _SECOND not in prompt:
            return False
        between = prompt[prompt.index(_FIRST) : prompt.index(_SECOND)]
        return "text" not in between  # or else it is the list itself that was printed

    def _tool_call_form(self) -> tuple[NoContent, Arguments]:
        """The first form that shows the call; else, in a template that knows of none, the first that does not fail."""
        nones = (self._render([self._question], _TOOLS) or "").count("None")
        harmless: list[tuple[NoContent, Arguments]] = []
        for form in _TOOL_CALL_FORMS:
            prompt = self._render([self._question, self._tool_call(*form)], _TOOLS)
            if prompt is None or prompt.count("None") > nones:
                continue
            # Python's spelling of an object is no form that a model was trained on.
            if all(word in prompt for word in (_NAME, _KEY, _VALUE)) and f"'{_KEY}':" not in prompt:
                return form
            harmless.append(form)
        return harmless[0] if harmless else _TOOL_CALL_FORMS[0]

    def _tool_call(self, no_content: NoContent, arguments: Arguments) -> Message:
        value: Any = {_KEY: _VALUE} if arguments == "object" else f'{{"{_KEY}": "{_VALUE}"}}'
        call = {"id": _CALL_ID, "type": "function", "function": {"name": _NAME, "arguments": value}}
        message: Message = {"role": "assistant", "tool_calls": [call]}
        match no_content:
            case "empty" if isinstance(self._question["content"], str):
                return message | {"content": ""}
            case "empty":
                return message | {"content": [{"type": "text", "text": ""}]}
            case "none":
                return message | {"content": None}
            case "missing":
                return message
