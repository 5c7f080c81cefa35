"""The official client of OpenAI and a real model: what its helpers make of every API."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.e2e.test_openai_client import all_valid, valid
from tests.e2e.test_tools import TOOL
from tests.pool import Pool

pytestmark = [pytest.mark.e2e, pytest.mark.model]

ASKED: Any = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0}


class Capital(BaseModel):
    city: str


@pytest.mark.exercises("openai-python", "/v1/chat/completions", "a real model, whole and by the stream helper")
def test_a_chat_is_the_same_whole_and_by_the_stream_helper(smollm2_pool: Pool) -> None:
    chats = smollm2_pool.openai.chat.completions
    whole = chats.create(messages=ASKED, max_tokens=24, **GREEDY)
    valid(whole)
    with chats.stream(messages=ASKED, max_tokens=24, **GREEDY) as stream:
        built = stream.get_final_completion()
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert "Paris" in (whole.choices[0].message.content or "")
    all_valid(chats.create(messages=ASKED, max_tokens=4, stream=True, **GREEDY))


@pytest.mark.exercises("openai-python", "/v1/chat/completions", "structured outputs (`parse`, json_schema)")
def test_a_structured_output_is_parsed(smollm2_pool: Pool) -> None:
    parse = smollm2_pool.openai.chat.completions.parse
    [choice] = parse(messages=ASKED, max_tokens=60, response_format=Capital, **GREEDY).choices
    assert isinstance(choice.message.parsed, Capital)


@pytest.mark.exercises("openai-python", "/v1/chat/completions", "a forced tool call by a real model's grammar")
def test_a_forced_call_has_its_arguments(smollm2_pool: Pool) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    create = smollm2_pool.openai.chat.completions.create
    [choice] = create(messages=ASKED, max_tokens=60, tools=[TOOL], tool_choice=named, **GREEDY).choices
    calls: Any = choice.message.tool_calls
    assert [list(json.loads(call.function.arguments)) for call in calls] == [["city"]]


@pytest.mark.exercises("openai-python", "/v1/completions", "a real model, whole and streamed")
def test_a_completion_is_the_same_whole_and_streamed(smollm2_pool: Pool) -> None:
    create = smollm2_pool.openai.completions.create
    whole = create(prompt="The capital of France is", max_tokens=8, **GREEDY)
    valid(whole)
    chunks = create(prompt="The capital of France is", max_tokens=8, stream=True, **GREEDY)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert "Paris" in whole.choices[0].text


@pytest.mark.exercises("openai-python", "/v1/responses", "a real model: whole, the stream helper, a conversation")
def test_a_response_is_streamed_and_continued(smollm2_pool: Pool) -> None:
    responses = smollm2_pool.openai.responses
    whole = responses.create(input="What is the capital of France?", max_output_tokens=24, **GREEDY)
    valid(whole)
    with responses.stream(input="What is the capital of France?", max_output_tokens=24, **GREEDY) as stream:
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert "Paris" in whole.output_text
    more = responses.create(input="And of Italy?", previous_response_id=whole.id, max_output_tokens=24, **GREEDY)
    assert more.previous_response_id == whole.id
    assert more.output_text


@pytest.mark.exercises("openai-python", "/v1/responses", "structured outputs (`parse`)")
def test_a_response_with_a_schema_is_parsed(smollm2_pool: Pool) -> None:
    parse = smollm2_pool.openai.responses.parse
    response = parse(input="What is the capital of France?", max_output_tokens=60, text_format=Capital, **GREEDY)
    assert isinstance(response.output_parsed, Capital)


@pytest.mark.exercises("openai-python", "/v1/decisions", "a real model")
def test_a_decision_is_made(smollm2_pool: Pool) -> None:
    choices: Any = [{"value": "Paris"}, {"value": "Rome"}]
    question: Any = {"type": "choice", "name": "city", "instructions": "Which is France's capital?", "choices": choices}
    decisions: Any = smollm2_pool.openai.decisions
    assert valid(decisions.create(model="smollm2", input="Geography.", questions=[question]))
