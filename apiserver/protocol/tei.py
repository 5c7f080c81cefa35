"""Text Embeddings Inference's own API: POST /embed and /similarity, and /rerank with `texts`."""

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest, shown
from apiserver.events import Result
from apiserver.protocol import openai
from apiserver.protocol.decoding import read_fields, refuse_unsupported
from apiserver.protocol.exchange import Body, Pieces, Unary
from apiserver.protocol.prompts import prompts
from apiserver.protocol.sampling import truncation
from apiserver.protocol.texts import text_of, text_prompts
from apiserver.protocol.vectors import best_first, check_dimensions, finite, likenesses
from apiserver.requests import EmbedJob, Text, Truncation


class EmbedFields(msgspec.Struct, kw_only=True):
    inputs: str | list[Any] | None = None
    model: str | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None
    dimensions: int | None = None
    # Known, and refused unless harmless.
    normalize: Any = None
    prompt_name: Any = None


class Sentences(msgspec.Struct):
    source_sentence: str
    sentences: list[str]


class SimilarityFields(msgspec.Struct, kw_only=True):
    inputs: Sentences | None = None
    parameters: EmbedFields | None = None
    model: str | None = None


class TextsFields(msgspec.Struct, kw_only=True):
    query: Any = None
    texts: Any = None
    model: str | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None
    raw_scores: bool | None = None


HARMLESS_IN_EMBED: dict[str, tuple[Any, ...]] = {"normalize": (True,), "prompt_name": ()}
_embed_decoder = msgspec.json.Decoder(EmbedFields)
_similarity_decoder = msgspec.json.Decoder(SimilarityFields)
_texts_decoder = msgspec.json.Decoder(TextsFields)


class Embed(Unary):
    """Vectors as bare lists."""

    path = "/embed"
    fields: ClassVar = (EmbedFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _embed_decoder, card, harmless=HARMLESS_IN_EMBED)
        check_dimensions(fields.dimensions, card)
        self._job = EmbedJob(
            prompts=prompts(fields.inputs, "inputs", card.limits.max_batch_prompts, True),
            dimensions=fields.dimensions,
            truncation=_truncation(fields.truncate, fields.truncation_direction),
        )

    @property
    def job(self) -> EmbedJob:
        return self._job

    def body(self, result: Result) -> Body:
        return Body(Pieces(self._pieces(result)))

    def _pieces(self, result: Result) -> Iterator[bytes]:
        for index, prompt in enumerate(self._job.prompts):
            vector = finite(result.vectors[index], prompt.param)
            yield (b"," if index else b"[") + openai.encode_json(vector.tolist())
        yield b"]"

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


class Similarity(Unary):
    """How alike each sentence is to one."""

    path = "/similarity"
    fields: ClassVar = (SimilarityFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _similarity_decoder, card)
        if fields.inputs is None:
            raise InvalidRequest("inputs is required: a source_sentence, and sentences.", param="inputs")
        parameters = fields.parameters or EmbedFields()
        refuse_unsupported(parameters, HARMLESS_IN_EMBED)
        source, most = fields.inputs.source_sentence, card.limits.max_batch_prompts
        self._job = EmbedJob(
            prompts=[
                Text(text_of(source, "inputs.source_sentence"), "inputs.source_sentence"),
                *text_prompts(fields.inputs.sentences, "inputs.sentences", most),
            ],
            truncation=_truncation(parameters.truncate, parameters.truncation_direction),
        )

    @property
    def job(self) -> EmbedJob:
        return self._job

    def body(self, result: Result) -> Body:
        return Body(Pieces(self._pieces(result)))

    def _pieces(self, result: Result) -> Iterator[bytes]:
        yield b"["
        for index, score in enumerate(likenesses(self._job, result)):
            yield (b"," if index else b"") + openai.encode_json(score)
        yield b"]"

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


class RankTexts(Unary):
    """The texts' places by their likeness to the query, the best first."""

    path = "/rerank"
    fields: ClassVar = (TextsFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _texts_decoder, card)
        self._with_texts = bool(fields.return_text)
        self._is_raw = bool(fields.raw_scores)
        query = Text(text_of(fields.query, "query"), "query")
        self._job = EmbedJob(
            prompts=[query, *text_prompts(fields.texts, "texts", card.limits.max_batch_prompts)],
            truncation=_truncation(fields.truncate, fields.truncation_direction),
        )

    @property
    def job(self) -> EmbedJob:
        return self._job

    def body(self, result: Result) -> Body:
        return Body(Pieces(self._pieces(result)))

    def _pieces(self, result: Result) -> Iterator[bytes]:
        ranked = yield from best_first(likenesses(self._job, result))
        yield openai.encode_json([self._entry(score, index) for score, index in ranked])

    def _entry(self, score: float, index: int) -> dict[str, Any]:
        # TEI's scores are between 0 and 1 unless they are asked for raw.
        document: dict[str, Any] = {"index": index, "score": score if self._is_raw else 1 / (1 + math.exp(-score))}
        if self._with_texts:
            prompt = self._job.prompts[1 + index]
            assert isinstance(prompt, Text)
            document["text"] = prompt.text
        return document

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


def _truncation(truncate: bool | None, direction: str | None) -> Truncation | None:
    """Without `truncate`, what is too long is a 400."""
    side = (direction or "Right").lower()
    if side not in ("left", "right"):
        raise InvalidRequest(
            f"truncation_direction must be Left or Right, not {shown(direction)}.", param="truncation_direction"
        )
    return truncation(-1 if truncate else None, side, side)
