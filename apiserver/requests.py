"""The job: what was asked, in no dialect. Dialects make it from bytes, the pipeline turns it into events.

A job is a list of prompts; a generating job makes `n` choices of each. Every choice has an `index`
(prompt number * n + choice number), which every event about it carries.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from engine_bridge.wire import SamplingParams


class Text(msgspec.Struct, frozen=True, gc=False):
    """A prompt as text. `param` is where the client wrote it, for error messages ("prompt", "input[3]")."""

    text: str
    param: str
    add_special_tokens: bool = True


class TokenIds(msgspec.Struct, frozen=True, gc=False):
    """A prompt that goes round the tokenizer; ids are checked against the model's vocabulary."""

    token_ids: list[int]
    param: str


class Chat(msgspec.Struct, frozen=True, gc=False):
    """A conversation, to be rendered by the chat template and encoded as it stands (templates write BOS themselves)."""

    messages: list[dict[str, Any]]
    param: str = "messages"
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    variables: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    template: str | None = None  # a template from the request itself; only where the operator trusts it


Prompt = Text | TokenIds | Chat


class Truncation(msgspec.Struct, frozen=True, gc=False):
    """Keep at most `keep` prompt tokens (-1: as many as the model takes), dropping them at `side`'s other end."""

    keep: int
    side: Literal["left", "right"]  # left keeps the last tokens, right keeps the first
    param: str = "truncate_prompt_tokens"


FORCED_CALLS, FORCED_CALL = "forced-calls", "forced-call"
"""The parsers of answers that the engine's grammar forces to be calls: a list of them, or the arguments of one."""


class Structure(msgspec.Struct, frozen=True, gc=False):
    """How an answer's text is taken apart, by the names of parsers in `apiserver.pipeline.parsers`; None: not at all.

    `tools` are OpenAI's function tools, `{"type": "function", "function": {"name", "description", "parameters"}}`: the
    parsers look up names and the types of parameters there. `thinking` says whether the prompt leaves the model inside
    its reasoning (None: as the parser's own models begin).
    """

    reasoning: str | None = None
    tool_calls: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    thinking: bool | None = None
    parallel: bool = True
    """Whether there may be more than one call; the ones behind the first are dropped otherwise."""


class GenerateJob(msgspec.Struct, frozen=True, gc=False):
    """Make `n` continuations of each prompt.

    `sampling_params.max_tokens` is filled in by the pipeline, prompt by prompt: from `max_tokens` where the client set
    one (under the name `max_tokens_param`), else with the rest of the context.
    """

    prompts: list[Prompt]
    sampling_params: SamplingParams
    max_tokens: int | None
    max_tokens_param: str = "max_tokens"
    clamp_max_tokens: bool = False
    n: int = 1
    n_param: str = "n"
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    echo: bool = False
    with_token_ids: bool = False
    truncation: Truncation | None = None
    client_request_id: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    structure: Structure | None = None
    each: tuple["GenerateJob", ...] = ()
    """Where the prompts of one request ask for different things (native batches): a job for each prompt, with that
    prompt alone. It says everything about its prompt but `n`, `priority` and `structure`."""

    def of(self, number: int) -> "GenerateJob":
        """What is asked of one prompt."""
        return self.each[number] if self.each else self


class EmbedJob(msgspec.Struct, frozen=True, gc=False):
    """Make one vector of each prompt."""

    prompts: list[Prompt]
    dimensions: int | None = None
    truncation: Truncation | None = None
    truncations: tuple[Truncation | None, ...] = ()
    """One for each prompt instead, where they differ: a query is not cut like the documents."""
    client_request_id: str | None = None
    priority: int = 0


class ScoreJob(msgspec.Struct, frozen=True, gc=False):
    """How likely each label is as the next token of each prompt: one list of logprobs a prompt.

    `labels` holds one list of token ids for all prompts, or one for each of them; or `label_texts` holds as many lists
    of texts, each of which must be one token behind its prompt.
    """

    prompts: list[Prompt]
    labels: list[list[int]] = msgspec.field(default_factory=list[list[int]])
    label_texts: list[tuple[str, ...]] = msgspec.field(default_factory=list[tuple[str, ...]])
    prompts_param: str | None = None  # the field that has all prompts, where their own names do not begin with it
    truncation: Truncation | None = None
    client_request_id: str | None = None
    priority: int = 0


class TokenizeJob(msgspec.Struct, frozen=True, gc=False):
    """Only render and encode: no engine takes part."""

    prompts: list[Prompt]
    with_token_texts: bool = False


class DetokenizeJob(msgspec.Struct, frozen=True, gc=False):
    """Only decode."""

    prompts: list[TokenIds]
    skip_special_tokens: bool = True


class ParseJob(msgspec.Struct, frozen=True, gc=False):
    """Only take a text apart, as an answer would be."""

    text: str
    structure: Structure
    param: str
    """Where the client named the parser."""


class RenderJob(msgspec.Struct, frozen=True, gc=False):
    """Everything up to the engine's door, and no further: what would be sent, or why it would be refused."""

    generate: GenerateJob

    @property
    def prompts(self) -> list[Prompt]:
        return self.generate.prompts


PromptJob = GenerateJob | EmbedJob | ScoreJob | TokenizeJob | DetokenizeJob | RenderJob
"""What has prompts, and so takes preprocessing."""

Job = PromptJob | ParseJob
"""What the pipeline takes."""
