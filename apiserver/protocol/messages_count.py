"""Anthropic's count_tokens: POST /v1/messages/count_tokens. The prompt that the same message would have, no answer."""

from typing import Any, ClassVar

from apiserver.card import Card
from apiserver.errors import ApiError
from apiserver.events import Result
from apiserver.protocol import anthropic
from apiserver.protocol.exchange import Body, Unary
from apiserver.protocol.messages_fields import ConversationFields
from apiserver.protocol.messages_request import asked, read_count
from apiserver.requests import TokenizeJob


class CountTokens(Unary):
    """One count; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/messages/count_tokens"
    fields: ClassVar = (ConversationFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        self._job = TokenizeJob([asked(read_count(raw, card), card).chat])

    @property
    def job(self) -> TokenizeJob:
        return self._job

    def body(self, result: Result) -> Body:
        return Body({"input_tokens": result.prompt_tokens})

    @staticmethod
    def error(error: ApiError) -> Any:
        return anthropic.error_document(error)
