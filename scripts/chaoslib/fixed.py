"""Requests whose answers are always the same: asked once while all is calm, compared for ever after."""

from collections.abc import Mapping
from random import Random
from typing import Any

from chaoslib import reading
from chaoslib.ask import Ask

_LETTERS = "abcdefghijklmnopqrstuvwxyz      "


def asks(task: str, rng: Random) -> list[Ask]:
    """Without an expectation yet; `expecting` makes them complete."""
    documents = _generating(rng) if task == "generate" else _embedding(rng)
    found = [_ask(path, body, generates=task == "embed") for path, body in documents]
    return [*found, *(_ask(path, None) for path in ("/v1/models", "/version"))]


def _ask(path: str, body: Mapping[str, Any] | None, *, generates: bool = False) -> Ask:
    return Ask(
        dialect=path.removeprefix("/v1/"),
        path=path,
        method="GET" if body is None else "POST",
        body=body,
        read=reading.by(reading.same, None, stream=False),
        expected=None,
        generates=generates and body is not None,
    )


def _text(rng: Random) -> str:
    return "".join(rng.choices(_LETTERS, k=rng.randrange(4, 60))).strip() or "tea"


def _generating(rng: Random) -> list[tuple[str, Mapping[str, Any]]]:
    found: list[tuple[str, Mapping[str, Any]]] = []
    for _ in range(6):
        text = _text(rng)
        choices = [{"value": name, "description": _text(rng)} for name in ("a", "b", "c")]
        question = {"type": "choice", "instructions": _text(rng), "choices": choices}
        found += [
            ("/tokenize", {"prompt": text}),
            ("/detokenize", {"tokens": list(text.encode())}),
            ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": text}]}),
            ("/v1/score", {"query": text, "items": [_text(rng), _text(rng)], "label_token_ids": [65, 66]}),
            ("/v1/decisions", {"model": "sim", "input": text, "questions": [question]}),
            ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": text}]}),
        ]
    return found


def _embedding(rng: Random) -> list[tuple[str, Mapping[str, Any]]]:
    found: list[tuple[str, Mapping[str, Any]]] = []
    for _ in range(6):
        text, texts = _text(rng), [_text(rng) for _ in range(rng.randrange(2, 5))]
        found += [
            ("/v1/embeddings", {"input": text}),
            ("/v1/embeddings", {"input": texts, "encoding_format": "base64", "dimensions": 64}),
            ("/embed", {"inputs": texts}),
            ("/similarity", {"inputs": {"source_sentence": text, "sentences": texts}}),
            ("/rerank", {"query": text, "documents": texts}),
            ("/v2/rerank", {"query": text, "documents": texts}),
            ("/score", {"text_1": text, "text_2": texts}),
            ("/encode", {"text": text}),
            ("/tokenize", {"prompt": text}),
        ]
    return found
