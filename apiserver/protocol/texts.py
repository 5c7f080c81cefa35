"""Texts to be embedded, as the ranking APIs take them: strings, or objects with a `text`."""

from typing import Any, cast

from apiserver.errors import InvalidRequest
from apiserver.requests import Prompt, Text


def text_prompts(value: Any, param: str, most: int) -> list[Prompt]:
    """One text, or a list of them. Raises InvalidRequest naming the one that is wrong."""
    if value is None:
        raise InvalidRequest(f"{param} is required.", param=param)
    if not isinstance(value, list):
        return [Text(text_of(value, param), param)]
    items = cast(list[Any], value)
    if not items:
        raise InvalidRequest(f"{param} is empty.", param=param)
    if len(items) > most:
        raise InvalidRequest(f"{param} has {len(items)} items; at most {most} are allowed.", param=param)
    named = ((item, f"{param}[{number}]") for number, item in enumerate(items))
    return [Text(text_of(item, name), name) for item, name in named]


def text_of(value: Any, param: str) -> str:
    """A string, an object with a `text`, or one with `content`: a string, or text parts."""
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        value = _content(fields["content"], param) if "content" in fields else fields.get("text")
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string, or an object with a text.", param=param)
    if not value:
        raise InvalidRequest(f"{param} is empty.", param=param)
    return value


def _content(content: Any, param: str) -> Any:
    if not isinstance(content, list):
        return content
    texts: list[str] = []
    for part in cast(list[Any], content):
        text = cast(dict[str, Any], part).get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise InvalidRequest(f"{param}.content must hold text parts only.", param=param)
        texts.append(text)
    return "".join(texts)
