"""The four forms of a prompt that OpenAI's completions and embeddings take: text, texts, ids, lists of ids."""

from typing import Any, cast

from apiserver.errors import InvalidRequest
from apiserver.requests import Prompt, Text, TokenIds


def prompts(value: str | list[Any] | None, param: str, most: int, add_special_tokens: bool) -> list[Prompt]:
    """The prompts of one request. Raises InvalidRequest naming the item that is wrong; mixed lists are wrong."""
    match value:
        case None:
            raise InvalidRequest(f"{param} is required.", param=param)
        case str():
            return [_text(value, param, add_special_tokens)]
        case []:
            raise InvalidRequest(f"{param} is empty.", param=param)
        case [int(), *_]:
            return [TokenIds(_ids(value, param), param)]
        case _:
            pass
    if len(value) > most:
        raise InvalidRequest(f"{param} has {len(value)} items; at most {most} are allowed.", param=param)
    if isinstance(value[0], str):
        return [_text(item, f"{param}[{number}]", add_special_tokens) for number, item in enumerate(value)]
    return [TokenIds(_ids(item, f"{param}[{number}]"), f"{param}[{number}]") for number, item in enumerate(value)]


def _text(value: Any, param: str, add_special_tokens: bool) -> Text:
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string, like the items before it.", param=param)
    if not value:
        raise InvalidRequest(f"{param} is empty.", param=param)
    return Text(value, param, add_special_tokens)


def _ids(value: Any, param: str) -> list[int]:
    """A list of ints and nothing else (a bool is an int to Python, not to us)."""
    if not isinstance(value, list):
        raise InvalidRequest(f"{param} must be a list of token ids.", param=param)
    items = cast(list[Any], value)
    if not items:
        raise InvalidRequest(f"{param} is empty.", param=param)
    if set(map(type, items)) != {int}:
        items = [int(item) if type(item) is float and item.is_integer() else item for item in items]
        if set(map(type, items)) != {int}:
            raise InvalidRequest(f"{param} must hold token ids (integers) only.", param=param)
    return cast(list[int], items)
