"""SGLang's scores: POST /v1/score with `query`, `items` and `label_token_ids`."""

import math
from typing import Any, ClassVar, cast

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest
from apiserver.events import Result
from apiserver.protocol import openai
from apiserver.protocol.deciding import read
from apiserver.protocol.decoding import check_range, read_fields
from apiserver.protocol.exchange import Body, Unary
from apiserver.protocol.prompts import prompts, token_ids
from apiserver.protocol.sampling import client_request_id
from apiserver.requests import Prompt, ScoreJob, Text, TokenIds

_MOST_LABELS = 65_536


class LabelScoreFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    query: str | list[Any] | None = None
    items: str | list[Any] | None = None
    label_token_ids: list[Any] | None = None
    apply_softmax: bool | None = None
    item_first: bool | None = None
    temperature: float | None = None
    return_token_logprobs: bool | None = None
    priority: int | None = None
    rid: str | list[str] | None = None
    # Known, and refused unless harmless.
    embed_override_token_id: Any = None
    query_embed_overrides: Any = None
    item_embed_overrides: Any = None
    return_pooled_hidden_states: Any = None
    score_extraction_token: Any = None


HARMLESS_IN_LABEL_SCORE: dict[str, tuple[Any, ...]] = {
    "embed_override_token_id": (),
    "query_embed_overrides": ([],),
    "item_embed_overrides": ([],),
    "return_pooled_hidden_states": (False,),
    "score_extraction_token": (),
}
IGNORED_IN_LABEL_SCORE = frozenset(("user",))
_decoder = msgspec.json.Decoder(LabelScoreFields)


class LabelScore(Unary):
    """One label-token scoring request; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/score"
    fields: ClassVar = (LabelScoreFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _decoder, card, harmless=HARMLESS_IN_LABEL_SCORE, ignored=IGNORED_IN_LABEL_SCORE)
        self._model = card.resolve(fields.model)
        check_range("priority", fields.priority, -(2**63), 2**63 - 1)
        check_range("temperature", fields.temperature, 0, 1e6, exclusive_low=True)
        self._softmax = bool(fields.apply_softmax)
        self._temperature = 1.0 if fields.temperature is None else fields.temperature
        self._with_logprobs = bool(fields.return_token_logprobs)
        parsed = _prompts(fields, card)
        self._job = ScoreJob(
            prompts=parsed,
            labels=_labels(fields.label_token_ids, len(parsed)),
            client_request_id=client_request_id(None, fields.rid),
            priority=fields.priority or 0,
        )

    @property
    def job(self) -> ScoreJob:
        return self._job

    def body(self, result: Result) -> Body:
        logprobs = [result.scores[index].logprobs for index in range(len(self._job.prompts))]
        document: dict[str, Any] = {
            "object": "scoring",
            "model": self._model,
            "scores": [self._score(each) for each in logprobs],
            "usage": openai.usage_counts(result.prompt_tokens, 0),
        }
        if self._with_logprobs:
            document["token_logprobs"] = logprobs
        return Body(document)

    def _score(self, logprobs: tuple[float, ...]) -> list[float]:
        """Probabilities in the whole vocabulary, or among the labels alone."""
        if self._softmax:
            return read(logprobs, self._temperature).probabilities
        return [math.exp(logprob) for logprob in logprobs]

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


def _prompts(fields: LabelScoreFields, card: Card) -> list[Prompt]:
    """The query and an item behind each other, as texts or as ids."""
    if fields.query is None or fields.items is None:
        name = "query" if fields.query is None else "items"
        raise InvalidRequest(f"{name} is required.", param=name)
    most = card.limits.max_batch_prompts
    if isinstance(fields.query, str):
        texts = prompts(fields.items, "items", most, True, allow_empty=True)
        if not all(isinstance(item, Text) for item in texts):
            raise InvalidRequest("items must be texts, like the query.", param="items")
        return [
            Text(_joined(fields.query, item.text, fields.item_first), item.param) for item in cast(list[Text], texts)
        ]
    query = token_ids(fields.query, "query", allow_empty=True)
    listed = prompts(fields.items, "items", most, True, allow_empty=True)
    if not all(isinstance(item, TokenIds) for item in listed):
        raise InvalidRequest("items must be lists of token ids, like the query.", param="items")
    return [
        TokenIds(_joined(query, item.token_ids, fields.item_first), item.param) for item in cast(list[TokenIds], listed)
    ]


def _joined(query: Any, item: Any, item_first: bool | None) -> Any:
    return item + query if item_first else query + item


def _labels(labels: list[Any] | None, count: int) -> list[list[int]]:
    """One list for all items, or one for each."""
    if not labels:
        raise InvalidRequest("label_token_ids must hold at least one token id.", param="label_token_ids")
    if not isinstance(labels[0], list):
        lists = [token_ids(labels, "label_token_ids")]
    elif len(labels) != count:
        raise InvalidRequest(f"label_token_ids has {len(labels)} lists for {count} items.", param="label_token_ids")
    else:
        lists = [token_ids(each, f"label_token_ids[{number}]") for number, each in enumerate(labels)]
    if sum(map(len, lists)) > _MOST_LABELS:
        raise InvalidRequest(f"label_token_ids has more than {_MOST_LABELS} ids.", param="label_token_ids")
    return lists
