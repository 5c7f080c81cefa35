"""Classification: POST /classify and /v1/classify. No engine here has a classifier's head, and both say so."""

from typing import Any, NoReturn

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest
from apiserver.protocol import openai
from apiserver.protocol.decoding import decode


class ClassifyFields(msgspec.Struct, kw_only=True):
    model: str | None = None


_decoder = msgspec.json.Decoder(ClassifyFields)


class Classify:
    """A clear refusal; see `apiserver.protocol.exchange.Dialect`."""

    fields = (ClassifyFields,)
    streams = False

    def __call__(self, raw: bytes, card: Card) -> NoReturn:
        card.resolve(decode(raw, _decoder).model)
        engine = card.capabilities.engine
        raise InvalidRequest(
            f"The engine ({engine}) has no classifier. To choose among classes that you name, POST /v1/decisions.",
            param="model",
        )

    def error(self, error: ApiError) -> Any:
        return openai.error_document(error)
