"""The four forms of a prompt that OpenAI's completions and embeddings take: text, texts, ids, lists of ids."""

from typing import Any, cast

from apiserver.errors import InvalidRequest
from apiserver.requests import Prompt, Text, TokenIds


def prompts(
    value: str | list[Any] | None, param: str, most: int, add_special_tokens: bool, *, allow_empty: bool = False
) -> list[Prompt]:
    """The prompts of one request. Raises InvalidRequest naming the item that is wrong; mixed lists are wrong.

    `allow_empty` is for routes where no model has to take what comes out.
    """
    match value:
        case None:
            raise InvalidRequest(f"{param} is required.", param=param)
        case str():
            return [_text(value, param, add_special_tokens, allow_empty)]
        case []:
            raise InvalidRequest(f"{param} is empty.", param=param)
        case [int() | float(), *_]:
            return [TokenIds(token_ids(value, param), param)]
        case _:
            pass
    if len(value) > most:
        raise InvalidRequest(f"{param} has {len(value)} items; at most {most} are allowed.", param=param)
    named = ((item, f"{param}[{number}]") for number, item in enumerate(value))
    match value[0]:
        case str():
            return [_text(item, name, add_special_tokens, allow_empty) for item, name in named]
        case list():
            return [TokenIds(token_ids(item, name, allow_empty=allow_empty), name) for item, name in named]
        case _:
            raise InvalidRequest(f"{param}[0] must be a string, or a list of token ids.", param=f"{param}[0]")


def _text(value: Any, param: str, add_special_tokens: bool, allow_empty: bool) -> Text:
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string, like the items before it.", param=param)
    if not value and not allow_empty:
        raise InvalidRequest(f"{param} is empty.", param=param)
    return Text(value, param, add_special_tokens)


def token_ids(value: Any, param: str, *, allow_empty: bool = False) -> list[int]:
    """A list of integers and nothing else (a bool is an int to Python, not to us; 5.0 is a 5)."""
    if not isinstance(value, list):
        raise InvalidRequest(f"{param} must be a list of token ids.", param=param)
    items = cast(list[Any], value)
    if not items and not allow_empty:
        raise InvalidRequest(f"{param} is empty.", param=param)
    if not set(map(type, items)) <= {int}:
        items = [int(item) if type(item) is float and item.is_integer() else item for item in items]
        if set(map(type, items)) != {int}:
            raise InvalidRequest(f"{param} must hold token ids (integers) only.", param=param)
    return cast(list[int], items)
