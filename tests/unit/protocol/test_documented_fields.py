"""docs/api.md says of every field what the code does with it, and of no other."""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from apiserver.card import Limits
from apiserver.protocol import (
    chat_request,
    completion_request,
    conversation,
    embeddings,
    generation_fields,
    messages_fields,
    parse,
    responses_request,
    tokenize,
)

DOCUMENT = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")


def documented(heading: str) -> dict[str, str]:
    """Field → honoured, ignored or refused, as the tables under a heading have it."""
    section = DOCUMENT.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    fields: dict[str, str] = {}
    for cell, status in re.findall(r"^\| (`[^|]+`) \| (honoured|ignored|refused) \|", section, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", cell):
            assert name not in fields, f"{name} stands twice under {heading}"
            fields[name] = status
    return fields


def coded(
    struct: type[msgspec.Struct], harmless: Mapping[str, tuple[Any, ...]], ignored: Collection[str]
) -> dict[str, str]:
    honoured = dict.fromkeys(struct.__struct_encode_fields__, "honoured")
    return honoured | dict.fromkeys(harmless, "refused") | dict.fromkeys(ignored, "ignored")


def of_one_dialect_alone() -> Iterator[tuple[str, dict[str, str], dict[str, str]]]:
    shared = coded(generation_fields.SamplingFields, generation_fields.HARMLESS, generation_fields.IGNORED)
    chat = coded(chat_request.ChatFields, chat_request.HARMLESS_IN_CHAT, chat_request.IGNORED_IN_CHAT)
    completion = coded(
        completion_request.CompletionFields, completion_request.HARMLESS_IN_COMPLETIONS, generation_fields.IGNORED
    )
    response = coded(
        responses_request.ResponseFields,
        responses_request.HARMLESS_IN_RESPONSES,
        responses_request.IGNORED_IN_RESPONSES,
    )
    yield "What chat and completions both take", shared, {}
    yield "POST /v1/responses", response, {name: word for name, word in shared.items() if response[name] == word}
    yield "POST /v1/chat/completions", chat, shared
    yield "POST /v1/completions", completion, shared
    yield (
        "POST /v1/embeddings",
        coded(embeddings.EmbeddingFields, embeddings.HARMLESS_IN_EMBEDDINGS, embeddings.IGNORED_IN_EMBEDDINGS),
        {},
    )
    count = coded(
        messages_fields.ConversationFields, messages_fields.HARMLESS_IN_COUNT, messages_fields.IGNORED_IN_COUNT
    )
    message = coded(
        messages_fields.MessagesFields, messages_fields.HARMLESS_IN_MESSAGES, messages_fields.IGNORED_IN_MESSAGES
    )
    yield "POST /v1/messages", message, {}
    yield "POST /v1/messages/count_tokens", count, message
    yield "POST /tokenize", coded(tokenize.TokenizeFields, conversation.MULTIMODAL, ()), {}
    yield "POST /parse_function_call", coded(parse.ParseFields, {}, ()), {}
    yield "POST /separate_reasoning", coded(parse.SeparateFields, {}, ()), {}
    yield "POST /detokenize", coded(tokenize.DetokenizeFields, {}, ()), {}


@pytest.mark.parametrize(("heading", "fields", "elsewhere"), list(of_one_dialect_alone()))
def test_the_tables_are_the_code(heading: str, fields: dict[str, str], elsewhere: dict[str, str]) -> None:
    assert documented(heading) == {name: fields[name] for name in fields if name not in elsewhere}


@pytest.mark.parametrize("name", Limits.__dataclass_fields__)
def test_every_limits_flag_is_named(name: str) -> None:
    assert f"`--{name.replace('_', '-')}`" in DOCUMENT
