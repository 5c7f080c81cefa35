"""OpenAI embeddings: POST /v1/embeddings, with vLLM's binary forms."""

import binascii
import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest, shown
from apiserver.events import Result
from apiserver.protocol import openai
from apiserver.protocol.decoding import check_range, read_fields
from apiserver.protocol.exchange import Body, Pieces, Unary
from apiserver.protocol.prompts import prompts
from apiserver.protocol.sampling import client_request_id, truncation
from apiserver.protocol.vectors import check_dimensions, finite
from apiserver.requests import EmbedJob

_MOST_AT_ONCE = 16  # vectors that are encoded in one go
_MOST_WITH_METADATA = 256  # the items of a binary answer are described in a header, and headers have limits


class EmbeddingFields(msgspec.Struct, kw_only=True):
    input: str | list[Any] | None = None
    model: str | None = None
    dimensions: int | None = None
    encoding_format: str | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    priority: int | None = None
    request_id: str | None = None
    rid: str | list[str] | None = None
    # Known, and refused unless harmless.
    messages: Any = None
    modality: Any = None
    embed_dtype: Any = None
    endianness: Any = None
    use_activation: Any = None
    padding: Any = None
    lora_path: Any = None
    embed_override_token_id: Any = None
    embed_overrides: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None


HARMLESS_IN_EMBEDDINGS: dict[str, tuple[Any, ...]] = {
    "messages": (),
    "modality": ("text",),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "use_activation": (True,),
    "padding": ("do_not_pad",),
    "lora_path": ("", []),
    "embed_override_token_id": (),
    "embed_overrides": ([],),
    "add_generation_prompt": (False,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
}
IGNORED_IN_EMBEDDINGS = frozenset(("user", "cache_salt"))  # nothing of a prompt is cached here, so it is always apart
_FORMATS = ("float", "base64", "bytes", "bytes_only")
_decoder = msgspec.json.Decoder(EmbeddingFields)


class Embeddings(Unary):
    """One embeddings request; see `apiserver.protocol.exchange.Exchange`."""

    path = "/v1/embeddings"
    fields: ClassVar = (EmbeddingFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _decoder, card, harmless=HARMLESS_IN_EMBEDDINGS, ignored=IGNORED_IN_EMBEDDINGS)
        self._model = card.resolve(fields.model)
        self._format = "float" if fields.encoding_format is None else fields.encoding_format
        if self._format not in _FORMATS:
            raise InvalidRequest(
                f"encoding_format must be one of {', '.join(_FORMATS)}, not {shown(self._format)}.",
                param="encoding_format",
            )
        check_dimensions(fields.dimensions, card)
        check_range("priority", fields.priority, -(2**63), 2**63 - 1)
        self._job = EmbedJob(
            prompts=prompts(
                fields.input, "input", card.limits.max_batch_prompts, fields.add_special_tokens is not False
            ),
            dimensions=fields.dimensions,
            truncation=truncation(fields.truncate_prompt_tokens, fields.truncation_side, "right"),
            client_request_id=client_request_id(fields.request_id, fields.rid),
            priority=fields.priority or 0,
        )
        if self._format == "bytes" and len(self._job.prompts) > _MOST_WITH_METADATA:
            raise InvalidRequest(
                f"encoding_format bytes describes each item in a header, {_MOST_WITH_METADATA} at most; "
                "use bytes_only or base64.",
                param="encoding_format",
            )

    @property
    def job(self) -> EmbedJob:
        return self._job

    def body(self, result: Result) -> Body:
        vectors = [result.vectors[index] for index in range(len(self._job.prompts))]
        usage = {"prompt_tokens": result.prompt_tokens, "total_tokens": result.prompt_tokens}
        if self._format in ("bytes", "bytes_only"):
            return self._binary(vectors, usage)
        write = _as_floats if self._format == "float" else _as_base64
        if len(vectors) > _MOST_AT_ONCE:
            return Body(Pieces(self._pieces(vectors, write, usage)))
        return Body(
            {
                "id": openai.new_id("embd"),
                "object": "list",
                "created": openai.now(),
                "model": self._model,
                "data": [
                    {"object": "embedding", "index": index, "embedding": write(vector, index)}
                    for index, vector in enumerate(vectors)
                ],
                "usage": usage,
            }
        )

    def _pieces(
        self, vectors: list[bytes], write: Callable[[bytes, int], Any], usage: dict[str, int]
    ) -> Iterator[bytes]:
        """The same document item by item: 2,048 vectors as floats are 60 ms of encoding."""
        head = {"id": openai.new_id("embd"), "object": "list", "created": openai.now(), "model": self._model}
        yield openai.encode_json(head)[:-1] + b',"data":['
        for index, vector in enumerate(vectors):
            item = {"object": "embedding", "index": index, "embedding": write(vector, index)}
            yield (b"," if index else b"") + openai.encode_json(item)
        yield b'],"usage":' + openai.encode_json(usage) + b"}"

    def _binary(self, vectors: list[bytes], usage: dict[str, int]) -> Body:
        """The vectors as they came from the engine, one after another; vLLM's `metadata` header says where each is."""
        for index, vector in enumerate(vectors):
            finite(vector, f"input[{index}]")
        body = b"".join(vectors)
        if self._format == "bytes_only":
            return Body(body, "application/octet-stream")
        items: list[dict[str, Any]] = []
        start = 0
        for index, vector in enumerate(vectors):
            end = start + len(vector)
            items.append(
                {
                    "index": index,
                    "embed_dtype": "float32",
                    "endianness": "little",
                    "start": start,
                    "end": end,
                    "shape": [len(vector) // 4],
                }
            )
            start = end
        metadata = {
            "id": openai.new_id("embd"),
            "created": openai.now(),
            "model": self._model,
            "data": items,
            "usage": usage,
        }
        return Body(body, "application/octet-stream", (("metadata", _header(metadata)),))

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


def _header(document: Any) -> str:
    """JSON in printable ASCII: clients read headers in more than one encoding, and no header may hold a control
    character (DEL is the one that JSON lets pass)."""
    return json.dumps(document, separators=(",", ":")).replace("\x7f", "\\u007f")


def _as_floats(vector: bytes, index: int) -> list[float]:
    return finite(vector, f"input[{index}]").tolist()


def _as_base64(vector: bytes, index: int) -> msgspec.Raw:
    """Never through Python floats: bytes from the engine, base64 of them to the client."""
    finite(vector, f"input[{index}]")
    return msgspec.Raw(b'"' + binascii.b2a_base64(vector, newline=False) + b'"')
