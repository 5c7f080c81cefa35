"""What a parser makes of an answer, in whatever pieces the answer comes."""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from apiserver.pipeline.parsers import make_parser
from apiserver.requests import Structure

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "share": {"type": "number"},
                "hourly": {"type": "boolean"},
                "places": {"type": "array", "items": {"type": "string"}},
                "more": {"type": ["object", "null"]},
                "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "one": {"enum": ["a", "b"]},
                "any": {},
            },
        },
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time"}}
TOOLS = (WEATHER, TIME)


class Read(NamedTuple):
    """A fold: content, reasoning, and each call's name and arguments."""

    content: str
    reasoning: str
    calls: list[tuple[str, str]]


def structure(tool_calls: str | None, reasoning: str | None = None, **options: Any) -> Structure:
    return Structure(**{"reasoning": reasoning, "tool_calls": tool_calls, "tools": TOOLS, **options})


def read(how: Structure, pieces: Iterable[str], prompt_end: str = "") -> Read:
    parser = make_parser(how, prompt_end)
    told = [piece for text in pieces for piece in parser.feed(text)] + parser.end()
    content, reasoning, calls = "", "", list[tuple[str, str]]()
    for piece in told:
        match piece.kind:
            case "content":
                content += piece.text
            case "reasoning":
                reasoning += piece.text
            case "call" if piece.id is not None:
                assert piece.id.startswith("call_")
                assert piece.call == len(calls)
                calls.append((piece.name or "", piece.text))
            case "call":
                assert piece.call == len(calls) - 1, "calls come one after the other"
                calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    return Read(content, reasoning, calls)


def cut(text: str, borders: Iterable[int]) -> list[str]:
    places = [0, *sorted(border % (len(text) + 1) for border in borders), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]
