"""SGLang's and vLLM's tokenize and detokenize: no engine takes part."""

from typing import Any, ClassVar

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest
from apiserver.events import Result
from apiserver.protocol import openai
from apiserver.protocol.conversation import MULTIMODAL, read_conversation
from apiserver.protocol.decoding import read_fields
from apiserver.protocol.exchange import Body, Unary
from apiserver.protocol.prompts import prompts, token_ids
from apiserver.requests import DetokenizeJob, Prompt, TokenIds, TokenizeJob


class TokenizeFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | list[str] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | float | None = None
    thinking: Any = None
    return_token_strs: bool | None = None
    # Known, and refused unless harmless.
    media_io_kwargs: Any = None
    mm_processor_kwargs: Any = None


class DetokenizeFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[Any] | None = None
    skip_special_tokens: bool | None = None


_tokenize_decoder = msgspec.json.Decoder(TokenizeFields)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeFields)


class Tokenize(Unary):
    """Text or messages → ids. A list of prompts gives lists (SGLang's form)."""

    path = "/tokenize"
    fields: ClassVar = (TokenizeFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _tokenize_decoder, card, harmless=MULTIMODAL)
        if (fields.prompt is None) == (fields.messages is None):
            raise InvalidRequest("Exactly one of prompt and messages must be given.", param="prompt")
        self._is_batch = isinstance(fields.prompt, list)
        self._max_model_len = card.max_model_len
        self._with_texts = bool(fields.return_token_strs)
        self._job = TokenizeJob(_tokenize_prompts(fields, card), with_token_texts=self._with_texts)

    @property
    def job(self) -> TokenizeJob:
        return self._job

    def body(self, result: Result) -> Body:
        tokens: Any = [prompt.token_ids for prompt in result.prompts]
        texts: Any = [prompt.token_texts for prompt in result.prompts]
        counts: Any = [len(ids) for ids in tokens]
        if not self._is_batch:
            tokens, texts, counts = tokens[0], texts[0], counts[0]
        document = {"tokens": tokens, "count": counts, "max_model_len": self._max_model_len}
        if self._with_texts:
            document["token_strs"] = texts
        return Body(document)

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


def _tokenize_prompts(fields: TokenizeFields, card: Card) -> list[Prompt]:
    if fields.messages is not None:
        return [read_conversation(fields, card).prompt]
    most, special = card.limits.max_batch_prompts, fields.add_special_tokens is not False
    return prompts(fields.prompt, "prompt", most, special, allow_empty=True)


class Detokenize(Unary):
    """Ids → text, under SGLang's key and vLLM's."""

    path = "/detokenize"
    fields: ClassVar = (DetokenizeFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_fields(raw, _detokenize_decoder, card)
        if fields.tokens is None:
            raise InvalidRequest("tokens is required.", param="tokens")
        self._is_batch = bool(fields.tokens) and isinstance(fields.tokens[0], list)
        if self._is_batch:
            most = card.limits.max_batch_prompts
            if len(fields.tokens) > most:
                raise InvalidRequest(
                    f"tokens has {len(fields.tokens)} lists; at most {most} are allowed.", param="tokens"
                )
            named = [(item, f"tokens[{number}]") for number, item in enumerate(fields.tokens)]
        else:
            named = [(fields.tokens, "tokens")]
        lists = [TokenIds(token_ids(item, name, allow_empty=True), name) for item, name in named]
        self._job = DetokenizeJob(lists, skip_special_tokens=fields.skip_special_tokens is not False)

    @property
    def job(self) -> DetokenizeJob:
        return self._job

    def body(self, result: Result) -> Body:
        texts: Any = [result.texts[index] for index in range(len(self._job.prompts))]
        if not self._is_batch:
            texts = texts[0]
        return Body({"text": texts, "prompt": texts})

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)
