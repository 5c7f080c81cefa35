"""What the OpenAI dialects share: error documents, finish reasons, usage, logprobs. Functions, no base class."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from apiserver.errors import ApiError
from apiserver.events import Finished, PreparedPrompt, Result, TokenLogprob
from apiserver.protocol.exchange import Chunk
from engine_bridge.wire import FinishReason

DONE = Chunk(msgspec.Raw(b"[DONE]"))

FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.ERROR: "error",
}

TOOL_CALLS = "tool_calls"

Many = Callable[[Iterable[Any]], Any]
"""What a long list is in a document: `list`, or `Listed` where it is to be written piece by piece."""

encode_json = msgspec.json.Encoder().encode


def new_id(prefix: str) -> str:
    """A public id, seeded anew in every forked process. It never leaves the dialect: the engine has its own."""
    return f"{prefix}-{random.getrandbits(96):024x}"


def now() -> int:
    return int(time.time())


def error_document(error: ApiError) -> dict[str, Any]:
    """OpenAI's nested form; `code` is a word where there is one, else the status."""
    code: str | int = error.code if error.code is not None else error.status
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": code}}


def error_chunks(error: ApiError) -> Iterator[Chunk]:
    """A stream that fails says so in a frame of its own, then ends: never a clean empty answer."""
    yield Chunk(error_document(error))
    yield DONE


def usage(result: Result) -> dict[str, Any]:
    """Tokens really used: each prompt once, however many choices it has."""
    return usage_counts(result.prompt_tokens, result.output_tokens, result.cached_tokens, result.reasoning_tokens)


def usage_counts(
    prompt_tokens: int, output_tokens: int, cached_tokens: int = 0, reasoning_tokens: int = 0
) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def finish_reason(finished: Finished, *, calls: bool = True) -> str:
    """The reason's word; with `calls`, an answer that ended of itself after tool calls ended for them."""
    if calls and finished.tool_calls and finished.reason is FinishReason.STOP:
        return TOOL_CALLS
    return FINISH_REASONS[finished.reason]


def stop_fields(finished: Finished) -> dict[str, Any]:
    """Which stop string or token it was, under vLLM's name and SGLang's."""
    return {"stop_reason": finished.stop_reason, "matched_stop": finished.matched_stop}


def token_text(entry: TokenLogprob, *, as_id: bool) -> str:
    """A token's text in a logprobs document; a part of a character shows as U+FFFD, its bytes beside it."""
    return f"token_id:{entry.token_id}" if as_id else entry.text


def chat_logprobs(entries: list[TokenLogprob], *, as_ids: bool, many: Many = list) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion."""
    return {"content": many(_chat_logprob(entry, as_ids, with_top=True) for entry in entries), "refusal": None}


def _chat_logprob(entry: TokenLogprob, as_id: bool, *, with_top: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "token": token_text(entry, as_id=as_id),
        "logprob": entry.logprob,
        "bytes": list(entry.raw),
    }
    if with_top:
        document["top_logprobs"] = [_chat_logprob(other, as_id, with_top=False) for other in entry.top]
    return document


def completion_logprobs(
    entries: list[TokenLogprob], *, as_ids: bool, with_top: bool, many: Many = list
) -> dict[str, Any]:
    """`choices[].logprobs` of a completion."""
    return {
        "tokens": many(_token_name(entry, as_ids) for entry in entries),
        "token_logprobs": many(entry.logprob for entry in entries),
        "top_logprobs": many(_tops_by_name(entry, as_ids) for entry in entries) if with_top else None,
        "text_offset": many(entry.offset for entry in entries),
    }


def _tops_by_name(entry: TokenLogprob, as_ids: bool) -> dict[str, float] | None:
    """The best alternatives and, if it is none of them, the token itself. None where nothing precedes the token."""
    if entry.logprob is None:
        return None
    has_own = any(other.token_id == entry.token_id for other in entry.top)
    tops: dict[str, float] = {}
    for other in entry.top if has_own else (*entry.top, entry):
        name = _token_name(other, as_ids)
        if name in tops:
            name = f"token_id:{other.token_id}"  # a byte token and a letter may say the same: neither hides the other
        if other.logprob is not None:
            tops[name] = other.logprob
    return tops


def _token_name(entry: TokenLogprob, as_id: bool) -> str:
    """Keys of one object must differ: a part of a character is written as its bytes (as OpenAI did)."""
    if as_id or entry.text.encode() == entry.raw:
        return token_text(entry, as_id=as_id)
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.raw)


def prompt_logprobs(entries: list[TokenLogprob], many: Many = list) -> Any:
    """vLLM's `prompt_logprobs`: per prompt token, {id: {logprob, rank, decoded_token}}; null for the first."""
    return many(map(_prompt_logprob, entries))


def _prompt_logprob(entry: TokenLogprob) -> dict[str, Any] | None:
    if entry.logprob is None:
        return None
    own = next((rank for rank, other in enumerate(entry.top, 1) if other.token_id == entry.token_id), None)
    document: dict[str, Any] = {
        str(entry.token_id): {"logprob": entry.logprob, "rank": own, "decoded_token": entry.text}
    }
    for rank, other in enumerate(entry.top, 1):
        document[str(other.token_id)] = {"logprob": other.logprob, "rank": rank, "decoded_token": other.text}
    return document


def prompt_token_ids(prompts: list[PreparedPrompt], index: int, n: int) -> list[int]:
    """Of the prompt that this choice belongs to."""
    return prompts[index // n].token_ids
