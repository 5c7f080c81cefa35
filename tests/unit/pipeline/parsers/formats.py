"""One well-formed answer or more in each format, and what it says."""

import json
from typing import Any, NamedTuple


class Sample(NamedTuple):
    parser: str
    text: str
    content: str
    calls: list[tuple[str, dict[str, Any]]]
    reasoning_parser: str | None = None
    reasoning: str = ""
    prompt_end: str = ""


def _object(name: str, key: str = "arguments", **arguments: Any) -> str:
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


PARIS = ("weather", {"city": "Paris"})
TRICKY = {"city": '</tool_call> "<think>" ü \\ 🎉\n', "any": {"a": [1, 2.5e3, None, True, {"b": []}]}}
_HERMES = f"<tool_call>\n{_object(*PARIS[:1], **PARIS[1])}\n</tool_call>"
_XML = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
_GLM = "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
_V3 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    '{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
_KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    '{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.time:1<|tool_call_argument_begin|>{}'
    "<|tool_call_end|><|tool_calls_section_end|>"
)
_DSML = (
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
)
_HARMONY_CALL = (
    '<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}'
)
_SCALARS = (
    "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n<parameter=share>\n0.5\n</parameter>\n"
    "<parameter=hourly>\nTrue\n</parameter>\n<parameter=places>\n['a', 'b']\n</parameter>\n<parameter=more>\nnull\n"
    "</parameter>\n<parameter=either>\nnone of it\n</parameter>\n<parameter=city>\n12\n</parameter>\n"
    "<parameter=one>\nb\n</parameter>\n<parameter=unknown>\n7\n</parameter>\n</function>\n</tool_call>"
)

