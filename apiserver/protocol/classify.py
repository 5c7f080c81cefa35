"""Classification: POST /classify and /v1/classify. No engine here has a classifier's head, and both say so."""

from typing import Any

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest
from apiserver.events import Result
from apiserver.protocol import openai
from apiserver.protocol.decoding import decode
from apiserver.protocol.exchange import Body, Unary
from apiserver.requests import Job


class ClassifyFields(msgspec.Struct, kw_only=True):
    model: str | None = None


_decoder = msgspec.json.Decoder(ClassifyFields)


class Classify(Unary):
    """A clear refusal."""

    path = "/v1/classify"

    def __init__(self, raw: bytes, card: Card) -> None:
        card.resolve(decode(raw, _decoder).model)
        engine = card.capabilities.engine
        raise InvalidRequest(
            f"The engine ({engine}) has no classifier. To choose among classes that you name, POST /v1/decisions.",
            param="model",
        )

    @property
    def job(self) -> Job:
        raise NotImplementedError

    def body(self, result: Result) -> Body:
        raise NotImplementedError

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)
