"""The chat template says which parsers a model's answers need."""

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from apiserver.pipeline.parsers import names
from apiserver.pipeline.parsers.auto import choose_reasoning, choose_tool_calls
from apiserver.pipeline.parsers.hermes import Hermes
from apiserver.pipeline.parsers.names import UnknownParser, call_format
from tests.unit.pipeline.parsers.reading import read, structure

TEMPLATES: list[tuple[str, str | None, str | None]] = [
    ("<tool_call> {{ '<think>' }} enable_thinking", "hermes", "qwen3"),
    ("<tool_call>\n<function=f>\n<parameter=x> </think>", "qwen3_coder", "qwen3"),
    ("<tool_call> <arg_key> <think>", "glm45", "glm45"),
    ("<｜tool▁calls▁begin｜> </think>", "deepseek_v3", "deepseek-v3"),
    ("<｜DSML｜invoke> <think>", "deepseek_v32", "qwen3"),
    ("<|tool_calls_section_begin|> <think>", "kimi_k2", "kimi_k2"),
    ("<minimax:tool_call> <think>", "minimax_m2", "minimax_m2"),
    ("[TOOL_CALLS] [THINK]", "mistral", "mistral"),
    ("<|python_start|>", "pythonic", None),
    ("<|python_tag|>", "llama3_json", None),
    ('Respond in the format {"name": function name, "parameters": dictionary}', "llama3_json", None),
    ("<|start|>assistant<|channel|>analysis", "gpt-oss", "gpt-oss"),
    ("<|im_start|>{{ role }}", None, None),
]


@pytest.mark.parametrize(("template", "calls", "reasoning"), TEMPLATES)
def test_the_markers_of_a_template_choose(template: str, calls: str | None, reasoning: str | None) -> None:
    chosen = choose_tool_calls("auto", template)
    assert chosen.name == calls
    assert choose_reasoning("auto", template, chosen.name).name == reasoning
    assert "the chat template" in chosen.reason


def test_without_a_template_there_is_nothing_to_choose_by() -> None:
    assert choose_tool_calls("auto", None).name is None
    assert "no chat template" in choose_reasoning("auto", None, None).reason


@pytest.mark.parametrize("name", ["qwen25", "openai", "deepseekv31"])
def test_a_name_that_is_asked_for_is_taken(name: str) -> None:
    assert choose_tool_calls(name, "<|channel|>") == (name, "as asked")


@pytest.mark.parametrize("name", ["magistral", "gpt-oss"])
def test_a_reasoning_parser_that_is_asked_for_is_taken(name: str) -> None:
    assert choose_reasoning(name, None, None) == (name, "as asked")


def test_none_is_none_and_an_unknown_name_is_refused() -> None:
    assert choose_tool_calls("none", "<tool_call>").name is choose_reasoning("none", "<think>", None).name is None
    with pytest.raises(UnknownParser):
        choose_tool_calls("x", None)
    with pytest.raises(UnknownParser):
        choose_reasoning("x", None, None)


def test_other_packages_bring_parsers_by_their_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("theirs", "apiserver.pipeline.parsers.hermes:Hermes", names.ENTRY_POINTS)

    def installed(**wanted: Any) -> list[EntryPoint]:
        return [entry] if wanted == {"group": "apiserver.tool_call_parsers", "name": "theirs"} else []

    monkeypatch.setattr(names, "entry_points", installed)
    assert call_format("theirs") is Hermes
    text = '<tool_call>{"name": "time"}</tool_call>'
    assert read(structure("theirs"), text).calls == [("time", "{}")]
    assert choose_tool_calls("theirs", None).name == "theirs"
