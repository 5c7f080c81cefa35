"""Decision questions: what every decision API means by one, as a prompt whose next token is the answer.

A question has options with a label each; a label is one token, and an option's probability is that of its label among
the labels, as the next token of the model's reply. Nothing is generated. The questions of a request are prompts of one
job, so that many of them cost what many prompts cost.
"""

import math
import string
from collections.abc import Mapping, Sequence, Sized
from typing import Any, Literal

import msgspec

from apiserver.card import Card
from apiserver.errors import InvalidRequest
from apiserver.requests import Chat, ScoreJob

MOST_CHOICES, MOST_LEVELS = 26, 10  # letters; digits
THINKING_OFF = {"enable_thinking": False, "thinking": False}
"""The answer is the first token of the reply: no thinking may come before it. Templates know one of the two names."""


class Option(msgspec.Struct, frozen=True, gc=False):
    name: str
    description: str = ""


class Question(msgspec.Struct, frozen=True, gc=False):
    """`yes_no` has the options yes and no, in this order; those of `score` are levels, from the lowest on."""

    kind: Literal["choice", "score", "yes_no"]
    text: str
    options: tuple[Option, ...]
    param: str
    """Where the client wrote it."""

    @property
    def labels(self) -> tuple[str, ...]:
        count = len(self.options)
        match self.kind:
            case "choice":
                return tuple(string.ascii_uppercase[:count])
            case "score":
                return tuple(string.digits[:count])
            case "yes_no":
                return ("yes", "no")


class Reading(msgspec.Struct, frozen=True, gc=False):
    """How likely each option is."""

    probabilities: list[float]
    label_mass: float
    """The labels' share of the whole vocabulary: close to 0, the model wanted to say something else."""

    @property
    def best(self) -> int:
        return self.probabilities.index(max(self.probabilities))

    @property
    def expected(self) -> float:
        """The mean level."""
        return math.fsum(level * probability for level, probability in enumerate(self.probabilities))

    @property
    def confidence(self) -> float:
        """How far the best option is above chance: 0 where all are alike, 1 where one has it all."""
        chance = 1 / len(self.probabilities)
        return max(0.0, (max(self.probabilities) - chance) / (1 - chance))


def read(logprobs: Sequence[float], temperature: float = 1.0) -> Reading:
    top = max(logprobs)
    weights = [math.exp((logprob - top) / temperature) for logprob in logprobs]
    total = math.fsum(weights)
    return Reading([weight / total for weight in weights], math.fsum(map(math.exp, logprobs)))


def check_questions(questions: Sized, card: Card) -> None:
    """How many there are, before any of them is looked at. Raises InvalidRequest."""
    most = card.limits.max_batch_prompts
    if not 1 <= len(questions) <= most:
        raise InvalidRequest(f"questions must hold 1 to {most} questions, not {len(questions)}.", param="questions")


def decision_job(
    state: str, questions: Sequence[Question], variables: Mapping[str, Any], priority: int = 0
) -> ScoreJob:
    """One prompt a question: the state first, so that engines with a prefix cache compute it once."""
    kwargs = {**THINKING_OFF, **variables}
    return ScoreJob(
        prompts=[
            Chat([{"role": "user", "content": f"{state}\n\n{_wording(question)}"}], question.param, variables=kwargs)
            for question in questions
        ],
        label_texts=[question.labels for question in questions],
        prompts_param="questions",
        priority=priority,
    )


def check_options(options: Sequence[Option], low: int, high: int, param: str) -> None:
    """Raises InvalidRequest for too few or too many, and for two of one name."""
    if not low <= len(options) <= high:
        raise InvalidRequest(f"{param} must hold {low} to {high} entries, not {len(options)}.", param=param)
    if len({option.name for option in options}) < len(options):
        raise InvalidRequest(f"{param} holds the same entry twice.", param=param)


def _wording(question: Question) -> str:
    """As SGLang's format 1 has it, for what a model makes of a question depends on every word."""
    options = zip(question.labels, question.options, strict=True)
    match question.kind:
        case "choice":
            lines = [f"Question: {question.text}"] if question.text else []
            lines += [f"{label}: {_described(option)}" for label, option in options]
            lines.append("Answer with the letter of one option only.")
        case "score":
            lines = [f"Question: {question.text}"] if question.text else []
            lines += [f"{label}: {_described(option)}" for label, option in options]
            lines.append("Answer with the number of one level only.")
        case "yes_no":
            lines = [f"Is the following true? {question.text}".rstrip()]
            lines += [f"{label}: {option.description}" for label, option in options if option.description]
            lines.append("Answer with yes or no only.")
    return "\n".join(lines)


def _described(option: Option) -> str:
    return f"{option.name} - {option.description}" if option.description else option.name


def as_text(value: Any) -> str:
    """Text as it is, other JSON as compact JSON, null as nothing."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
