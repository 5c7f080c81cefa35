"""What our structural tags say to xgrammar, the one that SGLang brings, and to a running SGLang."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

import json
from collections.abc import Iterator
from typing import Any

import pytest

from apiserver.pipeline.constrain import constrain
from apiserver.requests import FORCED_CALLS, Structure
from engine_bridge.wire import Capabilities, SamplingParams
from tests.pool import Pool, running_pool
from tests.sglang.test_pool import wait_ready
from tests.sglang.tiny_models import CPU_FLAGS, directory
from tests.strict_calls import BY_PARSER, TOOLS, Calls

ABLE = Capabilities("generate", 100, 259, tag_formats=True)
OPEN = "assistant\n<think>\n"
SCHEMA = SamplingParams(json_schema='{"type": "array", "items": {"type": "integer"}, "minItems": 1}')


def accepts(params: SamplingParams, structure: Structure, text: str, prompt_end: str = "") -> bool:
    import xgrammar
    from xgrammar.testing import _is_grammar_accept_string

    tag = constrain(params, structure, prompt_end, ABLE).structural_tag
    assert tag is not None
    return _is_grammar_accept_string(xgrammar.Grammar.from_structural_tag(tag), text)


@pytest.mark.parametrize(("parser", "calls"), [(name, calls) for name, many in BY_PARSER.items() for calls in many])
def test_calls_of_a_strict_tool_keep_its_schema(parser: str, calls: Calls) -> None:
    structure = Structure(None, parser, TOOLS)
    for text, may_be in ((calls.right, True), (calls.wrong, False), (calls.free, True), ("No < call.", True)):
        assert accepts(SamplingParams(), structure, text) is may_be, text
        thinks = Structure("qwen3", parser, TOOLS)
        assert accepts(SamplingParams(), thinks, f"I could. {calls.wrong} No.</think>\n\n{text}", OPEN) is may_be, text
    assert accepts(SamplingParams(), structure, calls.right + calls.right)
    assert not accepts(SamplingParams(), structure, calls.right + calls.wrong)


@pytest.mark.parametrize(
    ("text", "prompt_end", "may_be"),
    [
        ("Hm [x] </thin\n</think>\n\n[1]", OPEN, True),
        ("</think>[1, 2]", OPEN, True),
        ("[1]", OPEN, False),
        ("Hm</think> so [1]", OPEN, False),
        ("Hm</think>\n\n[1] so", OPEN, False),
        ("[1]", "assistant\n", True),
        ("<think>\nHm\n</think>\n\n[1]", "assistant\n", True),
        ("Hm</think>[1]", "assistant\n", False),
    ],
)
def test_a_constraint_waits_for_the_end_of_the_reasoning(text: str, prompt_end: str, may_be: bool) -> None:
    assert accepts(SCHEMA, Structure("qwen3", FORCED_CALLS, TOOLS), text, prompt_end) is may_be


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (SamplingParams(regex="a+b"), "Hm</think>aab"),
        (SamplingParams(grammar='root ::= "yes" | "no"'), "Hm</think>no"),
        (SamplingParams(json_schema='{"type":"object"}'), 'Hm</think>{"any": [1, {}]}'),
    ],
)
def test_every_kind_of_constraint_waits(params: SamplingParams, text: str) -> None:
    assert accepts(params, Structure("qwen3"), text, OPEN)
    assert not accepts(params, Structure("qwen3"), text.partition(">")[2], OPEN)


# ---- a model of random weights, whose first token a bias decides ----

UNIT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "unit",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"of": {"enum": ["heat", "time"]}},
            "required": ["of"],
            "additionalProperties": False,
        },
    },
}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    flags = ("--engine", "sglang", "--api-server-count", "1", "--chat-template", TEMPLATE)
    parsers = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    output, model = tmp_path_factory.mktemp("tags") / "pool.log", str(directory("qwen2"))
    with running_pool(output, *flags, *parsers, model=model, engine=list(CPU_FLAGS), ready=False) as running:
        yield wait_ready(running)


def token_id(text: str) -> str:
    document = json.loads((directory("qwen2") / "tokenizer.json").read_text(encoding="utf-8"))
    return str(next(token["id"] for token in document["added_tokens"] if token["content"] == text))


def said(pool: Pool, prompt: str, first: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    bias = {token_id(first): 100}
    body = {"messages": messages, "tools": [UNIT], "max_tokens": 200, "logit_bias": bias, **fields}
    reply = pool.post("/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]


def is_whole(call: Any) -> bool:
    function = call["function"]
    return function["name"] == "unit" and json.loads(function["arguments"]) in ({"of": "heat"}, {"of": "time"})


def test_a_strict_tools_call_is_whole_from_its_opening_on(pool: Pool) -> None:
    for prompt in ("Hi<think>\n\n</think>\n\n", "Hi"):
        answer = said(pool, prompt, "<tool_call>")
        assert is_whole(answer["tool_calls"][0]), answer


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "unit"}}])
def test_a_forced_call_comes_behind_the_end_of_the_reasoning(pool: Pool, choice: Any) -> None:
    answer = said(pool, "Hi<think>\n", "</think>", tool_choice=choice)
    assert is_whole(answer["tool_calls"][0]), answer
    thinking = said(pool, "Hi<think>\n", "<tool_call>", tool_choice=choice, max_tokens=8)
    assert not thinking.get("tool_calls"), "it may think as long as it likes"


def test_without_reasoning_a_forced_call_comes_at_once(pool: Pool) -> None:
    answer = said(pool, "Hi<think>\n\n</think>\n\n", "<think>", tool_choice="required")
    assert is_whole(answer["tool_calls"][0]), answer
    assert not answer.get("reasoning")
