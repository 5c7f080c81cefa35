"""What the calls of strict tools look like, as a structural tag: a pure function of the parser and the tools.

It is free text in which what follows a call's opening must be a call of one of the tools, with arguments that match its
schema. (xgrammar's form, with a `format` that nests, in its "triggered tags".) A call is held from the words on that
only a call has, so what stands around it, such as a section's markers, stays the model's own.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from apiserver.pipeline.parsers.deepseek import DeepSeek
from apiserver.pipeline.parsers.glm import Glm
from apiserver.pipeline.parsers.hermes import Hermes
from apiserver.pipeline.parsers.invoke import DeepSeekMarkup, MiniMax
from apiserver.pipeline.parsers.kimi import Kimi
from apiserver.pipeline.parsers.llama_json import LlamaJson
from apiserver.pipeline.parsers.mistral import Mistral
from apiserver.pipeline.parsers.parser import CallFormat
from apiserver.pipeline.parsers.qwen_xml import QwenXml

Format = dict[str, Any]
"""A structural tag's format, or a part of one."""

ANY_OBJECT: dict[str, Any] = {"type": "object"}
MOST_SPACES = 16
"""White space in a row within JSON: without a bound, some models write nothing else."""


class _Shape(NamedTuple):
    """One way to write a call; NAME is the tool's. `trigger` begins every `begin`; None: each begin is its own, and so
    only strict tools are held."""

    begin: str
    end: str
    trigger: str | None = None
    style: str = "json"
    between: tuple[Format, ...] = ()
    """What stands between the beginning and the arguments."""


_KIMI_ID = ({"type": "regex", "pattern": "[0-9]+"}, {"type": "const_string", "value": "<|tool_call_argument_begin|>"})
_SHAPES: dict[type[CallFormat], tuple[_Shape, ...]] = {
    Hermes: (_Shape('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", "<tool_call>"),),
    QwenXml: (_Shape("<function=NAME>\n", "\n</function>", "<function=", "qwen_xml"),),
    Glm: (_Shape("<tool_call>NAME", "</tool_call>", "<tool_call>", "glm_xml"),),
    LlamaJson: (_Shape('{"name": "NAME", "parameters": ', "}"),),
    Mistral: (_Shape("[TOOL_CALLS]NAME[ARGS]", ""), _Shape('{"name": "NAME", "arguments": ', "}")),
    Kimi: (_Shape("<|tool_call_begin|>functions.NAME:", "<|tool_call_end|>", "<|tool_call_begin|>", between=_KIMI_ID),),
    DeepSeek: (
        _Shape(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
            "\n```<｜tool▁call▁end｜>",
            "<｜tool▁call▁begin｜>",
        ),
        _Shape("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁call▁begin｜>"),
    ),
    DeepSeekMarkup: (
        _Shape('<｜DSML｜invoke name="NAME">\n', "</｜DSML｜invoke>", "<｜DSML｜invoke", "deepseek_xml"),
        _Shape('<｜DSML｜ invoke name="NAME">\n', "</｜DSML｜ invoke>", "<｜DSML｜ invoke", "deepseek_v4_1_xml"),
    ),
    MiniMax: (_Shape('<invoke name="NAME">\n', "</invoke>", "<invoke", "minimax_xml"),),
}


def strict_calls(form: type[CallFormat], tools: Sequence[dict[str, Any]]) -> Format | None:
    """`tools` are OpenAI's function tools. None where none is strict, or where calls have no words of their own that
    begin them."""
    shapes = _SHAPES.get(form, ())
    functions = [tool["function"] for tool in tools]
    if not shapes or not any(function.get("strict") for function in functions):
        return None
    tags = [
        (shape.trigger or _named(shape.begin, function), _tag(shape, function))
        for shape in shapes
        for function in functions
        if function.get("strict") or shape.trigger is not None
    ]
    triggers = list(dict.fromkeys(trigger for trigger, _ in tags))
    return {"type": "triggered_tags", "triggers": triggers, "tags": [tag for _, tag in tags]}


def _tag(shape: _Shape, function: dict[str, Any]) -> Format:
    schema = (function.get("parameters") if function.get("strict") else None) or ANY_OBJECT
    arguments: Format = {
        "type": "json_schema",
        "json_schema": schema,
        "style": shape.style,
        "max_whitespace_cnt": MOST_SPACES,
    }
    content = {"type": "sequence", "elements": [*shape.between, arguments]} if shape.between else arguments
    return {"type": "tag", "begin": _named(shape.begin, function), "content": content, "end": shape.end}


def _named(text: str, function: dict[str, Any]) -> str:
    """In JSON the name is a JSON string."""
    name = function["name"]
    return text.replace("NAME", json.dumps(name, ensure_ascii=False)[1:-1] if '"NAME"' in text else name)
