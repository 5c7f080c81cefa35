"""Rerank: POST /rerank, /v1/rerank and /v2/rerank, in Jina's and vLLM's form, and in Cohere's.

With an embedding model: a document is as relevant as its vector is like the query's (their cosine).
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError
from apiserver.events import Result
from apiserver.protocol import openai
from apiserver.protocol.decoding import check_range, read_fields
from apiserver.protocol.exchange import Body, Pieces, Unary
from apiserver.protocol.sampling import client_request_id, truncation
from apiserver.protocol.texts import text_of, text_prompts
from apiserver.protocol.vectors import best_first, likenesses
from apiserver.requests import EmbedJob, Text, Truncation


class RerankFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    query: Any = None
    documents: Any = None
    top_n: int | None = None
    return_documents: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    max_tokens_per_doc: int | None = None
    priority: int | None = None
    request_id: str | None = None
    rid: str | list[str] | None = None
    # Known, and refused unless harmless.
    max_tokens_per_query: Any = None
    rank_fields: Any = None
    use_activation: Any = None
    raw_scores: Any = None
    padding: Any = None
    mm_processor_kwargs: Any = None
    instruct: Any = None
    instruction: Any = None
    chat_template_kwargs: Any = None


HARMLESS_IN_RERANK: dict[str, tuple[Any, ...]] = {
    "max_tokens_per_query": (0,),
    "rank_fields": (["text"], []),
    "use_activation": (True,),
    "raw_scores": (False,),
    "padding": ("do_not_pad",),
    "mm_processor_kwargs": ({},),
    "instruct": ("",),
    "instruction": ("",),
    "chat_template_kwargs": ({},),
}
IGNORED_IN_RERANK = frozenset(("user", "cache_salt"))
_decoder = msgspec.json.Decoder(RerankFields)


class Rerank(Unary):
    """One rerank request; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/rerank"
    fields: ClassVar = (RerankFields,)
    echoes = True  # the documents, unless the request says otherwise: as vLLM and SGLang do

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _decoder, card, harmless=HARMLESS_IN_RERANK, ignored=IGNORED_IN_RERANK)
        self._model = card.resolve(fields.model)
        check_range("priority", fields.priority, -(2**63), 2**63 - 1)
        check_range("top_n", fields.top_n, 1, 2**63 - 1)
        self._top_n = fields.top_n
        asked = fields.return_documents
        self._with_documents = self.echoes if asked is None else asked
        query = Text(text_of(fields.query, "query"), "query")
        documents = text_prompts(fields.documents, "documents", card.limits.max_batch_prompts)
        self._job = EmbedJob(
            prompts=[query, *documents],
            truncations=_truncations(fields, len(documents), card),
            client_request_id=client_request_id(fields.request_id, fields.rid),
            priority=fields.priority or 0,
        )

    @property
    def job(self) -> EmbedJob:
        return self._job

    def body(self, result: Result) -> Body:
        return Body(Pieces(self._pieces(result)))

    def _pieces(self, result: Result) -> Iterator[bytes]:
        ranked = yield from best_first(likenesses(self._job, result))
        results = [self._result(score, index) for score, index in ranked[: self._top_n]]
        yield openai.encode_json(self._document(results, result.prompt_tokens))

    def _result(self, score: float, index: int) -> dict[str, Any]:
        document: dict[str, Any] = {"index": index, "relevance_score": score}
        if self._with_documents:
            prompt = self._job.prompts[1 + index]
            assert isinstance(prompt, Text)
            document["document"] = {"text": prompt.text}
        return document

    def _document(self, results: list[dict[str, Any]], prompt_tokens: int) -> dict[str, Any]:
        return {
            "id": openai.new_id("rerank"),
            "object": "list",
            "model": self._model,
            "results": results,
            "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
        }

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


class CohereRerank(Rerank):
    """The same as Cohere's second version writes it: no documents, a `meta`, errors of its own."""

    path = "/v2/rerank"
    echoes = False

    def _document(self, results: list[dict[str, Any]], prompt_tokens: int) -> dict[str, Any]:
        meta = {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": prompt_tokens},
        }
        return super()._document(results, prompt_tokens) | {"meta": meta}

    @staticmethod
    def error(error: ApiError) -> Any:
        return {"message": error.message, "id": openai.new_id("error")}


def _truncations(fields: RerankFields, documents: int, card: Card) -> tuple[Truncation | None, ...]:
    """`max_tokens_per_doc` cuts the documents alone, to no more than the model takes: Cohere's default is 4,096."""
    own = truncation(fields.truncate_prompt_tokens, fields.truncation_side, "right")
    check_range("max_tokens_per_doc", fields.max_tokens_per_doc, 0, 2**63 - 1)
    if not fields.max_tokens_per_doc:
        return (own,) * (1 + documents)
    most = min(fields.max_tokens_per_doc, card.max_model_len)
    return (own, *(Truncation(most, "right", "max_tokens_per_doc"),) * documents)
