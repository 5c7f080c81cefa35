"""SGLang's and vLLM's tokenize and detokenize: no engine takes part."""

from typing import Any

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest
from apiserver.events import Result
from apiserver.protocol import openai
from apiserver.protocol.decoding import decode, refuse_unknown
from apiserver.protocol.exchange import Body, Unary
from apiserver.protocol.prompts import prompts
from apiserver.requests import Chat, DetokenizeJob, Prompt, Text, TokenIds, TokenizeJob


class TokenizeFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | list[str] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | float | None = None
    return_token_strs: bool | None = None


class DetokenizeFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[Any] | None = None
    skip_special_tokens: bool | None = None


_tokenize_decoder = msgspec.json.Decoder(TokenizeFields)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeFields)


class Tokenize(Unary):
    """Text or messages → ids. A list of prompts gives lists (SGLang's form)."""

    path = "/tokenize"

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = decode(raw, _tokenize_decoder)
        if card.strict_fields:
            refuse_unknown(raw, TokenizeFields)
        card.resolve(fields.model)
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
        return [_chat(fields, fields.messages, card)]
    special = fields.add_special_tokens is not False
    if fields.prompt == "":  # here, unlike for an engine, nothing is a fair question
        return [Text("", "prompt", special)]
    return prompts(fields.prompt, "prompt", card.limits.max_batch_prompts, special)


def _chat(fields: TokenizeFields, messages: list[dict[str, Any]], card: Card) -> Chat:
    if not messages:
        raise InvalidRequest("messages must hold at least one message.", param="messages")
    if fields.chat_template is not None and not card.trust_request_chat_template:
        raise InvalidRequest(
            "A chat_template in the request is refused; the server allows it with --trust-request-chat-template.",
            param="chat_template",
        )
    continues = bool(fields.continue_final_message)
    if continues and fields.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other.", param="continue_final_message"
        )
    variables = dict(fields.chat_template_kwargs or {})
    if fields.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", fields.reasoning_effort)
    return Chat(
        messages,
        tools=None if fields.tool_choice == "none" else fields.tools,
        documents=fields.documents,
        add_generation_prompt=not continues if fields.add_generation_prompt is None else fields.add_generation_prompt,
        continue_final_message=continues,
        add_special_tokens=bool(fields.add_special_tokens),
        variables=variables,
        template=fields.chat_template,
    )


class Detokenize(Unary):
    """Ids → text, under SGLang's key and vLLM's."""

    path = "/detokenize"

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = decode(raw, _detokenize_decoder)
        if card.strict_fields:
            refuse_unknown(raw, DetokenizeFields)
        card.resolve(fields.model)
        if fields.tokens is None:
            raise InvalidRequest("tokens is required.", param="tokens")
        if fields.tokens and isinstance(fields.tokens[0], str):
            raise InvalidRequest("tokens must hold token ids (integers).", param="tokens")
        self._is_batch = bool(fields.tokens) and isinstance(fields.tokens[0], list)
        parsed = prompts(fields.tokens, "tokens", card.limits.max_batch_prompts, False) if fields.tokens else []
        lists = [prompt for prompt in parsed if isinstance(prompt, TokenIds)] or [TokenIds([], "tokens")]
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
