"""The response object: what is fixed when the request is read, how it ends, what others make of one that is stored."""

from typing import Any, NamedTuple

import msgspec

from apiserver.errors import ApiError
from apiserver.events import Result
from apiserver.protocol import openai
from apiserver.protocol.responses_request import ResponseFields, TextConfig
from apiserver.protocol.responses_tools import Tools
from engine_bridge.wire import SamplingParams

UNFINISHED = ("queued", "in_progress")


def fixed_fields(
    fields: ResponseFields, tools: Tools, params: SamplingParams, *, model: str, stores: bool
) -> dict[str, Any]:
    """The part of the object that says the request again, with every default filled in."""
    reasoning = fields.reasoning
    return {
        "model": model,
        "background": bool(fields.background),
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": fields.max_tool_calls,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "previous_response_id": fields.previous_response_id,
        "prompt_cache_key": fields.prompt_cache_key,
        "reasoning": {
            "effort": _effort(fields),
            "summary": None if reasoning is None else reasoning.summary or reasoning.generate_summary,
        },
        "safety_identifier": fields.safety_identifier,
        "service_tier": "default",
        "store": stores,
        "temperature": params.temperature,
        "text": _text(fields.text or TextConfig()),
        "tool_choice": fields.tool_choice or "auto",
        "tools": tools.sent,
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": fields.truncation or "disabled",
        "user": fields.user,
    }


def _effort(fields: ResponseFields) -> str | None:
    """A number is our own addition: the object has words only."""
    effort = fields.reasoning.effort if fields.reasoning is not None else None
    return effort if isinstance(effort, str) else None


def _text(text: TextConfig) -> dict[str, Any]:
    form = text.format
    document: dict[str, Any] = {"type": "text"} if form is None else {"type": form.type}
    if form is not None and form.type == "json_schema":
        schema = msgspec.json.decode(form.schema) if isinstance(form.schema, str) else form.schema
        document |= {"name": form.name, "schema": schema, "strict": form.strict, "description": form.description}
    return {"format": document, "verbosity": text.verbosity or "medium"}


def usage(result: Result) -> dict[str, Any]:
    """Tokens really used. No engine of ours tells what it newly wrote into its cache."""
    return {
        "input_tokens": result.prompt_tokens,
        "input_tokens_details": {"cached_tokens": result.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": result.output_tokens,
        "output_tokens_details": {"reasoning_tokens": result.reasoning_tokens},
        "total_tokens": result.prompt_tokens + result.output_tokens,
    }


def incomplete_details(status: str) -> dict[str, str] | None:
    return {"reason": "max_output_tokens"} if status == "incomplete" else None


def error_of(error: ApiError) -> dict[str, str]:
    """In the words that the client's model has."""
    return {"code": "invalid_prompt" if error.status < 500 else "server_error", "message": error.message}


# ---- what others make of a stored one ----


class Ended(NamedTuple):
    """A stored response that somebody else ended."""

    status: str
    document: bytes
    frame: bytes
    """The stream's last event, for whoever follows it."""


def cancelled(document: bytes) -> bytes:
    """Somebody asked for its end: the same object, cancelled."""
    return openai.encode_json(msgspec.json.decode(document) | {"status": "cancelled"})


def lost(document: bytes, sequence_number: int) -> Ended:
    """Its API server died. One that was unfinished has failed; one that was cancelled stays so."""
    response: dict[str, Any] = msgspec.json.decode(document)
    if response["status"] in UNFINISHED:
        error = {"code": "server_error", "message": "The API server that made this response died."}
        response |= {"status": "failed", "error": error}
    name = "response.failed" if response["status"] == "failed" else "response.incomplete"
    event = {"type": name, "response": response, "sequence_number": sequence_number}
    frame = b"event: %b\ndata: %b\n\n" % (name.encode(), openai.encode_json(event))
    return Ended(response["status"], openai.encode_json(response), frame)
