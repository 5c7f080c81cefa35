"""A model that can do everything, for dialects to be tried on."""

from dataclasses import replace
from typing import Any

import msgspec

from apiserver.card import Card, Limits
from engine_bridge.wire import Capabilities

ABLE = Capabilities(
    task="generate",
    max_model_len=1000,
    vocab_size=500,
    eos_token_ids=(499,),
    logprobs=20,
    prompt_logprobs=True,
    min_tokens=True,
    logit_bias=True,
    json_schema=True,
    regex=True,
    grammar=True,
    lora=True,
    engine="able 1.0",
    score=True,
    structural_tag=True,
    token_ids_logprob=True,
)
_CARD = Card(
    names=("first", "second"),
    root="/models/first",
    created=0,
    capabilities=ABLE,
    max_model_len=1000,
    vocab_size=500,
    limits=Limits(),
    tool_call_parser="hermes",
)


def make_card(*, able: dict[str, Any] | None = None, **changes: Any) -> Card:
    """`able` changes what the engine can do, the rest what the server was told."""
    return replace(_CARD, capabilities=msgspec.structs.replace(ABLE, **(able or {})), **changes)
