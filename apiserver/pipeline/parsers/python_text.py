"""Python's literals as JSON: what models write that call tools in Python."""

import ast
import json
import math
from typing import Any

from apiserver.pipeline.parsers.json_text import usable


class NotALiteral(ValueError):
    """The text is Python, but no plain data."""


def python_to_json(text: str) -> str | None:
    """One Python literal as JSON text; None if it is none."""
    try:
        return node_to_json(ast.parse(text, mode="eval").body)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def node_to_json(node: ast.expr) -> str:
    """Raises NotALiteral for what is no plain data, RecursionError for what is nested too deeply."""
    return json.dumps(_value(node), ensure_ascii=False)


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() as text):
            return usable(text)
        case ast.Constant(value=float() as number) if not math.isfinite(number):
            raise NotALiteral
        case ast.Constant(value=(bool() | int() | float() | None) as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=(int() | float()) as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_name(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case ast.Name(id="true" | "false" as word):  # JSON's words, which models mix in
            return word == "true"
        case ast.Name(id="null"):
            return None
        case _:
            raise NotALiteral


def _name(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return usable(text)
        case ast.Constant(value=(int() | float()) as number):
            return json.dumps(number)
        case _:
            raise NotALiteral
