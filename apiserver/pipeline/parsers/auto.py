"""Which parsers fit a model: its chat template shows the markers that it was taught.

The order counts: a marker that others use too stands behind those that tell more.
"""

from typing import NamedTuple

from apiserver.pipeline.parsers.names import HARMONY, call_format, is_harmony, reasoning_tags

_TOOL_CALLS = (
    ("<|channel|>", HARMONY),
    ("｜DSML｜", "deepseek_v32"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<arg_key>", "glm45"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_start|>", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('{"name": function name, "parameters":', "llama3_json"),
)
_REASONING = (
    ("<|channel|>", HARMONY),
    ("[THINK]", "mistral"),
    ("<seed:think>", "seed_oss"),
    ("◁think▷", "kimi"),
    ("<think>", "qwen3"),
    ("</think>", "qwen3"),
)
_THINKS = {"kimi_k2": "kimi_k2", "minimax_m2": "minimax_m2", "glm45": "glm45", "deepseek_v3": "deepseek-v3"}
"""Families that write <think> in ways of their own."""


class Choice(NamedTuple):
    """A parser's name (None: there is none), and why it is that one."""

    name: str | None
    reason: str


def choose_tool_calls(asked: str, template: str | None) -> Choice:
    """`asked` is a name, "auto" or "none". Raises UnknownParser."""
    if asked == "auto":
        return _by_template(_TOOL_CALLS, template)
    if asked != "none" and not is_harmony(asked):
        call_format(asked)
    return Choice(None if asked == "none" else asked, "as asked")


def choose_reasoning(asked: str, template: str | None, tool_calls: str | None) -> Choice:
    """`asked` is a name, "auto" or "none". Raises UnknownParser."""
    if asked == "auto":
        choice = _by_template(_REASONING, template)
        if choice.name == "qwen3" and tool_calls in _THINKS:
            return Choice(_THINKS[tool_calls], choice.reason)
        return choice
    if asked != "none" and not is_harmony(asked):
        reasoning_tags(asked)
    return Choice(None if asked == "none" else asked, "as asked")


def _by_template(markers: tuple[tuple[str, str], ...], template: str | None) -> Choice:
    if template is None:
        return Choice(None, "the model has no chat template")
    for marker, name in markers:
        if marker in template:
            return Choice(name, f"the chat template has {marker}")
    return Choice(None, "the chat template shows no format that is known")
