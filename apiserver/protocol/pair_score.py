"""vLLM's scores: POST /score and /v1/score with two texts, or one and many. How alike their vectors are."""

from typing import Any, ClassVar

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest
from apiserver.events import Result
from apiserver.protocol import openai
from apiserver.protocol.decoding import check_range, read_fields
from apiserver.protocol.exchange import Body, Pieces, Unary
from apiserver.protocol.sampling import client_request_id, truncation
from apiserver.protocol.texts import text_prompts
from apiserver.protocol.vectors import likenesses
from apiserver.requests import EmbedJob

_SPELLINGS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


class PairScoreFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    queries: Any = None
    documents: Any = None
    items: Any = None
    data_1: Any = None
    data_2: Any = None
    text_1: Any = None
    text_2: Any = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    priority: int | None = None
    request_id: str | None = None
    # Known, and refused unless harmless.
    use_activation: Any = None
    padding: Any = None
    mm_processor_kwargs: Any = None
    max_tokens_per_query: Any = None
    max_tokens_per_doc: Any = None
    instruction: Any = None
    chat_template_kwargs: Any = None


HARMLESS_IN_PAIR_SCORE: dict[str, tuple[Any, ...]] = {
    "use_activation": (True,),
    "padding": ("do_not_pad",),
    "mm_processor_kwargs": ({},),
    "max_tokens_per_query": (0,),
    "max_tokens_per_doc": (0,),
    "instruction": ("",),
    "chat_template_kwargs": ({},),
}
IGNORED_IN_PAIR_SCORE = frozenset(("user", "cache_salt"))
_decoder = msgspec.json.Decoder(PairScoreFields)


class PairScore(Unary):
    """One pair scoring request; see `apiserver.protocol.exchange.Exchange`."""

    path = "/score"
    fields: ClassVar = (PairScoreFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _decoder, card, harmless=HARMLESS_IN_PAIR_SCORE, ignored=IGNORED_IN_PAIR_SCORE)
        self._model = card.resolve(fields.model)
        check_range("priority", fields.priority, -(2**63), 2**63 - 1)
        left, right = _pair(fields)
        most = card.limits.max_batch_prompts
        one, others = text_prompts(getattr(fields, left), left, most), text_prompts(getattr(fields, right), right, most)
        if len(one) not in (1, len(others)):
            raise InvalidRequest(
                f"{left} has {len(one)} texts and {right} {len(others)}; it must be as many, or one.", param=left
            )
        self._ones = len(one)
        self._job = EmbedJob(
            prompts=[*one, *others],
            truncation=truncation(fields.truncate_prompt_tokens, fields.truncation_side, "right"),
            client_request_id=client_request_id(fields.request_id, None),
            priority=fields.priority or 0,
        )

    @property
    def job(self) -> EmbedJob:
        return self._job

    def body(self, result: Result) -> Body:
        return Body(Pieces(self._pieces(result)))

    def _pieces(self, result: Result) -> Any:
        scores = likenesses(self._job, result, self._ones)
        head = {"id": openai.new_id("score"), "object": "list", "created": openai.now(), "model": self._model}
        yield openai.encode_json(head)[:-1] + b',"data":['
        for index, score in enumerate(scores):
            item = {"index": index, "object": "score", "score": score}
            yield (b"," if index else b"") + openai.encode_json(item)
        yield b'],"usage":' + openai.encode_json(openai.usage_counts(result.prompt_tokens, 0)) + b"}"

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


def _pair(fields: PairScoreFields) -> tuple[str, str]:
    """Which of the spellings it is."""
    for left, right in _SPELLINGS:
        if getattr(fields, left) is not None and getattr(fields, right) is not None:
            return left, right
    spellings = ", ".join(f"{left} and {right}" for left, right in _SPELLINGS)
    raise InvalidRequest(f"Two sides to compare are required: {spellings}.", param="text_1")
