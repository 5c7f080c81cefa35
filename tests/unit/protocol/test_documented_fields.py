"""docs/api.md says of every field what the code does with it, and of no other."""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from apiserver.card import Limits
from apiserver.http.app import ROUTES
from apiserver.protocol import (
    chat_request,
    completion_request,
    conversation,
    decisions,
    embeddings,
    encode,
    generate_fields,
    generation_fields,
    label_score,
    messages_fields,
    native_sampling,
    pair_score,
    parse,
    rerank,
    responses_request,
    sglang_decisions,
    systemone,
    tei,
    token_generate,
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
    yield from of_the_native_routes(shared)
    yield from of_decisions_and_rankings()


def of_the_native_routes(shared: dict[str, str]) -> Iterator[tuple[str, dict[str, str], dict[str, str]]]:
    generate, sampling, tokens = generate_fields, native_sampling, token_generate
    yield (
        "POST /generate",
        coded(generate.GenerateFields, generate.HARMLESS_IN_GENERATE, generate.IGNORED_IN_GENERATE),
        {},
    )
    yield (
        "The native sampling_params",
        coded(sampling.NativeSampling, sampling.HARMLESS_IN_SAMPLING, sampling.IGNORED_IN_SAMPLING),
        {},
    )
    yield "POST /inference/v1/generate", coded(tokens.TokenGenerateFields, tokens.HARMLESS_IN_TOKEN_GENERATE, ()), {}
    yield (
        "The sampling_params of the token API",
        coded(tokens.TokenSampling, tokens.HARMLESS_IN_TOKEN_SAMPLING, ()),
        shared,
    )
    yield "POST /encode", coded(encode.EncodeFields, encode.HARMLESS_IN_ENCODE, encode.IGNORED_IN_ENCODE), {}


def of_decisions_and_rankings() -> Iterator[tuple[str, dict[str, str], dict[str, str]]]:
    own = sglang_decisions
    yield "POST /v1/decisions", coded(decisions.DecisionFields, {}, decisions.IGNORED_IN_DECISIONS), {}
    yield (
        "POST /v1/decisions in SGLang's form",
        coded(own.SGLangDecisionFields, own.HARMLESS_IN_SGLANG_DECISIONS, own.IGNORED_IN_SGLANG_DECISIONS),
        {},
    )
    yield "POST /v1/systemone", coded(systemone.SystemOneFields, {}, systemone.IGNORED_IN_SYSTEMONE), {}
    yield (
        "POST /v1/score",
        coded(label_score.LabelScoreFields, label_score.HARMLESS_IN_LABEL_SCORE, label_score.IGNORED_IN_LABEL_SCORE),
        {},
    )
    yield (
        "POST /score",
        coded(pair_score.PairScoreFields, pair_score.HARMLESS_IN_PAIR_SCORE, pair_score.IGNORED_IN_PAIR_SCORE),
        {},
    )
    yield "POST /rerank", coded(rerank.RerankFields, rerank.HARMLESS_IN_RERANK, rerank.IGNORED_IN_RERANK), {}
    yield "POST /rerank with texts", coded(tei.TextsFields, {}, ()), {}
    yield "POST /embed", coded(tei.EmbedFields, tei.HARMLESS_IN_EMBED, ()), {}
    yield "POST /similarity", coded(tei.SimilarityFields, {}, ()), {}


@pytest.mark.parametrize(("heading", "fields", "elsewhere"), list(of_one_dialect_alone()))
def test_the_tables_are_the_code(heading: str, fields: dict[str, str], elsewhere: dict[str, str]) -> None:
    assert documented(heading) == {name: fields[name] for name in fields if name not in elsewhere}


@pytest.mark.parametrize("name", Limits.__dataclass_fields__)
def test_every_limits_flag_is_named(name: str) -> None:
    assert f"`--{name.replace('_', '-')}`" in DOCUMENT


@pytest.mark.parametrize("path", sorted(name for name in ROUTES if name.startswith("/")))
def test_every_route_is_named(path: str) -> None:
    assert path.replace("{model:path}", "NAME").replace("{response_id}", "ID") in DOCUMENT
