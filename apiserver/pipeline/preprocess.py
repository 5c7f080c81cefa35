"""Prompts → token ids that fit: render, encode, truncate, check. Everything that can be refused is refused here."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from apiserver.card import Card
from apiserver.errors import ContextLengthExceeded, InvalidRequest, shown
from apiserver.events import PreparedPrompt
from apiserver.pipeline.escape import Escaper, Hidden
from apiserver.requests import Chat, GenerateJob, Prompt, Text, TokenIds, Truncation
from apiserver.timings import Timings
from apiserver.tokenizer import Encoder, Tokenizer
from apiserver.tokenizer.messages import TemplateError
from apiserver.tokenizer.template import RESERVED_VARIABLES, ChatTemplate
from engine_bridge.wire import SamplingParams, count_ids, pack_ids

_FIELD = re.compile(r"messages\[\d+\][\w.\[\]]*")
_CHARACTERS_PER_TOKEN = 8  # more than most text has
_SLACK_TOKENS = 128  # that a cut through a text may make too many: WordPiece looks at 100 characters of a word


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens a prompt may have: all that the model takes, less what the answer needs at least."""

    max_model_len: int
    reserved: int


class Preprocessor:
    """The one way from a prompt to token ids, for every dialect and every task."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        encoder: Encoder,
        template: ChatTemplate | None,
        special_tokens: Mapping[str, str],
        escaper: Escaper | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.encoder = encoder
        self.template = template
        self._special_tokens = special_tokens
        self._escaper = escaper

    def prepare(
        self, prompt: Prompt, card: Card, room: Room | None, truncation: Truncation | None, timings: Timings
    ) -> PreparedPrompt:
        """One prompt's token ids, packed. Raises InvalidRequest naming the prompt's own field.

        `room=None` is for prompts that no model has to take: they may be empty, and of any length.
        """
        match prompt:
            case TokenIds():
                self.check_ids(prompt.token_ids, prompt.param, card.vocab_size)
                text, packed = None, pack_ids(_truncate(prompt.token_ids, truncation, room))
            case Text():
                text = _usable(prompt.text, prompt.param)
                began = time.perf_counter()
                packed = self._encode(text, prompt.add_special_tokens, prompt.param, room, truncation)
                timings.tokenize += time.perf_counter() - began
            case Chat():
                text, packed = self._chat(prompt, room, truncation, timings)
        if room is not None:
            count = count_ids(packed)
            if not count:
                raise InvalidRequest(f"{prompt.param} is empty: a prompt needs at least one token.", param=prompt.param)
            if count > room.max_model_len - room.reserved:
                raise too_long(count, prompt.param, room)
            if truncation is not None and count >= _most(truncation, room):
                text = None  # it is not what the ids say any more
        return PreparedPrompt(packed, text)

    def _chat(
        self, chat: Chat, room: Room | None, truncation: Truncation | None, timings: Timings
    ) -> tuple[str, bytes]:
        began = time.perf_counter()
        hidden = self._hide(chat) if self._escaper is not None else None
        text = _usable(self._render(chat if hidden is None else hidden.chat), chat.param)
        rendered = time.perf_counter()
        if hidden is None:
            packed = self._encode(text, chat.add_special_tokens, chat.param, room, truncation)
        else:
            parts, text = hidden.parts(text), hidden.text(text)
            packed = pack_ids(self._encode_parts(parts, text, chat, room, truncation))
        timings.render += rendered - began
        timings.tokenize += time.perf_counter() - rendered
        return text, packed

    def _hide(self, chat: Chat) -> Hidden | None:
        assert self._escaper is not None
        try:
            return self._escaper.hide(chat)
        except RecursionError as error:
            raise InvalidRequest("The messages hold JSON that is nested too deeply.", param=chat.param) from error

    def _encode_parts(
        self, parts: list[str | list[int]], text: str, chat: Chat, room: Room | None, truncation: Truncation | None
    ) -> list[int]:
        assert self._escaper is not None
        if room is not None and truncation is None and self._cannot_fit(text, room):
            raise too_long(None, chat.param, room)
        token_ids = self._escaper.encode(parts, add_special_tokens=chat.add_special_tokens)
        return _truncate(token_ids, truncation, room)

    def check_ids(self, token_ids: list[int], param: str, vocab_size: int) -> None:
        """An id outside the vocabulary crashes engines for everybody (vllm#9634): it never gets there."""
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
            raise InvalidRequest(
                f"{param} holds the token id {shown(wrong)}; this model's ids are 0 to {vocab_size - 1}.", param=param
            )

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _encode(
        self, text: str, add_special_tokens: bool, param: str, room: Room | None, truncation: Truncation | None
    ) -> bytes:
        if room is not None and truncation is None and self._cannot_fit(text, room):
            raise too_long(None, param, room)
        if truncation is None or room is None:
            return self.encoder.encode_packed(text, add_special_tokens=add_special_tokens)
        return pack_ids(self._encode_truncated(text, add_special_tokens, _most(truncation, room), truncation.side))

    def _cannot_fit(self, text: str, room: Room) -> bool:
        """The cheap refusal: of megabytes that cannot fit, the length tells, or the ids of a part."""
        if self.tokenizer.keeps_text:
            return len(text) > room.max_model_len * self.tokenizer.longest_token_bytes
        size = room.max_model_len * _CHARACTERS_PER_TOKEN
        while len(text) > size:
            # Without the white space at its end: what comes behind it may take that away.
            part = self.encoder.encode_packed(text[:size].rstrip(), add_special_tokens=False)
            if count_ids(part) > room.max_model_len + _SLACK_TOKENS:
                return True
            size *= 8
        return False

    def _encode_truncated(
        self, text: str, add_special_tokens: bool, most: int, side: Literal["left", "right"]
    ) -> list[int]:
        """Most of a very long text will be cut off: it is not encoded first, only to be thrown away."""
        encode = self.encoder.encode_truncated
        enough = (most + _SLACK_TOKENS) * self.tokenizer.longest_token_bytes
        if len(text) > enough:
            part = text[-enough:] if side == "left" else text[:enough]
            token_ids = encode(part, add_special_tokens=add_special_tokens, most=most, side=side)
            if len(token_ids) >= most:  # fewer, where a token can stand for any amount of text: white space, [UNK]
                return token_ids
        return encode(text, add_special_tokens=add_special_tokens, most=most, side=side)

    def _render(self, chat: Chat) -> str:
        template = self._template_for(chat)
        for name in RESERVED_VARIABLES.intersection(chat.variables):
            raise InvalidRequest(f"chat_template_kwargs cannot set {name}.", param="chat_template_kwargs")
        try:
            return template.render(
                chat.messages,
                tools=chat.tools,
                documents=chat.documents,
                add_generation_prompt=chat.add_generation_prompt,
                continue_final_message=chat.continue_final_message,
                variables=chat.variables,
            )
        except TemplateError as error:
            field = _FIELD.match(str(error))
            raise InvalidRequest(str(error), param=field.group() if field else chat.param) from error
        except RecursionError as error:
            raise InvalidRequest("The messages hold JSON that is nested too deeply.", param=chat.param) from error

    def _template_for(self, chat: Chat) -> ChatTemplate:
        if chat.template is not None:
            try:
                return ChatTemplate(chat.template, self._special_tokens)
            except TemplateError as error:
                raise InvalidRequest(f"chat_template: {error}", param="chat_template") from error
        if self.template is None:
            raise InvalidRequest(
                "This model has no chat template, so it cannot render messages. "
                "Start the server with --chat-template FILE, or use /v1/completions.",
                param=chat.param,
            )
        return self.template


def fill_max_tokens(job: GenerateJob, prompt_tokens: int, card: Card) -> SamplingParams:
    """The job's sampling params with max_tokens set for this prompt. Raises InvalidRequest when they do not fit."""
    left = card.max_model_len - prompt_tokens
    max_tokens = job.max_tokens
    if max_tokens is None:
        max_tokens = left
    elif max_tokens > left:
        if not (job.clamp_max_tokens or card.clamp_max_tokens):
            raise ContextLengthExceeded(
                f"{job.max_tokens_param} is {max_tokens}, but after the prompt's {prompt_tokens} tokens this model's "
                f"context of {card.max_model_len} has room for {left}. Send {job.max_tokens_param} <= {left}.",
                param=job.max_tokens_param,
            )
        max_tokens = left
    params = job.sampling_params
    if params.min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens is {params.min_tokens}, more than the {max_tokens} tokens that this request can have.",
            param="min_tokens",
        )
    return msgspec.structs.replace(params, max_tokens=max_tokens)


