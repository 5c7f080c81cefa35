"""A request in the shape that Claude Code sends: large system blocks, thirty tools, and many fields of betas."""

from typing import Any

_TOOLS = 30
_EPHEMERAL = {"type": "ephemeral"}


def claude_code_body() -> dict[str, Any]:
    """Its second turn: a tool was called, and its result is there."""
    return {
        "model": "sim",
        "max_tokens": 32_000,
        "stream": True,
        "system": [
            _text("x-anthropic-billing-header: cc_version=2.1.300.7b4; cc_entrypoint=cli; cch=eb6c6;"),
            _text("You are Claude Code, Anthropic's official CLI.", cache_control=_EPHEMERAL),
            _text("You help with software. " * 200, cache_control={**_EPHEMERAL, "ttl": "1h"}),
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    _text("<system-reminder>\nToday is Monday.\n</system-reminder>"),
                    _text("Fix the bug.", cache_control=_EPHEMERAL),
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I look first.", "signature": "EqQBCgIYAhIM"},
                    _text("I read the file."),
                    {"type": "tool_use", "id": "toolu_01A", "name": "Tool1", "input": {"path": "/a.py", "lines": [1]}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_01A",
                        "content": [_text("print(1)")],
                        "is_error": False,
                        "cache_control": _EPHEMERAL,
                    },
                ],
            },
        ],
        "tools": [_tool(number) for number in range(_TOOLS)],
        "tool_choice": {"type": "auto"},
        "metadata": {"user_id": "user_1234_account__session_5678"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }


def _text(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def _tool(number: int) -> dict[str, Any]:
    return {
        "name": f"Tool{number}",
        "description": f"Does thing number {number}. " * 20,
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {"path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}},
            "required": ["path"],
            "additionalProperties": False,
        },
        "eager_input_streaming": True,
    }
