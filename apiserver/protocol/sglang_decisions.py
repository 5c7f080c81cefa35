"""SGLang's own form of decisions: POST /v1/decisions whose questions have `question` and `id`."""

from typing import Any, ClassVar

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest, shown
from apiserver.events import Result, Scored
from apiserver.protocol import openai
from apiserver.protocol.deciding import (
    MOST_CHOICES,
    MOST_LEVELS,
    Option,
    Question,
    as_text,
    check_options,
    check_questions,
    decision_job,
    read,
)
from apiserver.protocol.decoding import check_range, read_fields
from apiserver.protocol.exchange import Body, Unary
from apiserver.requests import ScoreJob

_FORMAT = 1


class OptionFields(msgspec.Struct):
    name: str
    description: Any = None


class SGLangQuestionFields(msgspec.Struct, kw_only=True):
    id: str
    type: str
    question: Any = None
    options: list[OptionFields] | None = None
    levels: list[Any] | None = None
    yes: Any = None
    no: Any = None


class SGLangDecisionFields(msgspec.Struct, kw_only=True):
    input: Any
    questions: list[SGLangQuestionFields]
    model: str | None = None
    temperature: float | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    prompt_format_version: int | None = None
    return_prompt_token_ids: bool | None = None
    priority: int | None = None
    # Known, and refused unless harmless.
    images: Any = None


HARMLESS_IN_SGLANG_DECISIONS: dict[str, tuple[Any, ...]] = {"images": ([],)}
IGNORED_IN_SGLANG_DECISIONS = frozenset(("rid", "user"))
_decoder = msgspec.json.Decoder(SGLangDecisionFields)


class SGLangDecisions(Unary):
    """One decision request; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/decisions"
    fields: ClassVar = (SGLangDecisionFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(
            raw, _decoder, card, harmless=HARMLESS_IN_SGLANG_DECISIONS, ignored=IGNORED_IN_SGLANG_DECISIONS
        )
        self._model = card.resolve(fields.model)
        check_range("temperature", fields.temperature, 0, 1e6, exclusive_low=True)
        check_range("priority", fields.priority, -(2**63), 2**63 - 1)
        check_range("prompt_format_version", fields.prompt_format_version, _FORMAT, _FORMAT)
        if not as_text(fields.input).strip():
            raise InvalidRequest("input must not be blank.", param="input")
        self._temperature = 1.0 if fields.temperature is None else fields.temperature
        self._with_ids = bool(fields.return_prompt_token_ids)
        check_questions(fields.questions, card)
        self._ids = [asked.id for asked in fields.questions]
        if len(set(self._ids)) < len(self._ids):
            raise InvalidRequest("questions holds an id twice.", param="questions")
        self._questions = [_question(asked, f"questions[{n}]") for n, asked in enumerate(fields.questions)]
        variables = fields.chat_template_kwargs or {}
        self._job = decision_job(as_text(fields.input), self._questions, variables, fields.priority or 0)

    @property
    def job(self) -> ScoreJob:
        return self._job

    def body(self, result: Result) -> Body:
        answers: dict[str, Any] = {}
        for index, question in enumerate(self._questions):
            answers[self._ids[index]] = self._answer(question, result.scores[index])
            if self._with_ids:
                answers[self._ids[index]]["prompt_token_ids"] = result.prompts[index].token_ids
                answers[self._ids[index]]["label_token_ids"] = result.scores[index].label_token_ids
        return Body(
            {
                "object": "decisions",
                "model": self._model,
                "prompt_format_version": _FORMAT,
                "answers": answers,
                "usage": openai.usage_counts(result.prompt_tokens, 0),
            }
        )

    def _answer(self, question: Question, scored: Scored) -> dict[str, Any]:
        reading = read(scored.logprobs, self._temperature)
        names = question.labels if question.kind == "score" else [option.name for option in question.options]
        document: dict[str, Any] = {
            "type": question.kind,
            "probabilities": dict(zip(names, reading.probabilities, strict=True)),
            "label_mass": reading.label_mass,
        }
        if question.kind == "choice":
            document["choice"] = names[reading.best]
        elif question.kind == "score":
            document["score"] = reading.expected
        return document

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


def _question(asked: SGLangQuestionFields, param: str) -> Question:
    text = as_text(asked.question)
    match asked.type:
        case "choice":
            options = [Option(option.name, as_text(option.description)) for option in asked.options or ()]
            check_options(options, 2, MOST_CHOICES, f"{param}.options")
            return Question("choice", text, tuple(options), param)
        case "score":
            levels = [Option(as_text(level)) for level in asked.levels or ()]
            check_options(levels, 2, MOST_LEVELS, f"{param}.levels")
            return Question("score", text, tuple(levels), param)
        case "yes_no":
            return Question("yes_no", text, (Option("yes", as_text(asked.yes)), Option("no", as_text(asked.no))), param)
        case _:
            raise InvalidRequest(
                f"{param}.type must be choice, score or yes_no, not {shown(asked.type)}.", param=f"{param}.type"
            )
