"""What a dialect may know of the service it speaks for: names, limits, and what the engine can do."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from apiserver.errors import InvalidRequest, NotFound
from engine_bridge.wire import Capabilities

_MOST_NAME = 256  # characters of a name that only a pattern, or --any-model, takes: answers say it, each chunk of them


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one request, checked before any per-item work. Flags of the same names set them."""

    max_body_bytes: int = 32 * 1024 * 1024
    max_n: int = 128
    max_stop_strings: int = 64
    max_stop_length: int = 1024
    max_logprobs: int = 20
    max_logit_bias: int = 1024
    max_batch_prompts: int = 2048


@dataclass(frozen=True, slots=True)
class Card:
    """The model as clients see it. Made anew when the engine says what it can do."""

    names: tuple[str, ...]
    root: str
    created: int
    capabilities: Capabilities
    max_model_len: int
    vocab_size: int
    limits: Limits = field(default_factory=Limits)
    any_model: bool = False
    strict_fields: bool = False
    clamp_max_tokens: bool = False
    trust_request_chat_template: bool = False
    aliases: tuple[str, ...] = ()
    """Further names that clients may use; `*` and `?` stand for any characters, and for one."""
    incremental_streaming_output: bool = False
    """Events of native streams hold what is new, and not all so far."""
    tool_call_parser: str | None = None
    """The tool-call parser of this model's answers; None: it has none, and tools with tool_choice auto are a 400."""
    reasoning_parser: str | None = None

    @property
    def listed_names(self) -> tuple[str, ...]:
        """The names that can be listed: an alias that is a pattern is none."""
        named = (alias for alias in self.aliases if not any(mark in alias for mark in "*?["))
        return tuple(dict.fromkeys((*self.names, *named)))

    def resolve(self, model: str | None) -> str:
        """The name to answer with. Raises NotFound for a model that is not served here, InvalidRequest for a name of
        no model's length."""
        if not model:
            return self.names[0]
        if model in self.names:
            return model
        if self.any_model or any(fnmatchcase(model, alias) for alias in self.aliases):
            if len(model) > _MOST_NAME:
                raise InvalidRequest(f"model may have {_MOST_NAME} characters at most.", param="model")
            return model
        known = ", ".join(f"'{name}'" for name in self.names)
        raise NotFound(
            f"The model '{model[:200]}' does not exist; this server has {known}.", param="model", code="model_not_found"
        )
