"""Bytes → a struct, or a 400 that says where it hurts. Shared by all dialects; knows none of them."""

import gc
import math
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, cast

import msgspec

from apiserver.card import Card
from apiserver.errors import InvalidRequest, TooLarge, shown

_PATH = re.compile(r" - at `\$\.?(.*)`$")
_STEP = re.compile(r"\[(\d+|\.\.\.)\]|([^.\[\]]+)")
_LONE_SURROGATE = re.compile(
    rb"(?<!\\)(?:\\\\)*"  # the backslash that follows is none that was escaped itself
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_MOST_EXPLAINED = 1 << 20  # looking for the fault in a larger body would cost more than the body was worth
_MOST_INTEGRAL_FIELDS = 64
_LARGE = 1 << 20
MOST_CONTAINERS = 1_000_000
"""Brackets that open in a large body. More of them would be lists that hold the loop for seconds, or a text that is too
long for any model."""
_TOO_DEEP = "The JSON body is nested too deeply."

T = TypeVar("T")
A = TypeVar("A", bound="Addressed")

_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = msgspec.Raw(b"null")


class Addressed(Protocol):
    """A dialect's fields: whatever else, they may name a model."""

    @property
    def model(self) -> str | None: ...


def read_fields(
    raw: bytes,
    decoder: msgspec.json.Decoder[A],
    card: Card,
    *,
    harmless: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
    ignored: Collection[str] = (),
) -> A:
    """What every dialect begins with: decode, and refuse what this server must not pass over in silence.

    Raises InvalidRequest, and NotFound for another model. `harmless` and `ignored` are those of refuse_unsupported and
    refuse_unknown.
    """
    fields = decode(raw, decoder)
    if card.strict_fields:
        refuse_unknown(raw, cast(type[msgspec.Struct], decoder.type), ignored)
    card.resolve(fields.model)
    refuse_unsupported(fields, harmless)
    return fields


def decode(raw: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as the decoder's struct. Raises InvalidRequest with the field's path as `param`, or TooLarge."""
    if len(raw) > _LARGE:
        return _decode_large(raw, decoder)
    return _decode(raw, decoder)


def _decode_large(raw: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """27 MB of `[1],[1],…` took 16 s: a second for making them, and the rest for the collector, which looks through all
    that there is again and again while it grows."""
    if raw.count(b"[") + raw.count(b"{") > MOST_CONTAINERS:
        raise TooLarge(f"The JSON body has more than {MOST_CONTAINERS} lists and objects. Send several requests.")
    gc.disable()
    try:
        return _decode(raw, decoder)
    finally:
        gc.enable()


def _decode(raw: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        return _lenient(raw, decoder, error)
    except msgspec.DecodeError as error:
        raise InvalidRequest(_malformed(raw, str(error))) from error
    except RecursionError as error:
        raise InvalidRequest(_TOO_DEEP) from error


def _lenient(raw: bytes, decoder: msgspec.json.Decoder[T], error: msgspec.ValidationError) -> T:
    """Once more with integral floats as integers where integers are asked for (`"max_tokens": 16.0`, as Lua clients
    write them), and only there: what a template prints stays as it was sent."""
    if "got `float`" in str(error):
        try:
            document = msgspec.json.decode(raw)
            for _ in range(_MOST_INTEGRAL_FIELDS):
                if not _make_integral(document, str(error)):
                    break
                try:
                    return msgspec.convert(document, cast(type[T], decoder.type))
                except msgspec.ValidationError as another:
                    error = another
        except msgspec.DecodeError as malformed:  # in a field that the decoder skips
            raise InvalidRequest(_malformed(raw, str(malformed))) from malformed
        except RecursionError as deep:
            raise InvalidRequest(_TOO_DEEP) from deep
    raise invalid(error) from error


def _make_integral(document: Any, error: str) -> bool:
    """Change the integral floats in the place that the error names. Returns whether there were any."""
    found = _PATH.search(error)
    if found is None or "got `float`" not in error:
        return False
    steps: list[Any] = [match.group(2) or _index(match.group(1)) for match in _STEP.finditer(found.group(1))]
    if not steps or ... in steps[:-1]:
        return False  # some value of an object, but msgspec does not say which
    place = document
    changed = False
    try:
        for step in steps[:-1]:
            place = place[step]
        for key in _neighbours(place, steps[-1]):
            value = place[key]
            if type(value) is float and value.is_integer():
                place[key] = int(value)
                changed = True
    except (TypeError, LookupError):
        return False  # a key stands there twice: the fault is in the first, and the document has the last
    return changed


def _index(text: str) -> Any:
    return ... if text == "..." else int(text)


def _neighbours(place: Any, key: Any) -> list[Any]:
    """Where one item of a list or a mapping is a float, others will be: all its keys. Of a struct, this field alone."""
    if isinstance(key, int):
        return list(range(len(place)))
    return list(place) if key is ... else [key]


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


def _malformed(raw: bytes, error: str) -> str:
    """msgspec calls a lone surrogate "truncated", which sends people to look at their network."""
    if not raw or raw.isspace():
        return "The body is empty; it must be a JSON object."
    if raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        return "The JSON body must be UTF-8 without a byte order mark."
    if "surrogate" in error or ("truncated" in error and _LONE_SURROGATE.search(raw, 0, _MOST_EXPLAINED)):
        return "The JSON body holds a lone surrogate (like \\ud83d without its second half), which is not text."
    if "UTF-8" in error:
        return "The JSON body is not valid UTF-8."
    return f"The body is not valid JSON: {error}."


def refuse_unknown(raw: bytes, struct: type[msgspec.Struct], ignored: Collection[str] = ()) -> None:
    """For --strict-fields: raises InvalidRequest for the first top-level field that the dialect does not have.

    `ignored` are those that it knows and that change nothing.
    """
    known = {*struct.__struct_encode_fields__, *ignored}
    try:
        names = _fields_of.decode(raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest(_malformed(raw, str(error))) from error
    for name in names:
        if name not in known:
            raise InvalidRequest(f"Unknown field: {shown(name)}.", param=name)


def names_in(raw: bytes) -> Collection[str]:
    """The body's top-level fields that are not null; none if it is no JSON object, which somebody else will say."""
    try:
        return [name for name, value in _fields_of.decode(raw).items() if value != _NULL]
    except (msgspec.DecodeError, RecursionError):
        return ()


def refuse_unsupported(fields: object, harmless: Mapping[str, tuple[Any, ...]]) -> None:
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
        bound = f"above {_number(low)}" if exclusive_low else f"at least {_number(low)}"
        upper = "" if high == math.inf else f" and at most {_number(high)}"
        raise InvalidRequest(f"{name} must be {bound}{upper}, not {shown(value)}.", param=name)


def check_length(name: str, value: str | None, most: int) -> None:
    """Raises InvalidRequest for a string that is longer than it may be."""
    if value is not None and len(value) > most:
        raise InvalidRequest(f"{name} has {len(value)} characters; at most {most} are allowed.", param=name)


def _number(bound: float) -> str:
    """Without an exponent where it is a whole number: 2048, not 2.05e+03."""
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"
