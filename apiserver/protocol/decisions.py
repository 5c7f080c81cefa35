"""OpenAI's Decisions API: POST /v1/decisions (openai-python's `client.decisions`)."""

from typing import Any, ClassVar, cast

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest, shown
from apiserver.events import Result
from apiserver.protocol import openai
from apiserver.protocol.deciding import (
    MOST_CHOICES,
    MOST_LEVELS,
    Option,
    Question,
    Reading,
    check_options,
    check_questions,
    decision_job,
    read,
)
from apiserver.protocol.decision_input import input_text, parts_text
from apiserver.protocol.decoding import check_range, read_fields
from apiserver.protocol.exchange import Body, Unary
from apiserver.requests import ScoreJob


class ChoiceFields(msgspec.Struct):
    value: Any = None
    description: str | None = None


class LevelFields(msgspec.Struct):
    label: str
    description: str | None = None


class QuestionFields(msgspec.Struct, kw_only=True):
    type: str
    instructions: str | list[dict[str, Any]]
    name: str | None = None
    choices: list[ChoiceFields] | None = None
    levels: list[LevelFields] | None = None


class DecisionFields(msgspec.Struct, kw_only=True):
    input: str | list[dict[str, Any]]
    questions: list[QuestionFields]
    model: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: int | None = None


IGNORED_IN_DECISIONS = frozenset(
    ("prompt_cache_key", "prompt_cache_options", "safety_identifier", "cache_salt", "user", "metadata")
)
_decoder = msgspec.json.Decoder(DecisionFields)


class Decisions(Unary):
    """One decision request; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/decisions"
    fields: ClassVar = (DecisionFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _decoder, card, ignored=IGNORED_IN_DECISIONS)
        self._model = card.resolve(fields.model)
        check_range("priority", fields.priority, -(2**63), 2**63 - 1)
        self._asked = fields.questions
        check_questions(fields.questions, card)
        questions = [_question(asked, f"questions[{number}]") for number, asked in enumerate(fields.questions)]
        state = input_text(fields.input)
        self._job = decision_job(state, questions, fields.chat_template_kwargs or {}, fields.priority or 0)

    @property
    def job(self) -> ScoreJob:
        return self._job

    def body(self, result: Result) -> Body:
        answers = [_answer(asked, read(result.scores[index].logprobs)) for index, asked in enumerate(self._asked)]
        usage = {
            "input_tokens": result.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": result.prompt_tokens,
        }
        return Body({"model": self._model, "answers": answers, "usage": usage})

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


def _question(asked: QuestionFields, param: str) -> Question:
    text = parts_text(asked.instructions, f"{param}.instructions")
    match asked.type:
        case "predicate":
            return Question("yes_no", text, (Option("yes"), Option("no")), param)
        case "choice":
            choices = [
                _choice(choice, f"{param}.choices[{number}]") for number, choice in enumerate(asked.choices or ())
            ]
            check_options(choices, 2, MOST_CHOICES, f"{param}.choices")
            return Question("choice", text, tuple(choices), param)
        case "score":
            levels = [Option(level.label, level.description or "") for level in asked.levels or ()]
            check_options(levels, 2, MOST_LEVELS, f"{param}.levels")
            return Question("score", text, tuple(levels), param)
        case _:
            raise InvalidRequest(
                f"{param}.type must be predicate, choice or score, not {shown(asked.type)}.", param=f"{param}.type"
            )


def _choice(choice: ChoiceFields, param: str) -> Option:
    """A text, or true or false, which is another value than the text "true"."""
    if isinstance(choice.value, bool):
        return Option(str(choice.value).lower(), choice.description or "")
    if not isinstance(choice.value, str):
        raise InvalidRequest(f"{param}.value must be a string or a boolean.", param=f"{param}.value")
    name = msgspec.json.encode(choice.value).decode() if choice.value in ("true", "false") else choice.value
    return Option(name, choice.description or "")


def _answer(asked: QuestionFields, reading: Reading) -> dict[str, Any]:
    head = {"type": asked.type, "name": asked.name}
    probabilities = reading.probabilities
    if asked.type == "predicate":
        return head | {"probability": probabilities[0]}
    if asked.type == "choice":
        values = [choice.value for choice in cast(list[ChoiceFields], asked.choices)]
        listed = [{"value": value, "probability": each} for value, each in zip(values, probabilities, strict=True)]
        own = {"choice": values[reading.best]}
    else:
        labels = [level.label for level in cast(list[LevelFields], asked.levels)]
        levels = enumerate(zip(labels, probabilities, strict=True))
        listed = [{"value": value, "label": label, "probability": each} for value, (label, each) in levels]
        own = {"score": reading.expected}
    return head | own | {"probabilities": listed, "confidence": reading.confidence}
