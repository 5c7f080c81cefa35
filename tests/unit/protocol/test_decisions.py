"""Decisions in OpenAI's form, SGLang's and System One's: one question, one prompt, one set of labels."""

import json
import math
from typing import Any

import pytest

from apiserver.errors import InvalidRequest
from apiserver.events import PreparedPrompt, Result, Scored, Started
from apiserver.protocol.deciding import read
from apiserver.protocol.decisions import Decisions
from apiserver.protocol.exchange import Exchange
from apiserver.protocol.forms import QuestionForms
from apiserver.protocol.sglang_decisions import SGLangDecisions
from apiserver.protocol.systemone import SystemOne
from apiserver.requests import Chat, ScoreJob
from tests.unit.protocol.cards import make_card

DECISIONS = QuestionForms(SGLangDecisions, Decisions)
PREDICATE = {"type": "predicate", "instructions": "It rains."}
CHOICE = {
    "type": "choice",
    "name": "team",
    "instructions": "Who?",
    "choices": [{"value": "a", "description": "first"}, {"value": True}, {"value": "true"}],
}
SCORE = {"type": "score", "instructions": "How much?", "levels": [{"label": "low"}, {"label": "high"}]}
OWN = {"id": "q", "type": "choice", "question": "Who?", "options": [{"name": "a"}, {"name": "b", "description": "bee"}]}


def exchange(dialect: Any, **fields: Any) -> Exchange:
    return dialect(json.dumps(fields).encode(), make_card())


def job(dialect: Any, **fields: Any) -> ScoreJob:
    made = exchange(dialect, **fields).job
    assert isinstance(made, ScoreJob)
    return made


def said(made: ScoreJob, number: int = 0) -> str:
    prompt = made.prompts[number]
    assert isinstance(prompt, Chat)
    return prompt.messages[0]["content"]


def answer(made: Exchange, *probabilities: tuple[float, ...]) -> dict[str, Any]:
    result = Result()
    result.feed(Started([PreparedPrompt.of([1, 2, 3], None) for _ in probabilities]))
    for index, each in enumerate(probabilities):
        result.feed(Scored(index, tuple(map(math.log, each)), tuple(range(len(each)))))
    return json.loads(json.dumps(made.body(result).document))