def too_long(prompt_tokens: int | None, param: str, room: Room) -> ContextLengthExceeded:
    size = f"{prompt_tokens} tokens" if prompt_tokens is not None else "more tokens than that"
    answer = " (one token of it must be left for the answer)" if room.reserved else ""
    return ContextLengthExceeded(
        f"This model's maximum context length is {room.max_model_len} tokens{answer}, but {param} has {size}.",
        param=param,
    )


def _most(truncation: Truncation, room: Room) -> int:
    """How many tokens to keep. Raises InvalidRequest for more than the model takes."""
    if truncation.keep > room.max_model_len:
        raise InvalidRequest(
            f"{truncation.param} is {truncation.keep}, more than this model's {room.max_model_len} tokens.",
            param=truncation.param,
        )
    return room.max_model_len - room.reserved if truncation.keep == -1 else truncation.keep


def _truncate(token_ids: list[int], truncation: Truncation | None, room: Room | None) -> list[int]:
    if truncation is None or room is None:
        return token_ids
    most = _most(truncation, room)
    if len(token_ids) <= most:
        return token_ids
    return token_ids[-most:] if truncation.side == "left" else token_ids[:most]


def _usable(text: str, param: str) -> str:
    """A lone surrogate has no UTF-8 form: no tokenizer can take it."""
    if text.isascii():  # which Python knows; encoding 27 MB to find out would hold the GIL for 24 ms
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{param} holds a lone surrogate at character {error.start}.", param=param) from error
    return text
