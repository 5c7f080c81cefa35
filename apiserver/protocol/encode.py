"""SGLang's native embeddings: POST /encode."""

import random
import time
from typing import Any, ClassVar, cast

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest
from apiserver.events import Result
from apiserver.protocol import openai
from apiserver.protocol.decoding import check_range, read_fields
from apiserver.protocol.exchange import Body, Unary
from apiserver.protocol.prompts import prompts
from apiserver.protocol.sampling import client_request_id
from apiserver.protocol.vectors import check_dimensions, finite
from apiserver.requests import EmbedJob


class EncodeFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    text: str | list[Any] | None = None
    input_ids: list[Any] | None = None
    dimensions: int | None = None
    rid: str | list[str] | None = None
    priority: int | None = None
    return_prompt_token_ids: bool | None = None
    # Known, and refused unless harmless.
    input_embeds: Any = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    modalities: Any = None
    embed_override_token_id: Any = None
    embed_overrides: Any = None
    is_cross_encoder_request: Any = None
    lora_path: Any = None
    lora_id: Any = None
    positional_embed_overrides: Any = None
    return_pooled_hidden_states: Any = None
    multi_item_delimiter_indices: Any = None
    token_indices_to_pool: Any = None
    decision_layout: Any = None


HARMLESS_IN_ENCODE: dict[str, tuple[Any, ...]] = {
    "input_embeds": (),
    "image_data": ([],),
    "video_data": ([],),
    "audio_data": ([],),
    "modalities": (["text"], []),
    "embed_override_token_id": (),
    "embed_overrides": ([],),
    "is_cross_encoder_request": (False,),
    "lora_path": ("", []),
    "lora_id": (),
    "positional_embed_overrides": (),
    "return_pooled_hidden_states": (False,),
    "multi_item_delimiter_indices": (),
    "token_indices_to_pool": (),
    "decision_layout": (),
}
IGNORED_IN_ENCODE = frozenset(
    (
        "sampling_params",
        "log_metrics",
        "routing_key",
        "http_worker_ipc",
        "background",
        "external_trace_header",
        "received_time",
        "user",
    )
)
_decoder = msgspec.json.Decoder(EncodeFields)


class Encode(Unary):
    """One native embedding request; see `apiserver.protocol.exchange.Exchange`."""

    path = "/encode"
    fields: ClassVar = (EncodeFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        self._began = time.perf_counter()
        fields = read_fields(raw, _decoder, card, harmless=HARMLESS_IN_ENCODE, ignored=IGNORED_IN_ENCODE)
        check_dimensions(fields.dimensions, card)
        check_range("priority", fields.priority, -(2**63), 2**63 - 1)
        if (fields.text is None) == (fields.input_ids is None):
            raise InvalidRequest("Exactly one of text and input_ids must be given.", param="text")
        asked, name = (fields.text, "text") if fields.text is not None else (fields.input_ids, "input_ids")
        if name == "text" and isinstance(asked, list) and asked and not isinstance(asked[0], str):
            raise InvalidRequest("text[0] must be a string; ids go to input_ids.", param="text[0]")
        self._is_batch = isinstance(asked, list) and bool(asked) and isinstance(asked[0], str | list)
        self._with_ids = bool(fields.return_prompt_token_ids)
        self._job = EmbedJob(
            prompts=prompts(cast(Any, asked), name, card.limits.max_batch_prompts, True),
            dimensions=fields.dimensions,
            client_request_id=client_request_id(None, fields.rid),
            priority=fields.priority or 0,
        )
        self._id = self._job.client_request_id or f"{random.getrandbits(128):032x}"

    @property
    def job(self) -> EmbedJob:
        return self._job

    def body(self, result: Result) -> Body:
        items = [self._item(index, result) for index in range(len(self._job.prompts))]
        return Body(items if self._is_batch else items[0])

    def _item(self, index: int, result: Result) -> dict[str, Any]:
        prompt = result.prompts[index]
        meta: dict[str, Any] = {
            "id": f"{self._id}_{index}" if self._is_batch else self._id,
            "finish_reason": None,  # nothing was generated
            "prompt_tokens": prompt.token_count,
            "e2e_latency": round(time.perf_counter() - self._began, 6),
        }
        vector = finite(result.vectors[index], self._job.prompts[index].param)
        document: dict[str, Any] = {"embedding": vector.tolist(), "meta_info": meta}
        if self._with_ids:
            document["prompt_token_ids"] = prompt.token_ids
        return document

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)
