"""Structural tags: free text in which what stands between certain strings must match a schema.

Two forms are in use: SGLang's first one, with structures and triggers, and xgrammar's, with a format that nests.
"""

from typing import Any, cast

import msgspec

from apiserver.errors import InvalidRequest
from apiserver.protocol.schema_check import check_schema


def tag_text(tag: Any) -> str:
    """The tag, given as an object or as its text, as text."""
    return tag if isinstance(tag, str) else msgspec.json.encode(tag).decode()


def check_structural_tag(text: str, param: str) -> None:
    """Raises InvalidRequest for what is in neither form."""
    try:
        tag: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{param} is not valid JSON: {error}.", param=param) from error
    match tag:
        case {"format": {"type": str()}}:
            pass
        case {"structures": [_, *_] as structures, "triggers": [_, *_] as triggers}:
            _check_structures(cast(list[Any], structures), param)
            if not all(isinstance(trigger, str) and trigger for trigger in cast(list[Any], triggers)):
                raise InvalidRequest(f"{param}.triggers must hold strings.", param=f"{param}.triggers")
        case _:
            raise InvalidRequest(
                f"{param} must be a structural tag: an object with format, or with structures and triggers.",
                param=param,
            )


def _check_structures(structures: list[Any], param: str) -> None:
    for number, structure in enumerate(structures):
        where = f"{param}.structures[{number}]"
        match structure:
            case {"begin": str(), "end": str(), "schema": dict()}:
                check_schema(msgspec.json.encode(structure["schema"]).decode(), f"{where}.schema")
            case _:
                raise InvalidRequest(f"{where} must have a begin, a schema and an end.", param=where)
