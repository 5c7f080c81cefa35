"""Good bodies, a little wrong: types, sizes, nesting, text that is none, keys twice; then sometimes the bytes too."""

import copy
import json
from random import Random
from typing import Any

from fuzzlib.bodies import Taken
from fuzzlib.inputs import Input, request


class Written(str):
    """JSON as it is to be written, which no value of Python's would give."""

    __slots__ = ()


_MOST_CHARACTERS = 1_000_000  # that a repetition may make
WORDS = [
    "",
    "a",
    "auto",
    "none",
    "required",
    "user",
    "system",
    "json_object",
    "text",
    "\0",
    "\x7f",
    "é",
    "😀",
    "\u202e",
    "<|im_end|>",
]
NUMBERS: list[Any] = [
    0,
    1,
    -1,
    2,
    16.0,
    1.5,
    -0.0,
    258,
    259,
    4095,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
]
ODD = [  # by kind, and so not one a line
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "1" * 400, "-" + "9" * 5000, "1." + "1" * 400, "1E400",
    "01", "+1", ".5", "0x10", "1_000", "1e", "--1", "True", "nul", "undefined",
    '"\\ud83d"', '"\\udc00\\ud83d"', '"\\ud83dx"', '"\\u0000"', '"\\uZZZZ"', '"\\x41"', '"\n"', '"\t"',
    '{"a": 1, "a": {"a": []}}', '{"a"}', '{"a": 1,}', "[1,]", "[,]", "{,}", "/* */ 1", "'a'",
]  # fmt: skip


def mutated(random: Random, route: Taken) -> Input:
    """One request to it, with one to four things wrong."""
    body = copy.deepcopy(random.choice(route.good))
    for _ in range(random.choice((1, 1, 1, 2, 2, 4))):
        _mutate(random, body, route.fields)
    text = _written(body)
    if random.random() < 0.1 and text.startswith("{") and len(text) > 2:
        text = f"{text[:-1]}, {text[1:]}"  # every key twice
    data = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.15:
        data = damaged(random, data)
    return Input("json", route.path, (request(route.method, route.path, data),))


def damaged(random: Random, data: bytes) -> bytes:
    """With some bytes changed, taken out, put in or said again."""
    at = random.randrange(len(data) + 1)
    end = min(len(data), at + random.choice((1, 1, 2, 8, 200)))
    match random.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + random.randbytes(end - at) + data[end:]
        case 2:
            return data[:at] + data[end:]
        case 3:
            return (
                data[:at]
                + random.choice((b"\0", b"\xff", b"\xed\xa0\xbd", b"\r\n", b"{", b"]", b'"', b"\\", b","))
                + data[at:]
            )
        case _:
            return data[:end] + data[at:]


def _mutate(random: Random, body: dict[str, Any], fields: tuple[str, ...]) -> None:
    choice = random.random()
    if choice < 0.35 and fields:
        body[random.choice(fields)] = _value(random, 2)
    elif choice < 0.4:
        body[random.choice((*WORDS, "x" * 10_000, "__class__"))] = _value(random, 2)
    else:
        place, key = _place(random, body)
        if random.random() < 0.15:
            del place[key]
        else:
            place[key] = _twisted(random, place[key])


def _place(random: Random, body: dict[str, Any]) -> tuple[Any, Any]:
    """Somewhere in it; the top if it is empty."""
    place: Any = body
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            place["a"] = 1
            return place, "a"
        key = random.choice(keys)
        if not isinstance(place[key], dict | list) or not place[key] or random.random() < 0.3:
            return place, key
        place = place[key]


def _twisted(random: Random, value: Any) -> Any:
    """Another value that is a little like it, or nothing like it."""
    match random.randrange(6):
        case 0:
            return [value]
        case 1:
            return {"a": value}
        case 2:
            return None
        case 3 if isinstance(value, list | str):
            times = random.choice((0, 2, 50, 300))
            return value * times if times * len(_written(value)) < _MOST_CHARACTERS else value
        case 3:
            return str(value)
        case _:
            return _value(random, 2)


def _value(random: Random, depth: int) -> Any:
    choice = random.randrange(13 if depth else 8)
    match choice:
        case 0:
            return random.choice((None, True, False))
        case 1 | 2:
            return random.choice(NUMBERS)
        case 3:
            return random.choice(WORDS)
        case 4:
            return Written(random.choice(ODD))
        case 5:
            return "".join(
                chr(random.choice((random.randrange(128), random.randrange(0xD800), 0xD83D))) for _ in range(6)
            )
        case 6:
            return random.choice(("a", "é", "😀", "\0", " ", "{{", "\\")) * random.choice((100, 100, 5_000, 50_000))
        case 7:
            return _deep(random)
        case 8 | 9 | 10:
            if random.random() < 0.2:
                return [random.choice((random.choice(NUMBERS), random.choice(WORDS)))] * 3000
            return [_value(random, depth - 1) for _ in range(random.choice((0, 1, 2, 5)))]
        case _:
            return {random.choice((*WORDS, "type", "role", "content")): _value(random, depth - 1) for _ in range(4)}


def _deep(random: Random) -> Written:
    depth = random.choice((10, 100, 900, 1100, 20_000))
    opening, closing = random.choice((("[", "]"), ('{"a":', "}"), ('[{"type":"object","properties":{"a":', "}}]")))
    inner = random.choice(("1", "", "null", '{"type": "string"}'))
    return Written(opening * depth + inner + closing * random.choice((depth, depth, 0)))


def _written(value: Any) -> str:
    if isinstance(value, Written):
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_written(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return json.dumps(value)
