"""Answers with calls of a strict tool, by parser: one that keeps its schema, one that does not, one of a tool that is
not strict. The parsers read them; xgrammar, where there is one, takes and refuses them."""

from typing import Any, NamedTuple

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
PLAIN: dict[str, Any] = {
    "type": "function",
    "function": {"name": "plain", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
TOOLS = (WEATHER, PLAIN)
ARGUMENTS = {"city": "Paris", "days": 3}
_RIGHT, _WRONG, _FREE = '{"city": "Paris", "days": 3}', '{"city": 5, "days": 3}', '{"y": [1, {}]}'


class Calls(NamedTuple):
    right: str
    wrong: str
    free: str


def _json(form: str) -> Calls:
    """Of a format whose arguments are JSON: NAME and ARGUMENTS stand for them."""
    each = (("weather", _RIGHT), ("weather", _WRONG), ("plain", _FREE))
    return Calls(*(form.replace("NAME", name).replace("ARGUMENTS", arguments) for name, arguments in each))


BY_PARSER: dict[str, list[Calls]] = {
    "hermes": [_json('I look.\n<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>')],
    "qwen3_coder": [
        Calls(
            "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
            "</function>\n</tool_call>",
            "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\nx\n</parameter>\n"
            "</function>\n</tool_call>",
            "<tool_call>\n<function=plain>\n<parameter=y>\nz\n</parameter>\n</function>\n</tool_call>",
        )
    ],
    "glm45": [
        Calls(
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
            "<arg_value>3</arg_value>\n</tool_call>",
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
            "<arg_value>x</arg_value>\n</tool_call>",
            "<tool_call>plain<arg_key>y</arg_key><arg_value>z</arg_value></tool_call>",
        )
    ],
    "llama3_json": [_json('{"name": "NAME", "parameters": ARGUMENTS}')],
    "mistral": [
        _json("[TOOL_CALLS]NAME[ARGS]ARGUMENTS"),
        _json('[TOOL_CALLS] [{"name": "NAME", "arguments": ARGUMENTS}]'),
    ],
    "kimi_k2": [
        _json(
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>ARGUMENTS"
            "<|tool_call_end|><|tool_calls_section_end|>"
        )
    ],
    "deepseek_v3": [
        _json(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        _json(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
    ],
    "deepseek_v32": [
        Calls(
            f'<｜DSML｜function_calls>\n<｜DSML｜{gap}invoke name="weather">\n'
            f'<｜DSML｜{gap}parameter name="city" string="true">Paris</｜DSML｜{gap}parameter>\n'
            f'<｜DSML｜{gap}parameter name="days" string="false">3</｜DSML｜{gap}parameter>\n</｜DSML｜{gap}invoke>\n'
            "</｜DSML｜function_calls>",
            f'<｜DSML｜function_calls>\n<｜DSML｜{gap}invoke name="weather">\n'
            f'<｜DSML｜{gap}parameter name="city" string="true">Paris</｜DSML｜{gap}parameter>\n'
            f'<｜DSML｜{gap}parameter name="days" string="false">x</｜DSML｜{gap}parameter>\n</｜DSML｜{gap}invoke>\n'
            "</｜DSML｜function_calls>",
            f'<｜DSML｜function_calls>\n<｜DSML｜{gap}invoke name="plain">\n'
            f'<｜DSML｜{gap}parameter name="y" string="true">z</｜DSML｜{gap}parameter>\n</｜DSML｜{gap}invoke>\n'
            "</｜DSML｜function_calls>",
        )
        for gap in ("", " ")
    ],
    "minimax_m2": [
        Calls(
            '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Paris</parameter>\n'
            '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
            '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Paris</parameter>\n'
            '<parameter name="days">x</parameter>\n</invoke>\n</minimax:tool_call>',
            '<minimax:tool_call>\n<invoke name="plain">\n<parameter name="y">z</parameter>\n</invoke>\n'
            "</minimax:tool_call>",
        )
    ],
}