TEXT, REFUSAL = {"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "no"}


# ---- what is asked ----


def test_each_question_is_a_prompt_with_the_input_first() -> None:
    made = job(DECISIONS, input="Wet.", questions=[PREDICATE, CHOICE, SCORE])
    assert made.label_texts == [("yes", "no"), ("A", "B", "C"), ("0", "1")]
    assert said(made, 0) == "Wet.\n\nIs the following true? It rains.\nAnswer with yes or no only."
    assert said(made, 1) == (
        'Wet.\n\nQuestion: Who?\nA: a - first\nB: true\nC: "true"\nAnswer with the letter of one option only.'
    )
    assert said(made, 2) == "Wet.\n\nQuestion: How much?\n0: low\n1: high\nAnswer with the number of one level only."
    assert all(isinstance(prompt, Chat) and prompt.variables["enable_thinking"] is False for prompt in made.prompts)
    assert [prompt.param for prompt in made.prompts] == ["questions[0]", "questions[1]", "questions[2]"]


def test_the_three_dialects_ask_in_the_same_words() -> None:
    openai_form: dict[str, Any] = {"type": "choice", "instructions": "Who?"}
    openai_form["choices"] = [{"value": "a"}, {"value": "b", "description": "bee"}]
    first = job(DECISIONS, input="Wet.", questions=[openai_form])
    second = job(DECISIONS, input="Wet.", questions=[OWN])
    system_one = {"q": {"type": "choice", "instructions": "Who?", "criteria": {"a": None, "b": "bee"}}}
    third = job(SystemOne, state="Wet.", questions=system_one)
    assert said(first) == said(second) == said(third)
    assert first.label_texts == second.label_texts == third.label_texts


def test_yes_and_no_can_be_described() -> None:
    own = {"id": "q", "type": "yes_no", "question": "Rain?", "yes": "wet", "no": {"is": "dry"}}
    noul = {"q": {"type": "noul", "instructions": "Rain?", "criteria": {"true": "wet", "false": {"is": "dry"}}}}
    first, second = job(DECISIONS, input="x", questions=[own]), job(SystemOne, state="x", questions=noul)
    assert said(first) == said(second)
    assert said(first).endswith('Rain?\nyes: wet\nno: {"is":"dry"}\nAnswer with yes or no only.')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([{"type": None, "role": "user", "content": "Hi"}], "Hi"),
        (
            [{"type": None, "role": "user", "content": "Hi"}, {"type": None, "role": "system", "content": "Be"}],
            "user: Hi\n\nsystem: Be",
        ),
        ("Hello", "Hello"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b", "type": "message"}], "a\n\nb"),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "a"}, {"type": "input_json", "data": {"b": 1}}],
                }
            ],
            'a\n{"b":1}',
        ),
        (
            [
                {"role": "system", "content": "rules"},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "5"},
                {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "x"},
                {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "y"}]},
                {
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "z"}, {"type": "refusal", "refusal": "no"}],
                },
            ],
            "system: rules\n\nassistant calls f: {}\n\nf returns: 5\n\nassistant calls g: x\n\ng returns: y\n\n"
            "assistant: z\nno",
        ),
    ],
)
def test_the_input_may_be_a_conversation(value: Any, text: str) -> None:
    assert said(job(DECISIONS, input=value, questions=[PREDICATE])).startswith(f"{text}\n\n")


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ([], "input"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "nonsense"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": ["x"]}], "input[0].content[0]"),
        ([{"role": "user", "content": 5}], "input[0].content"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"role": "nobody", "content": "x"}], "input[0]"),
        ([{"type": 5}], "input[0].type"),
        ([{"type": "nonsense"}], "input[0].type"),
        ([{"type": "function_call_output", "call_id": "1", "output": "5"}], "input[0].call_id"),
        ([{"type": "function_call", "call_id": "1", "name": "f"}], "input[0].arguments"),
    ],
)
def test_an_input_that_is_none_is_named(value: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        exchange(DECISIONS, input=value, questions=[PREDICATE])
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("question", "param"),
    [
        ({"type": "nonsense", "instructions": "x"}, "questions[0].type"),
        ({"type": "choice", "instructions": "x"}, "questions[0].choices"),
        ({"type": "choice", "instructions": "x", "choices": [{"value": "a"}]}, "questions[0].choices"),
        ({"type": "choice", "instructions": "x", "choices": [{"value": "a"}] * 2}, "questions[0].choices"),
        (
            {"type": "choice", "instructions": "x", "choices": [{"value": "a"}, {"value": 5}]},
            "questions[0].choices[1].value",
        ),
        (
            {"type": "choice", "instructions": "x", "choices": [{"value": str(n)} for n in range(27)]},
            "questions[0].choices",
        ),
        (
            {"type": "score", "instructions": "x", "levels": [{"label": "x"}] * 11},
            "questions[0].levels",
        ),
        ({"type": "predicate"}, "questions[0].instructions"),
        ({"id": "q", "type": "nonsense"}, "questions[0].type"),
        ({"id": "q", "type": "choice", "options": [{"name": "a"}]}, "questions[0].options"),
        ({"id": "q", "type": "score", "levels": ["a"]}, "questions[0].levels"),
    ],
)
def test_a_question_that_cannot_be_asked_is_named(question: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        exchange(DECISIONS, input="x", questions=[question])
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"questions": []}, "questions"),
        ({"questions": [OWN, OWN]}, "questions"),
        ({"questions": [OWN], "input": " "}, "input"),
        ({"questions": [OWN], "temperature": 0}, "temperature"),
        ({"questions": [OWN], "images": ["x"]}, "images"),
        ({"questions": [OWN], "prompt_format_version": 2}, "prompt_format_version"),
        ({"questions": 5}, "questions"),
    ],
)
def test_what_is_wrong_beside_the_questions_is_named_too(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        exchange(DECISIONS, **{"input": "x", **fields})
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("question", "param"),
    [
        ({"type": "nonsense"}, "questions.q.type"),
        ({"type": "choice", "criteria": ["a"]}, "questions.q.criteria"),
        ({"type": "choice", "criteria": {"a": None}}, "questions.q.criteria"),
        ({"type": "score", "criteria": {"a": None}}, "questions.q.criteria"),
        ({"type": "noul", "criteria": ["a"]}, "questions.q.criteria"),
        ({"type": "noul", "criteria": {"maybe": "a"}}, "questions.q.criteria"),
    ],
)
def test_system_one_names_what_is_wrong(question: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        exchange(SystemOne, state="x", questions={"q": question})
    assert raised.value.param == param


# ---- how it is answered ----


def test_openais_answers_come_in_the_order_of_the_questions() -> None:
    made = exchange(DECISIONS, input="x", model="second", questions=[PREDICATE, CHOICE, SCORE])
    body = answer(made, (0.3, 0.1), (0.1, 0.1, 0.2), (0.25, 0.75))
    predicate, choice, score = body["answers"]
    assert predicate == {"type": "predicate", "name": None, "probability": pytest.approx(0.75)}
    assert (choice["type"], choice["name"], choice["choice"]) == ("choice", "team", "true")
    assert [each["value"] for each in choice["probabilities"]] == ["a", True, "true"]
    assert [each["probability"] for each in choice["probabilities"]] == pytest.approx([0.25, 0.25, 0.5])
    assert choice["confidence"] == pytest.approx(0.25)
    assert score["score"] == pytest.approx(0.75)
    assert score["probabilities"][1] == {"value": 1, "label": "high", "probability": pytest.approx(0.75)}
    assert body["model"] == "second"
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"], body["usage"]["total_tokens"]) == (9, 0, 9)


def test_sglangs_answers_have_the_questions_ids() -> None:
    questions = [
        OWN,
        {"id": "s", "type": "score", "question": "?", "levels": ["low", {"a": 1}]},
        {"id": "y", "type": "yes_no", "question": "?"},
    ]
    made = exchange(DECISIONS, input={"a": 1}, questions=questions, return_prompt_token_ids=True)
    body = answer(made, (0.2, 0.3), (0.5, 0.5), (0.1, 0.3))
    assert (body["object"], body["prompt_format_version"]) == ("decisions", 1)
    assert body["answers"]["q"] == {
        "type": "choice",
        "choice": "b",
        "probabilities": {"a": pytest.approx(0.4), "b": pytest.approx(0.6)},
        "label_mass": pytest.approx(0.5),
        "prompt_token_ids": [1, 2, 3],
        "label_token_ids": [0, 1],
    }
    assert body["answers"]["s"]["score"] == pytest.approx(0.5)
    assert body["answers"]["y"]["probabilities"] == {"yes": pytest.approx(0.25), "no": pytest.approx(0.75)}


def test_system_ones_answers_too() -> None:
    questions = {
        "n": {"type": "noul", "instructions": "?"},
        "c": {"type": "choice", "criteria": {"a": None, "b": None}},
        "s": {"type": "score", "criteria": ["low", "high"]},
    }
    body = answer(exchange(SystemOne, state=["x"], questions=questions), (0.6, 0.2), (0.2, 0.3), (0.5, 0.0001))
    assert body["answers"]["n"] == {"type": "noul", "noul": pytest.approx(0.75)}
    assert (body["answers"]["c"]["choice"], body["answers"]["c"]["confidence"]) == ("b", pytest.approx(0.2))
    assert body["answers"]["s"]["legend"] == {"0": "low", "1": "high"}
    assert body["answers"]["s"]["score"] == pytest.approx(0.0002, abs=1e-4)
    assert body["usage"] == {"input_tokens": 9, "output_tokens": 0}


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_probabilities_add_up_whatever_the_temperature(temperature: float) -> None:
    reading = read((-1.0, -700.0, -9999.0, -3.0), temperature)
    assert math.fsum(reading.probabilities) == pytest.approx(1)
    assert reading.best == 0
    assert 0 <= reading.confidence <= 1
