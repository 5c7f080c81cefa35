"""SGLang's parsers as routes: POST /parse_function_call and /separate_reasoning take a whole text apart."""

from typing import Any, ClassVar

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest
from apiserver.events import Result
from apiserver.protocol import openai
from apiserver.protocol.chat_tools import read_tools
from apiserver.protocol.decoding import read_fields
from apiserver.protocol.exchange import Body, Unary
from apiserver.requests import ParseJob, Structure


class ParseFields(msgspec.Struct, kw_only=True):
    text: str
    tools: list[dict[str, Any]]
    tool_call_parser: str | None = None
    model: str | None = None


class SeparateFields(msgspec.Struct, kw_only=True):
    text: str
    reasoning_parser: str | None = None
    model: str | None = None


_parse_decoder = msgspec.json.Decoder(ParseFields)
_separate_decoder = msgspec.json.Decoder(SeparateFields)


class ParseFunctionCall(Unary):
    """A text's tool calls, and the rest of it."""

    path = "/parse_function_call"
    fields: ClassVar = (ParseFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _parse_decoder, card)
        tools, _ = read_tools(fields.tools, None)
        name = _parser(fields.tool_call_parser, card.tool_call_parser, "tool_call_parser")
        self._names = [tool["function"]["name"] for tool in tools or ()]
        self._job = ParseJob(fields.text, Structure(tool_calls=name, tools=tuple(tools or ())), "tool_call_parser")

    @property
    def job(self) -> ParseJob:
        return self._job

    def body(self, result: Result) -> Body:
        choice = result.choices[0]
        calls = [
            {"tool_index": self._index(call.name), "name": call.name, "parameters": call.arguments}
            for call in choice.tool_calls
        ]
        return Body({"normal_text": choice.text, "calls": calls})

    def _index(self, name: str) -> int:
        """Which of the tools it is; -1 is none."""
        return self._names.index(name) if name in self._names else -1

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


class SeparateReasoning(Unary):
    """A text's reasoning, and the rest of it."""

    path = "/separate_reasoning"
    fields: ClassVar = (SeparateFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _separate_decoder, card)
        name = _parser(fields.reasoning_parser, card.reasoning_parser, "reasoning_parser")
        self._job = ParseJob(fields.text, Structure(reasoning=name), "reasoning_parser")

    @property
    def job(self) -> ParseJob:
        return self._job

    def body(self, result: Result) -> Body:
        choice = result.choices[0]
        return Body({"reasoning_text": choice.reasoning, "text": choice.text})

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


def _parser(asked: str | None, own: str | None, param: str) -> str:
    """The one that is asked for, else the model's own."""
    name = asked or own
    if name is None:
        raise InvalidRequest(f"This model has no parser of its own: {param} must name one.", param=param)
    return name
