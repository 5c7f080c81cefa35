"""A request as llama.cpp gets it: what is refused before it gets there, and the JSON.

Refused here is what llama.cpp would ignore, and what would harm it: a grammar nested 200,000 deep overflows the C stack
of its parser and kills the process. (It reports a grammar that does not parse, and one that leaves no token to sample
ends its own request with an error and no other.)

Presence and frequency penalties count the prompt's tokens too; llama.cpp knows no other way.
"""

import time
from collections.abc import Sequence

import msgspec

from engine_bridge.engines import Key
from engine_bridge.wire import Capabilities, FailureKind, Generate, Request, Score, unpack_ids

_MAX_CONSTRAINT_CHARS = 65_536
_MAX_GRAMMAR_DEPTH = 256  # 5,000 levels still parse


class Refused(Exception):
    """This request is not served; the message says why."""

    def __init__(self, message: str, kind: FailureKind = FailureKind.INVALID) -> None:
        super().__init__(message)
        self.kind = kind


class Run:
    """One request in the engine. The loop writes it; its slot's thread reads `aborted`."""

    __slots__ = ("aborted", "arrived", "has_slot", "key", "queued_seconds", "request")

    def __init__(self, key: Key, request: Request) -> None:
        self.key = key
        self.request = request
        self.has_slot = False
        self.aborted = False
        self.arrived = time.monotonic()
        self.queued_seconds = 0.0

    def take_slot(self) -> None:
        self.has_slot = True
        self.queued_seconds = time.monotonic() - self.arrived


def check(request: Generate, capabilities: Capabilities) -> None:
    """Raises Refused for what would fail in llama.cpp, harm it, or be ignored by it."""
    params = request.sampling_params
    _check_prompt(unpack_ids(request.prompt_token_ids), capabilities)
    constraints = [text for text in (params.json_schema, params.grammar) if text is not None]
    refusals = {
        "this engine has no regex": params.regex is not None,
        "this engine has no prompt_logprobs": params.prompt_logprobs is not None,
        "this engine has no LoRA adapters": params.lora is not None,
        f"logprobs is at most {capabilities.logprobs}": (params.logprobs or 0) > capabilities.logprobs,
        "only one of json_schema and grammar can be given": len(constraints) > 1,
        "min_tokens and ignore_eos cannot be combined with json_schema or grammar": bool(constraints)
        and (params.min_tokens > 0 or params.ignore_eos),
        f"json_schema and grammar have at most {_MAX_CONSTRAINT_CHARS} characters": any(
            len(text) > _MAX_CONSTRAINT_CHARS for text in constraints
        ),
    }
    for message, applies in refusals.items():
        if applies:
            raise Refused(message)
    if params.grammar is not None:
        _check_grammar(params.grammar)
    if params.json_schema is not None:
        _check_schema(params.json_schema)


def check_score(request: Score, capabilities: Capabilities) -> None:
    """Raises Refused for what would fail in llama.cpp, or harm it."""
    _check_prompt(unpack_ids(request.prompt_token_ids), capabilities)
    if not all(0 <= label < capabilities.vocab_size for label in request.label_token_ids):
        raise Refused("a label is outside the vocabulary")


def _check_prompt(prompt: list[int], capabilities: Capabilities) -> None:
    if not prompt:
        raise Refused("the prompt is empty")
    if len(prompt) >= capabilities.max_model_len:
        raise Refused(f"the prompt's {len(prompt)} tokens leave no room in the model's {capabilities.max_model_len}")
    if not 0 <= min(prompt) <= max(prompt) < capabilities.vocab_size:
        raise Refused("the prompt has token ids outside the vocabulary")


def _check_grammar(grammar: str) -> None:
    if not grammar.strip() or grammar.lstrip().startswith("%llguidance"):
        raise Refused("grammar has to be a GBNF grammar")
    depth = 0
    for char in grammar:
        depth += (char == "(") - (char == ")")
        if depth > _MAX_GRAMMAR_DEPTH:
            raise Refused(f"grammar nests its parentheses more than {_MAX_GRAMMAR_DEPTH} deep")


def _check_schema(schema: str) -> None:
    try:
        decoded = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(f"json_schema is not JSON: {error}") from error
    if not isinstance(decoded, dict | bool):
        raise Refused("json_schema has to be an object or a boolean")


def completion_body(
    request: Generate, *, prompt: list[int], max_tokens: int, ignore_eos: bool, logit_bias: Sequence[tuple[int, float]]
) -> dict[str, object]:
    """The request as llama.cpp reads it. Every sampler is said: its own defaults are not those of the APIs we serve."""
    params = request.sampling_params
    body: dict[str, object] = {
        "prompt": prompt,
        "n_predict": max_tokens,
        "stream": True,
        "n_probs": max(params.logprobs or 0, 1),  # ids come with the logprobs, and with nothing else
        "timings_per_token": True,
        "return_progress": True,  # a callback after each batch of the prompt, to abort from
        "cache_prompt": request.cache_salt is None,  # its cache knows no salts
        "seed": 0xFFFFFFFF if params.seed is None else params.seed % 0xFFFFFFFF,  # the excluded value is "random"
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        "temperature": params.temperature,
        "top_k": max(params.top_k, 0),  # 0 = off
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repeat_last_n": len(prompt) + max_tokens,  # all there is
        "mirostat": 0,
        "dynatemp_range": 0.0,
        "typical_p": 1.0,
        "dry_multiplier": 0.0,
        "xtc_probability": 0.0,
        "ignore_eos": ignore_eos,
        "logit_bias": [*params.logit_bias, *logit_bias],  # False bans
    }
    if params.grammar is not None:
        body["grammar"] = params.grammar
    if params.json_schema is not None:
        body["json_schema"] = msgspec.Raw(params.json_schema.encode())
    return body
