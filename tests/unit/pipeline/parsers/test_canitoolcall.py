"""The public fixtures of canitoolcall: recorded answers of many models. The table of the result is printed."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from canitoolcall.fixtures import Fixture, load_families, load_fixtures

from apiserver.requests import Structure
from tests.unit.pipeline.parsers.reading import Read, cut, read

PARSERS = {
    "deepseek": ("deepseek_v3", "deepseek-v3"),
    "glm": ("glm45", "glm45"),
    "gpt-oss": ("gpt-oss", "gpt-oss"),
    "kimi": ("kimi_k2", "kimi_k2"),
    "llama": ("llama3_json", None),
    "mistral": ("mistral", "mistral"),
    "qwen3-hermes": ("hermes", "qwen3"),
    "qwen3-xml": ("qwen3_coder", "qwen3"),
}
"""Families that we have no parser for: gemma4, and Kimi K3's own format."""

TRUNCATED = "arguments stream as they are made, so a call that max_tokens cut off has begun; it ends for its length"
BROKEN = "arguments stream as they are made, so a call whose JSON breaks off has begun; the rest is content"
BARE = "an opening marker with nothing behind it is content: no text is lost"
AS_TEXT = "markers that the model wrote as plain text are markers to a parser of text"
NO_END = "a value whose end tag is missing goes on"
KNOWN = {
    "deepseek/v32-truncated-second-parallel-call": TRUNCATED,
    "deepseek/v4-truncated-second-parallel-call": TRUNCATED,
    "deepseek/v41-truncated-second-parallel-call": TRUNCATED,
    "qwen3-hermes/truncated-second-parallel-call": TRUNCATED,
    "deepseek/vllm-v3-malformed-missing-brace": BROKEN,
    "mistral/v13think-stop-at-open-marker": BARE,
    "qwen3-xml/q38-truncated-at-tool-call-open": BARE,
    "gpt-oss/harmony-truncated-in-header": BARE,
    "gpt-oss/harmony-marker-in-reasoning": AS_TEXT,
    "gpt-oss/llamacpp-builtin-python-recipient": "a message to a tool of the system is content: no text is lost",
    "kimi/k2i-vllm-noise-between-markers": "text inside a section of calls breaks it off",
    "kimi/k2i-vllm-content-after-tool-section": "white space beside calls is no content",
    "glm/glm47-missing-last-close-arg-value": NO_END,
    "qwen3-xml/vllm-coder-missing-close-parameter": NO_END,
    "qwen3-xml/bug-missing-close-parameter-before-function": NO_END,
    "qwen3-xml/llamacpp-q35-call-inside-think": "what looks like a call inside reasoning is reasoning",
}


def of_our_families() -> Iterator[tuple[Fixture, Structure, str]]:
    families = load_families()
    for fixture in load_fixtures():
        model = fixture.reference_model
        if fixture.family not in PARSERS or "Kimi-K3" in model:
            continue
        calls, reasoning = PARSERS[fixture.family]
        if "Llama-4" in model:
            calls = "pythonic"
        elif fixture.family == "deepseek" and ("V3.2" in model or "V4" in model):
            calls = "deepseek_v32"
        elif "Magistral-Small-2506" in model:
            reasoning = "qwen3"
        known = families[fixture.family].reference_for(model)
        prompt_end = fixture.generation_prompt or (known.default_generation_prompt if known is not None else None) or ""
        tools: tuple[Any, ...] = tuple(dict(tool) for tool in fixture.tools)
        yield fixture, Structure(reasoning, calls, tools, fixture.thinking), prompt_end


def verdict(fixture: Fixture, found: Read) -> str:
    """pass, soft (but for white space at an end) or fail."""
    if fixture.expected is None:
        return "fail" if found.calls else "pass"
    expected = fixture.expected
    calls = [(name, _arguments(arguments)) for name, arguments in found.calls]
    if calls != [(call.name, call.arguments) for call in expected.tool_calls]:
        return "fail"
    told, wanted = (found.content, found.reasoning), (expected.content or "", expected.reasoning_content or "")
    if told == wanted:
        return "pass"
    return "soft" if [text.strip() for text in told] == [text.strip() for text in wanted] else "fail"


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def test_what_models_said_is_read_as_it_should_be_but_for_the_known_differences() -> None:
    table: dict[str, Counter[str]] = {family: Counter() for family in PARSERS}
    failed: list[str] = []
    for fixture, how, prompt_end in of_our_families():
        text = fixture.raw_output
        found = read(how, [text], prompt_end)
        places = random.Random(fixture.id)
        assert read(how, text, prompt_end) == found, fixture.id
        assert read(how, cut(text, [places.randrange(len(text) + 1) for _ in range(9)]), prompt_end) == found, (
            fixture.id
        )
        result = verdict(fixture, found)
        table[fixture.family][result] += 1
        if result == "fail" and not (fixture.expected is None and fixture.truncated):
            failed.append(fixture.id)
        elif result == "fail":
            table[fixture.family]["cut off"] += 1
    print(f"\n{'family':14}{'pass':>6}{'soft':>6}{'fail':>6}{'of them cut off':>17}")
    for family, counts in table.items():
        print(f"{family:14}{counts['pass']:>6}{counts['soft']:>6}{counts['fail']:>6}{counts['cut off']:>17}")
    assert sorted(failed) == sorted(KNOWN)
    total = sum(table.values(), Counter[str]())
    assert total["pass"] >= 340
    assert total["pass"] + total["soft"] >= 345
