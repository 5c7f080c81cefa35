"""Structured output: the many fields that ask for it, as at most one constraint under the name that the client used."""

from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from apiserver.errors import InvalidRequest, shown
from apiserver.protocol.grammar_check import grammar_fault
from apiserver.protocol.regex_check import regex_fault
from apiserver.protocol.schema_check import check_schema
from apiserver.protocol.structural_tag import check_structural_tag, tag_text
from engine_bridge.wire import Capabilities

_MOST_CHOICES = 1024
_ANY_OBJECT = '{"type":"object"}'

# The names of wire.SamplingParams' fields.
Kind = Literal["json_schema", "regex", "grammar", "structural_tag"]


class Constraint(NamedTuple):
    """What the output must match, and the field that says so."""

    param: str
    kind: Kind
    text: str


class JsonSchema(msgspec.Struct):
    name: str | None = None
    schema: Any = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct):
    type: str
    json_schema: JsonSchema | None = None
    format: Any = None  # of a structural tag, as are the next two
    structures: Any = None
    triggers: Any = None


class StructuredOutputs(msgspec.Struct):
    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None


class Constrained(Protocol):
    """The fields that chat and completions have in common."""

    @property
    def response_format(self) -> ResponseFormat | None: ...
    @property
    def structured_outputs(self) -> StructuredOutputs | None: ...
    @property
    def regex(self) -> str | None: ...
    @property
    def ebnf(self) -> str | None: ...


def constraint(fields: Constrained, capabilities: Capabilities, *more: Constraint) -> Constraint | None:
    """Raises InvalidRequest for two, for one that is none, and for one that this engine cannot keep."""
    found = [
        *more,
        *_from_response_format(fields.response_format),
        *_from_structured_outputs(fields.structured_outputs),
    ]
    if fields.regex is not None:
        found.append(Constraint("regex", "regex", fields.regex))
    if fields.ebnf is not None:
        found.append(Constraint("ebnf", "grammar", fields.ebnf))
    if not found:
        return None
    if len(found) > 1:
        names = " and ".join(one.param for one in found)
        raise InvalidRequest(f"Only one constraint on the output can be given, not {names}.", param=found[1].param)
    [only] = found
    able = {
        "json_schema": capabilities.json_schema,
        "regex": capabilities.regex,
        "grammar": capabilities.grammar,
        "structural_tag": capabilities.structural_tag,
    }
    if not able[only.kind]:
        raise InvalidRequest(f"The engine ({capabilities.engine}) cannot honour {only.param}.", param=only.param)
    _check(only)
    return only


def _check(found: Constraint) -> None:
    """Raises InvalidRequest for what no engine could use: it must not get there to find that out."""
    match found.kind:
        case "json_schema":
            check_schema(found.text, found.param)
        case "regex":
            _refuse(found, regex_fault(found.text), "regular expression")
        case "grammar":
            _refuse(found, grammar_fault(found.text), "grammar")
        case "structural_tag":
            check_structural_tag(found.text, found.param)


def _refuse(found: Constraint, fault: str | None, what: str) -> None:
    if fault is not None:
        raise InvalidRequest(f"{found.param} is no usable {what}: {fault}.", param=found.param)


def schema_text(schema: Any, param: str) -> str:
    """A JSON schema, given as an object or as its text, as text. Raises InvalidRequest for anything else."""
    try:
        document = msgspec.json.decode(schema) if isinstance(schema, str) else schema
        if isinstance(document, dict):
            return schema if isinstance(schema, str) else msgspec.json.encode(document).decode()
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{param} is not valid JSON: {error}.", param=param) from error
    except RecursionError as error:
        raise InvalidRequest(f"{param} is nested too deeply.", param=param) from error
    raise InvalidRequest(f"{param} must be a JSON schema, an object.", param=param)


def _from_response_format(response_format: ResponseFormat | None) -> list[Constraint]:
    if response_format is None or response_format.type == "text":
        return []
    if response_format.type == "json_object":
        return [Constraint("response_format", "json_schema", _ANY_OBJECT)]
    if response_format.type == "json_schema":
        schema = response_format.json_schema.schema if response_format.json_schema is not None else None
        text = schema_text(schema, "response_format.json_schema.schema")
        return [Constraint("response_format", "json_schema", text)]
    if response_format.type == "structural_tag":
        tag = {name: getattr(response_format, name) for name in ("format", "structures", "triggers")}
        text = tag_text({"type": "structural_tag"} | {name: part for name, part in tag.items() if part is not None})
        return [Constraint("response_format", "structural_tag", text)]
    raise InvalidRequest(
        "response_format.type must be text, json_object, json_schema or structural_tag, not "
        f"{shown(response_format.type)}.",
        param="response_format.type",
    )


def _from_structured_outputs(outputs: StructuredOutputs | None) -> list[Constraint]:
    if outputs is None:
        return []
    for name in ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties"):
        if getattr(outputs, name) not in (None, False):
            raise InvalidRequest(
                f"structured_outputs.{name} is not supported here.", param=f"structured_outputs.{name}"
            )
    found: list[Constraint] = []
    if outputs.json is not None:
        text = schema_text(outputs.json, "structured_outputs.json")
        found.append(Constraint("structured_outputs.json", "json_schema", text))
    if outputs.structural_tag is not None:
        text = tag_text(outputs.structural_tag)
        found.append(Constraint("structured_outputs.structural_tag", "structural_tag", text))
    if outputs.json_object:
        found.append(Constraint("structured_outputs.json_object", "json_schema", _ANY_OBJECT))
    if outputs.regex is not None:
        found.append(Constraint("structured_outputs.regex", "regex", outputs.regex))
    if outputs.grammar is not None:
        found.append(Constraint("structured_outputs.grammar", "grammar", outputs.grammar))
    if outputs.choice is not None:
        found.append(Constraint("structured_outputs.choice", "grammar", _one_of(outputs.choice)))
    return found


def _one_of(choices: list[str]) -> str:
    """One of some literal strings is a grammar of one rule; JSON's quoting is GBNF's."""
    if not 1 <= len(choices) <= _MOST_CHOICES:
        raise InvalidRequest(
            f"structured_outputs.choice must hold 1 to {_MOST_CHOICES} strings, not {len(choices)}.",
            param="structured_outputs.choice",
        )
    return "root ::= " + " | ".join(msgspec.json.encode(choice).decode() for choice in choices)
