"""The System One decision API: POST /v1/systemone."""

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
    as_text,
    check_options,
    check_questions,
    decision_job,
    read,
)
from apiserver.protocol.decoding import check_range, read_fields
from apiserver.protocol.exchange import Body, Unary
from apiserver.requests import ScoreJob


class SystemOneQuestion(msgspec.Struct, kw_only=True):
    type: str
    instructions: Any = None
    criteria: Any = None


class SystemOneFields(msgspec.Struct, kw_only=True):
    state: Any
    questions: dict[str, SystemOneQuestion]
    model: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: int | None = None


IGNORED_IN_SYSTEMONE = frozenset(("cache_salt", "user", "metadata"))
_decoder = msgspec.json.Decoder(SystemOneFields)


class SystemOne(Unary):
    """One System One request; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/systemone"
    fields: ClassVar = (SystemOneFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _decoder, card, ignored=IGNORED_IN_SYSTEMONE)
        self._model = card.resolve(fields.model)
        check_range("priority", fields.priority, -(2**63), 2**63 - 1)
        check_questions(fields.questions, card)
        named = {name: _question(asked, f"questions.{name}") for name, asked in fields.questions.items()}
        self._questions = named
        state, variables = as_text(fields.state), fields.chat_template_kwargs or {}
        self._job = decision_job(state, list(named.values()), variables, fields.priority or 0)

    @property
    def job(self) -> ScoreJob:
        return self._job

    def body(self, result: Result) -> Body:
        answers = {
            name: _answer(question, read(result.scores[index].logprobs))
            for index, (name, question) in enumerate(self._questions.items())
        }
        usage = {"input_tokens": result.prompt_tokens, "output_tokens": 0}
        return Body({"model": self._model, "answers": answers, "usage": usage})

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


def _question(asked: SystemOneQuestion, param: str) -> Question:
    text, criteria, where = as_text(asked.instructions), asked.criteria, f"{param}.criteria"
    match asked.type:
        case "noul":
            sides = cast(dict[str, Any], {} if criteria is None else criteria)
            if not isinstance(criteria, dict | None) or not sides.keys() <= {"true", "false"}:
                raise InvalidRequest(f"{where} may describe true and false, and nothing else.", param=where)
            options = (Option("yes", as_text(sides.get("true"))), Option("no", as_text(sides.get("false"))))
            return Question("yes_no", text, options, param)
        case "choice":
            if not isinstance(criteria, dict):
                raise InvalidRequest(f"{where} must map each choice to its description, or to null.", param=where)
            choices = [Option(name, as_text(about)) for name, about in cast(dict[str, Any], criteria).items()]
            check_options(choices, 2, MOST_CHOICES, where)
            return Question("choice", text, tuple(choices), param)
        case "score":
            if not isinstance(criteria, list):
                raise InvalidRequest(f"{where} must be a list of levels, from the lowest on.", param=where)
            levels = [Option(as_text(level)) for level in cast(list[Any], criteria)]
            check_options(levels, 2, MOST_LEVELS, where)
            return Question("score", text, tuple(levels), param)
        case _:
            raise InvalidRequest(
                f"{param}.type must be noul, choice or score, not {shown(asked.type)}.", param=f"{param}.type"
            )


def _answer(question: Question, reading: Reading) -> dict[str, Any]:
    probabilities = reading.probabilities
    names = [option.name for option in question.options]
    match question.kind:
        case "yes_no":
            return {"type": "noul", "noul": probabilities[0]}
        case "choice":
            return {
                "type": "choice",
                "choice": names[reading.best],
                "probabilities": dict(zip(names, probabilities, strict=True)),
                "confidence": reading.confidence,
            }
        case "score":
            return {
                "type": "score",
                "score": reading.expected,
                "legend": {str(level): name for level, name in enumerate(names)},
                "probabilities": {str(level): each for level, each in enumerate(probabilities)},
                "confidence": reading.confidence,
            }
