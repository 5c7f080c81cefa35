"""Bytes → a struct, or a 400 that says where it hurts. Shared by all dialects; knows none of them."""

import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

from apiserver.errors import InvalidRequest

_PATH = re.compile(r" - at `\$\.?(.*)`$")
_LONE_SURROGATE = re.compile(rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|[c-fC-F][0-9a-fA-F]{2})")

T = TypeVar("T", bound=msgspec.Struct)


def decode(raw: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as the decoder's struct. Raises InvalidRequest with the field's path as `param`."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        return _lenient(raw, decoder, error)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(_malformed(raw, str(error))) from error
    except RecursionError as error:
        raise InvalidRequest("The JSON body is nested too deeply.") from error


def _lenient(raw: bytes, decoder: msgspec.json.Decoder[T], error: msgspec.ValidationError) -> T:
    """Once more with integral floats as integers (`"max_tokens": 16.0`, as JavaScript and Lua clients write them)."""
    if "got `float`" in str(error):
        try:
            return msgspec.convert(_integral(msgspec.json.decode(raw)), cast(type[T], decoder.type))
        except msgspec.ValidationError as second:
            error = second
    raise invalid(error) from error


def invalid(error: msgspec.ValidationError) -> InvalidRequest:
    """The client's view of a validation error: the sentence, and the path as `param`."""
    text = str(error)
    found = _PATH.search(text)
    param = found.group(1) if found else None
    sentence = _PATH.sub("", text)
    missing = re.match(r"Object missing required field `(.*)`", sentence)
    if missing is not None:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return InvalidRequest(f"{param} is required.", param=param)
    return InvalidRequest(f"{param or 'The body'}: {sentence}.", param=param)


def _integral(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _integral(inner) for key, inner in cast(dict[str, Any], value).items()}
        case list():
            return [_integral(inner) for inner in cast(list[Any], value)]
        case _:
            return value


def _malformed(raw: bytes, error: str) -> str:
    """msgspec calls a lone surrogate "truncated", which sends people to look at their network."""
    if _LONE_SURROGATE.search(raw):
        return "The JSON body holds a lone surrogate (like \\ud83d without its second half), which is not text."
    if "UTF-8" in error:
        return "The JSON body is not valid UTF-8."
    return f"The body is not valid JSON: {error}."


def refuse_unknown(raw: bytes, struct: type[msgspec.Struct]) -> None:
    """For --strict-fields: raises InvalidRequest for the first top-level field that the dialect does not have."""
    known = set(struct.__struct_encode_fields__)
    for name in cast(dict[str, Any], msgspec.json.decode(raw)):
        if name not in known:
            raise InvalidRequest(f"Unknown field: {name[:100]}.", param=name[:100])


def refuse_unsupported(fields: msgspec.Struct, harmless: Mapping[str, tuple[Any, ...]]) -> None:
    """A field that we know and cannot honour must not be set to anything that would matter."""
    for name, values in harmless.items():
        value = getattr(fields, name)
        if value is not None and value not in values:
            raise InvalidRequest(f"{name} is not supported here.", param=name)


def check_range(name: str, value: float | None, low: float, high: float, *, exclusive_low: bool = False) -> None:
    """Raises InvalidRequest unless value is None or within [low, high] ((low, high] if exclusive_low)."""
    if value is None:
        return
    if value < low or value > high or (exclusive_low and value == low):
        bound = f"above {low:g}" if exclusive_low else f"at least {low:g}"
        upper = "" if high == math.inf else f" and at most {high:g}"
        raise InvalidRequest(f"{name} must be {bound}{upper}, not {value}.", param=name)
