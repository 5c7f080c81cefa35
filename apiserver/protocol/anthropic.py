"""What Anthropic's routes share, and what their clients find on others: error documents, usage, the list of models."""

import random
import time
from collections.abc import Mapping
from typing import Any

from apiserver.card import Card
from apiserver.errors import ApiError, InvalidRequest, NotFound
from apiserver.events import Result

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_MOST_MODELS = 1000


def new_id() -> str:
    """Of a message; seeded anew in every forked process."""
    return f"msg_{random.getrandbits(96):024x}"


def error_document(error: ApiError) -> dict[str, Any]:
    """Anthropic's form. `request_id` is null where the failure has no request that could be named."""
    other = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ERROR_TYPES.get(error.status, other)
    return {
        "type": "error",
        "error": {"type": kind, "message": error.message},
        "request_id": error.request_id,
    }


def usage_at_start(prompt_tokens: int) -> dict[str, Any]:
    """Before the first token: what was cached of the prompt is not known yet, so all of it counts as input."""
    return _usage(prompt_tokens, 0, 0) | {"output_tokens_details": None, **_UNUSED}


def usage(result: Result) -> dict[str, Any]:
    """Of a whole answer. As Anthropic counts, what was read from the cache is not part of `input_tokens`."""
    return usage_at_end(result.prompt_tokens, result) | _UNUSED


def usage_at_end(prompt_tokens: int, result: Result) -> dict[str, Any]:
    """Of a message_delta: the totals, which replace those of the start."""
    counts = _usage(prompt_tokens, result.cached_tokens, result.output_tokens)
    return counts | {"output_tokens_details": {"thinking_tokens": result.reasoning_tokens}}


def _usage(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }


_UNUSED = {"cache_creation": None, "server_tool_use": None, "service_tier": "standard"}


def model_document(card: Card, name: str) -> dict[str, Any]:
    """A model as Anthropic's clients read it."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(card.created)),
        "lifecycle": "active",
        "max_input_tokens": card.max_model_len,
        "max_tokens": card.max_model_len,
    }


def models_document(card: Card, query: Mapping[str, str]) -> dict[str, Any]:
    """A page of the list of models: `limit` of them, behind `after_id` or before `before_id`."""
    names = list(card.listed_names)
    limit = _limit(query)
    if "after_id" in query:
        names = names[_place(names, query, "after_id") + 1 :]
    has_more = len(names) > limit
    if "before_id" in query:
        names = names[: _place(names, query, "before_id")]
        has_more = len(names) > limit
        names = names[-limit:]
    names = names[:limit]
    return {
        "data": [model_document(card, name) for name in names],
        "has_more": has_more,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", "20")
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= _MOST_MODELS):
        raise InvalidRequest(f"limit must be a number from 1 to {_MOST_MODELS}.", param="limit")
    return int(text)


def _place(names: list[str], query: Mapping[str, str], param: str) -> int:
    if query[param] not in names:
        raise NotFound(f"{param} is no model of this server.", param=param, code="model_not_found")
    return names.index(query[param])
