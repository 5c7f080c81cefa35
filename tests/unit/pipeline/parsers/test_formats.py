"""Each format is read as its model meant it, in whatever pieces it comes; what is no call is content."""

import json
import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiserver.pipeline.parsers import make_parser, names
from apiserver.pipeline.parsers.names import UnknownParser
from apiserver.requests import FORCED_CALL, FORCED_CALLS
from tests.unit.pipeline.parsers.formats import SAMPLES, Sample
from tests.unit.pipeline.parsers.reading import TIME, WEATHER, Read, cut, read, structure

FORMATS = sorted({sample.parser for sample in SAMPLES.values()})
# Whatever the formats are made of, in any order: the malformed, the unclosed and the nested.
FRAGMENTS = sorted({part for sample in SAMPLES.values() for part in re.findall(r"<[^>]*>|\[\w+\]|\w+|\W", sample.text)})
SHARES = [*FRAGMENTS, '{"name": "weather", "arguments": {', '"city": "x"', "}}", "weather(", "\\", "\\u12", '"', "  \n"]


def whole(sample: Sample, text: str | None = None) -> Read:
    how = structure(sample.parser, sample.reasoning_parser)
    return read(how, [sample.text if text is None else text], sample.prompt_end)


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
def test_a_format_is_read_as_it_was_meant(sample: Sample) -> None:
    found = whole(sample)
    assert (found.content, found.reasoning) == (sample.content, sample.reasoning)
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == sample.calls


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
def test_in_two_pieces_and_letter_by_letter_it_is_the_same(sample: Sample) -> None:
    how = structure(sample.parser, sample.reasoning_parser)
    expected = whole(sample)
    assert read(how, sample.text, sample.prompt_end) == expected
    for place in range(len(sample.text)):
        assert read(how, [sample.text[:place], sample.text[place:]], sample.prompt_end) == expected


@settings(deadline=None, max_examples=600)
@given(
    parser=st.sampled_from([*FORMATS, None]),
    reasoning=st.sampled_from([None, "qwen3", "deepseek-r1", "mistral", "gpt-oss", "kimi_k2"]),
    parts=st.lists(st.sampled_from(SHARES), max_size=30),
    borders=st.lists(st.integers(0, 500), max_size=20),
    parallel=st.booleans(),
)
def test_whatever_a_model_writes_is_the_same_in_any_pieces(
    parser: str | None, reasoning: str | None, parts: list[str], borders: list[int], parallel: bool
) -> None:
    how = structure(parser, reasoning, parallel=parallel)
    text = "".join(parts)
    found = read(how, [text])
    assert read(how, cut(text, borders)) == found == read(how, text)
    if not parallel:
        assert len(found.calls) <= 1


@settings(deadline=None, max_examples=300)
@given(name=st.sampled_from(sorted(SAMPLES)), end=st.integers(0, 400), more=st.sampled_from(["", "\n\nAnd so on."]))
def test_an_answer_that_breaks_off_loses_no_text(name: str, end: int, more: str) -> None:
    sample = SAMPLES[name]
    text = sample.text[:end] + more
    how = structure(sample.parser)  # without reasoning, so that what is no call must be content
    found = read(how, [text])
    assert read(how, text) == found
    if not found.calls and "<|" not in text:
        assert found.content == text


@settings(deadline=None, max_examples=200)
@given(parser=st.sampled_from(FORMATS), text=st.text(alphabet="ab <[{(\"'\n\\/|", max_size=60))
def test_text_without_a_call_is_content_as_it_stands(parser: str, text: str) -> None:
    how = structure(parser)
    if read(how, [text]).calls == []:
        assert read(how, text).content == text


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", "<tool_call>not JSON</tool_call>"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "time", "arguments": 5}</tool_call>'),
        ("hermes", '<tool_call>{"name": "time", "arguments": "no object"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "time" "arguments"}'),
        ("hermes", "Write <tool_call"),
        ("qwen3_coder", "<tool_call>\nsomething"),
        ("qwen3_coder", "<function=>x"),
        ("qwen3_coder", f"<function={'x' * 300}>"),
        ("llama3_json", '{"name": "stranger", "parameters": {}}'),
        ("llama3_json", '{"name": "time", "stranger": {}}'),
        ("llama3_json", '{"name": "time", "parameters"'),
        ("pythonic", "[stranger(a=1)]"),
        ("pythonic", "[time(1)]"),
        ("pythonic", "[time(a=b)]"),
        ("pythonic", "[time(**{})]"),
        ("pythonic", "[time(a=1e999)]"),
        ("pythonic", "[time(a={**b})]"),
        ("pythonic", "[time(a='x]"),
        ("pythonic", "[time(a=(]"),
        ("pythonic", f"[time(a={'(' * 200})]"),
        ("pythonic", "<|python_start|>time()"),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS]name without arguments"),
        ("mistral", "[TOOL_CALLS][nothing]"),
        ("deepseekv3", "<｜tool▁calls▁begin｜>function"),
        ("deepseekv3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"),
        ("deepseekv3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>time\nno fence"),
        ("deepseekv32", "<｜DSML｜function_calls>nothing"),
        ("deepseekv32", "<｜DSML｜function_calls><｜DSML｜invoke nameless>"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>x"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>x<|tool_call_argument_begin|>5"),
        ("glm45", "<tool_call></tool_call>"),
        ("glm45", "<tool_call>time\nnothing"),
        (FORCED_CALLS, "[5]"),
        (FORCED_CALLS, "no list"),
    ],
)
def test_what_is_no_call_is_content(parser: str, text: str) -> None:
    assert read(structure(parser), [text]) == read(structure(parser), text) == Read(text, "", [])