SAMPLES: dict[str, Sample] = {
    "hermes": Sample("hermes", f"Let me see.\n{_HERMES}", "Let me see.", [PARIS]),
    "hermes, two": Sample("qwen25", f"{_HERMES}\n{_HERMES}", "", [PARIS, PARIS]),
    "hermes, tricky": Sample(
        "qwen", f"<tool_call>{_object('weather', **TRICKY)}</tool_call>", "", [("weather", TRICKY)]
    ),
    "hermes, keys turned round": Sample(
        "hermes", '<tool_call>{"id": [1], "arguments": {"city": "Paris"}, "name": "weather"}</tool_call>', "", [PARIS]
    ),
    "hermes, no arguments": Sample("hermes", '<tool_call>{"name": "time"}</tool_call>', "", [("time", {})]),
    "hermes, null": Sample("hermes", '<tool_call>{"name": "time", "arguments": null}</tool_call>', "", [("time", {})]),
    "hermes, arguments as text": Sample(
        "hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>', "", [PARIS]
    ),
    "hermes, a brace is missing": Sample(
        "hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}</tool_call>', "", [PARIS]
    ),
    "hermes, after thinking": Sample(
        "hermes",
        f"<think>\nHm, {_HERMES[:12]}?\n</think>\n\nSo:\n{_HERMES}",
        "So:",
        [PARIS],
        "qwen3",
        "Hm, <tool_call>\n?",
    ),
    "hermes, inside thinking": Sample("hermes", f"Hm.</think>{_HERMES}", "", [PARIS], "qwen3", "Hm.", "<think>\n"),
    "hermes, thinking again": Sample(
        "hermes", f"<think>One</think>{_HERMES}<think>Two</think>Done.", "Done.", [PARIS], "qwen3", "OneTwo"
    ),
    "qwen3_coder": Sample("qwen3_coder", f"I look.\n{_XML}", "I look.", [PARIS]),
    "qwen3_xml, bare": Sample("qwen3_xml", _XML[len("<tool_call>\n") :], "", [PARIS]),
    "qwen3_xml, kinds": Sample(
        "qwen3_xml",
        _SCALARS,
        "",
        [
            (
                "weather",
                {
                    "days": 3,
                    "share": 0.5,
                    "hourly": True,
                    "places": ["a", "b"],
                    "more": None,
                    "either": "none of it",
                    "city": "12",
                    "one": "b",
                    "unknown": 7,
                },
            )
        ],
    ),
    "qwen3_xml, code": Sample(
        "qwen3_xml",
        _XML.replace("Paris", "if a </parameter> b:\n\n    </function>\n"),
        "",
        [("weather", {"city": "if a </parameter> b:\n\n    </function>\n"})],
    ),
    "llama3_json": Sample("llama3_json", _object("weather", "parameters", city="Paris"), "", [PARIS]),
    "llama3_json, two": Sample(
        "llama3",
        f"<|python_tag|>{_object('weather', 'parameters', city='Paris')}; {_object('time')}",
        "",
        [PARIS, ("time", {})],
    ),
    "llama3_json, an answer in JSON": Sample(
        "llama3_json", '{"city": "Paris", "name": 1}', '{"city": "Paris", "name": 1}', []
    ),
    "pythonic": Sample(
        "pythonic",
        "[weather(city='a, \"b\") [\\'', days=-3, more={'x': (1, None)}, hourly=True), time()]",
        "",
        [("weather", {"city": 'a, "b") [\'', "days": -3, "more": {"x": [1, None]}, "hourly": True}), ("time", {})],
    ),
    "pythonic, tagged": Sample(
        "llama4_pythonic", 'Yes: <|python_start|>[weather(city="Paris")]<|python_end|>', "Yes:", [PARIS]
    ),
    "pythonic, a list": Sample("pythonic", "[1, 2] and [weather]", "[1, 2] and [weather]", []),
    "mistral, list": Sample(
        "mistral",
        f"Hi [TOOL_CALLS] [{_object('weather', city='Paris')}, {_object('time')}]",
        "Hi",
        [PARIS, ("time", {})],
    ),
    "mistral, named": Sample(
        "mistral",
        '[TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]time[CALL_ID]abc123[ARGS]{}',
        "",
        [PARIS, ("time", {})],
    ),
    "mistral, bare": Sample("mistral", f"[TOOL_CALLS]{_object('time')}", "", [("time", {})]),
    "magistral": Sample(
        "mistral", f"[THINK]Hm.[/THINK][TOOL_CALLS][{_object('time')}]", "", [("time", {})], "magistral", "Hm."
    ),
    "deepseekv3": Sample("deepseekv3", f"Ja.{_V3}", "Ja.", [PARIS]),
    "deepseekv31": Sample(
        "deepseekv31",
        _V3.replace("function<｜tool▁sep｜>weather\n```json\n", "weather<｜tool▁sep｜>").replace("\n```", ""),
        "",
        [PARIS],
    ),
    "deepseek-r1": Sample("deepseekv3", f"Hm.\n</think>\n\nJa.{_V3}", "Ja.", [PARIS], "deepseek-r1", "Hm."),
    "deepseekv32": Sample("deepseekv32", f"Ja.\n\n{_DSML}", "Ja.", [("weather", {"city": "Paris", "days": 3})]),
    "deepseekv4, nothing in it": Sample(
        "deepseekv4", '<｜DSML｜tool_calls><｜DSML｜invoke name="time"/></｜DSML｜tool_calls>', "", [("time", {})]
    ),
    "minimax": Sample(
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
        "",
        [("weather", {"city": "Paris", "days": 2})],
    ),
    "kimi_k2": Sample("kimi_k2", f"Ok. {_KIMI}", "Ok.", [PARIS, ("time", {})]),
    "kimi_k2, thinking cut short": Sample(
        "kimi_k2", f"<think>Hm. {_KIMI}", "", [PARIS, ("time", {})], "kimi_k2", "Hm."
    ),
    "glm45": Sample("glm45", _GLM.replace("<arg", "\n<arg"), "", [PARIS]),
    "glm47": Sample("glm47", f"Ok.{_GLM}<tool_call>time</tool_call>", "Ok.", [PARIS, ("time", {})]),
    "gpt-oss": Sample(
        "gpt-oss",
        f"<|channel|>analysis<|message|>Hm.<|end|>{_HARMONY_CALL}",
        "",
        [PARIS],
        "gpt-oss",
        "Hm.",
    ),
    "gpt-oss, answers": Sample(
        "openai",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Paris.",
        "Paris.",
        [],
        "gpt-oss",
        "Hm.",
    ),
    "gpt-oss, named in the role": Sample(
        "gpt-oss",
        " to=functions.time<|channel|>commentary <|constrain|>json<|message|><|call|>",
        "",
        [("time", {})],
        "gpt-oss",
    ),
    "gpt-oss, a preamble": Sample(
        "gpt-oss", f"<|channel|>commentary<|message|>I look.<|end|>{_HARMONY_CALL}", "I look.", [PARIS], "gpt-oss"
    ),
}
