"""Several dialects on one route, told apart by the fields of the body: unrelated APIs share paths in the field."""

from collections.abc import Mapping
from typing import Any

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError
from apiserver.protocol import openai
from apiserver.protocol.decoding import names_in
from apiserver.protocol.exchange import Dialect, Exchange


def fields_of(*dialects: Dialect) -> tuple[type[msgspec.Struct], ...]:
    """What these read, each once."""
    return tuple(dict.fromkeys(struct for dialect in dialects for struct in dialect.fields))


class Forms:
    """The first of `by_field` whose field the body has; else `default`, which knows how to say what is missing."""

    def __init__(self, by_field: Mapping[str, Dialect], default: Dialect) -> None:
        self._by_field = by_field
        self._default = default
        self.fields = fields_of(*by_field.values(), default)
        self.streams = any(dialect.streams for dialect in (*by_field.values(), default))

    @property
    def forms(self) -> tuple[Dialect, ...]:
        """Whatever a body may be here."""
        return (*self._by_field.values(), self._default)

    def __call__(self, raw: bytes, card: Card) -> Exchange:
        names = names_in(raw)
        for field, dialect in self._by_field.items():
            if field in names:
                return dialect(raw, card)
        return self._default(raw, card)

    def error(self, error: ApiError) -> Any:
        return openai.error_document(error)


class _AskedQuestion(msgspec.Struct):
    id: Any = None
    question: Any = None


class _Asked(msgspec.Struct):
    questions: list[_AskedQuestion] = []


_decode_asked = msgspec.json.Decoder(_Asked).decode


class QuestionForms:
    """SGLang's decisions and OpenAI's, told apart by their questions: SGLang's have an `id`, or a `question`."""

    def __init__(self, sglang: Dialect, default: Dialect) -> None:
        self._sglang = sglang
        self._default = default
        self.fields = fields_of(sglang, default)
        self.streams = sglang.streams or default.streams

    def __call__(self, raw: bytes, card: Card) -> Exchange:
        try:
            questions = _decode_asked(raw).questions
        except (msgspec.MsgspecError, RecursionError):
            questions = []  # the dialect will say what is wrong
        has_ids = any(one.id is not None or one.question is not None for one in questions)
        return (self._sglang if has_ids else self._default)(raw, card)

    def error(self, error: ApiError) -> Any:
        return openai.error_document(error)