@pytest.mark.parametrize(
    ("parser", "text", "arguments", "content"),
    [
        ("hermes", '<tool_call>{"name": "time", "arguments": {"a": 1,}}</tool_call>', '{"a": 1,', "}}</tool_call>"),
        ("hermes", '<tool_call>{"name": "time", "arguments": {"a": nul}', '{"a": nul', "}"),
        ("hermes", '<tool_call>{"name": "time", "arguments": {"a" 1}', '{"a" ', "1}"),
        ("hermes", '<tool_call>{"name": "time", "arguments": {"a": [1 2]}', '{"a": [1 ', "2]}"),
        ("hermes", '<tool_call>{"name": "time", "arguments": {"a": "x', '{"a": "x', ""),
        ("hermes", '<tool_call>{"name": "time", "arguments": {}, "arguments": {}}', "{}", "{}}"),
        ("gpt-oss", "<|channel|>commentary to=functions.time<|message|>none<|end|>", "", "none"),
        ("qwen3_coder", "<function=time>\n<parameter=a", "", "<parameter=a"),
        ("qwen3_coder", "<function=time>\n<parameter=a>\n1", "", ""),
        ("qwen3_coder", "<function=weather>\n<parameter=city>\nPar", '{"city": "Par', ""),
        ("qwen3_coder", "<function=time>\nwhat?", "{}", "what?"),
        ("glm45", "<tool_call>time<arg_key>a</arg_key>b", "", "<arg_key>a</arg_key>b"),
        ("glm45", "<tool_call>weather<arg_key>city</arg_key><arg_value>Par", '{"city": "Par', ""),
        ("glm45", "<tool_call>time</tool_call>.", "{}", "."),
        ("deepseekv32", '<｜DSML｜function_calls><｜DSML｜invoke name="time">', "", ""),
        (
            "deepseekv32",
            '<｜DSML｜function_calls><｜DSML｜invoke name="time"><｜DSML｜parameter x>',
            "",
            "<｜DSML｜parameter x>",
        ),
        ("deepseekv31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>{5", "{", "5"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>time<|tool_call_argument_begin|>{5", "{", "5"),
        ("gpt-oss", "<|channel|>commentary to=functions.time<|message|>{} and<|end|>", "{}", "and"),
    ],
)
def test_a_call_that_breaks_off_ends_there_and_the_rest_is_content(
    parser: str, text: str, arguments: str, content: str
) -> None:
    found = read(structure(parser), [text])
    assert found == read(structure(parser), text)
    assert [call[1] for call in found.calls] == [arguments]
    assert found.content == content


def test_a_tool_that_there_is_not_is_called_all_the_same() -> None:
    """An agent answers such a call with an error, and the model tries again; as text it would end the conversation."""
    assert read(structure("hermes"), ['<tool_call>{"name": "x", "arguments": {}}</tool_call>']).calls == [("x", "{}")]


def test_what_models_get_wrong_in_strings_is_put_right() -> None:
    text = '<tool_call>{"name": "time", "arguments": {"a": "1\n2\t3 \\d \\u12 \\u00e9 \\""}}</tool_call>'
    [(_, arguments)] = read(structure("hermes"), text).calls
    assert json.loads(arguments) == {"a": '1\n2\t3 \\d \\u12 é "'}


def test_a_lone_surrogate_in_a_name_is_replaced() -> None:
    [(name, _)] = read(structure("hermes"), ['<tool_call>{"name": "a\\ud83d", "arguments": {}}</tool_call>']).calls
    name.encode()


def test_a_parameter_that_comes_twice_keeps_both_values() -> None:
    text = "<tool_call>weather" + "<arg_key>city</arg_key><arg_value>x</arg_value>" * 2 + "</tool_call>"
    assert json.loads(read(structure("glm45"), text).calls[0][1]) == {"city": "x", "city_": "x"}


def test_calls_behind_the_first_are_dropped_where_only_one_is_allowed() -> None:
    sample = SAMPLES["hermes, two"]
    assert len(read(structure(sample.parser, parallel=False), sample.text).calls) == 1


@pytest.mark.parametrize(
    ("parser", "prompt_end", "thinking", "text", "reasoning", "content"),
    [
        ("qwen3", "<|im_start|>assistant\n", None, "<think>\nHm\n</think>\n\nYes", "Hm", "Yes"),
        ("qwen3", "<|im_start|>assistant\n", None, "Yes <think> no", "", "Yes <think> no"),
        ("qwen3", "assistant\n<think>\n", None, "Hm</think>Yes", "Hm", "Yes"),
        ("qwen3", "assistant\n<think>\n", None, "<think>Hm</think>Yes", "Hm", "Yes"),
        ("qwen3", "assistant\n<think>\n\n</think>\n\n", None, "Yes", "", "Yes"),
        ("qwen3", "user: what is <think>? assistant:", None, "Yes", "", "Yes"),
        ("deepseek-r1", "assistant", None, "Hm</think>Yes", "Hm", "Yes"),
        ("deepseek-r1", "assistant", False, "Yes", "", "Yes"),
        ("deepseek-r1", "assistant</think>", None, "Yes", "", "Yes"),
        ("deepseek-r1", "a", None, "Hm, and then it was cut ", "Hm, and then it was cut ", ""),
        ("gpt-oss", "", None, "plain", "", "plain"),
        ("gpt-oss", "", None, "<|channel|>analysis<|end|>x", "", "analysisx"),
        ("gpt-oss", "", None, "<|message|>Yes<|channel|>analysis<|message|>Hm", "Hm", "Yes"),
        ("gpt-oss", "", None, "<|channel|>commentary to=python<|message|>1+1<|call|>", "", "1+1"),
    ],
)
def test_the_prompt_and_the_model_say_where_reasoning_begins(
    parser: str, prompt_end: str, thinking: bool | None, text: str, reasoning: str, content: str
) -> None:
    how = structure(None, parser, thinking=thinking)
    assert read(how, [text], prompt_end) == read(how, text, prompt_end) == Read(content, reasoning, [])


def test_calls_that_are_not_read_are_content() -> None:
    text = '<|channel|>commentary to=functions.time<|message|>{"a": 1}<|call|>'
    assert read(structure(None, "gpt-oss"), text) == Read('{"a": 1}', "", [])
    assert read(structure("gpt-oss"), f"<|channel|>analysis<|message|>Hm<|end|>{text}").content == "Hm"


def test_forced_answers_are_calls_and_nothing_else() -> None:
    text = '[{"name": "time", "parameters": {}}, {"name": "weather", "parameters": {"city": "x"}}]'
    assert read(structure(FORCED_CALLS), text) == Read("", "", [("time", "{}"), ("weather", '{"city": "x"}')])
    assert read(structure(FORCED_CALLS, "gpt-oss"), text).calls[0] == ("time", "{}"), "there are no channels then"
    thought = read(structure(FORCED_CALLS, "qwen3"), [f"<think>Hm.</think>\n\n{text}"])
    assert (thought.content, thought.reasoning, len(thought.calls)) == ("", "Hm.", 2)
    how = structure(FORCED_CALL, tools=(WEATHER,))
    assert read(how, '{"city": "x"}') == Read("", "", [("weather", '{"city": "x"}')])
    assert read(how, '{"city": "x').calls == [("weather", '{"city": "x')]


@pytest.mark.parametrize("name", names.TOOL_CALL_NAMES)
def test_every_name_of_a_tool_call_parser_is_one(name: str) -> None:
    assert read(structure(name, tools=(TIME,)), "Hi there") == Read("Hi there", "", [])


@pytest.mark.parametrize("name", names.REASONING_NAMES)
def test_every_name_of_a_reasoning_parser_is_one(name: str) -> None:
    found = read(structure(None, name), "Hi there")
    assert found.content + found.reasoning == "Hi there"


def test_an_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(UnknownParser, match=r"'x'; there are hermes, .*gpt-oss"):
        make_parser(structure("x"))
    with pytest.raises(UnknownParser, match=r"'x'; there are qwen3, "):
        make_parser(structure(None, "x"))


@pytest.mark.parametrize("name", ["hermes, tricky", "qwen3_xml, code", "pythonic", "deepseekv3", "gpt-oss", "glm47"])
def test_the_work_is_linear_in_the_text(name: str) -> None:
    """Counted, not timed: calls of functions, and characters that the source holds."""
    sample = SAMPLES[name]
    once, twice = (_work(sample, size) for size in (2000, 4000))
    assert twice <= 2.1 * once


def _work(sample: Sample, size: int) -> int:
    text = sample.text.replace("city", "city" * size, 1) + "\n" * size + "x<" * size
    parser: Any = make_parser(structure(sample.parser, sample.reasoning_parser), sample.prompt_end)
    count = 0

    def counting(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += 1

    longest = 0
    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        for char in text:
            parser.feed(char)
            longest = max(longest, len(parser._source._buffer))
        parser.end()
    finally:
        sys.setprofile(before)
    assert longest < 600, "no more is held than a name may be long"
    return count
