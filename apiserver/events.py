"""The events: what happened, in no dialect, and their fold.

Order: one Started, then for each index any number of deltas and one Finished (or one Embedded), nothing after. A whole
answer is the fold of the very events that a stream sends, so the two cannot disagree.
"""

from dataclasses import dataclass, field

import msgspec

from engine_bridge.wire import FinishReason, SamplingParams, count_ids, pack_ids, unpack_ids


class PreparedPrompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt as the engine gets it. `text` is None where the client sent ids and nobody needs the text.

    The ids stay packed from the encoder to the wire: making 36,000 of them objects and packing those again took half of
    all that a long chat costs (0.6 of 1.3 ms).
    """

    packed: bytes
    text: str | None
    token_texts: list[str] | None = None

    @classmethod
    def of(cls, token_ids: list[int], text: str | None, token_texts: list[str] | None = None) -> "PreparedPrompt":
        """Of ids that are objects already."""
        return cls(pack_ids(token_ids), text, token_texts)

    @property
    def token_ids(self) -> list[int]:
        """Unpacked anew each time."""
        return unpack_ids(self.packed)

    @property
    def token_count(self) -> int:
        return count_ids(self.packed)


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """A token with its logprob, and the best alternatives (whose own `top` is empty)."""

    token_id: int
    logprob: float | None  # None: the first prompt token, which nothing precedes
    text: str  # may hold U+FFFD where the token is part of a character
    raw: bytes  # the token's true bytes
    top: tuple["TokenLogprob", ...] = ()
    offset: int = 0  # where it begins in prompt + completion, in characters
    asked: tuple["TokenLogprob", ...] = ()  # the tokens that were asked for by id, at this one's place


class Started(msgspec.Struct, frozen=True, gc=False):
    """Everything is validated and queued: a stream's headers may go out."""

    prompts: list[PreparedPrompt]


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """More text of one choice: whole characters, no part of a stop string.

    `token_ids` are the ids since the last delta, the ones whose text is still held back included. A delta without text
    comes only where the client asked for ids or logprobs.
    """

    index: int
    text: str
    token_ids: list[int] = msgspec.field(default_factory=list[int])
    logprobs: list[TokenLogprob] | None = None


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """More of what the model thinks before it answers; like a TextDelta, and never part of the content."""

    index: int
    text: str
    token_ids: list[int] = msgspec.field(default_factory=list[int])
    logprobs: list[TokenLogprob] | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False):
    """More of one tool call of one choice. `call` counts from 0; the calls of a choice come one after another.

    The first delta of a call carries its `id` and `name` (the whole name), the later ones neither; the `arguments` of
    all, joined, are the call's JSON text as the model wrote it.
    """

    index: int
    call: int
    arguments: str
    id: str | None = None
    name: str | None = None
    token_ids: list[int] = msgspec.field(default_factory=list[int])
    logprobs: list[TokenLogprob] | None = None


class PromptScored(msgspec.Struct, frozen=True, gc=False):
    """The prompt's own logprobs, one a token; before any delta of its index."""

    index: int
    logprobs: list[TokenLogprob]


class Finished(msgspec.Struct, frozen=True, gc=False):
    """The end of one choice. `stop_reason` is the stop string or extra stop token, `matched_stop` an EOS id as well."""

    index: int
    reason: FinishReason
    stop_reason: str | int | None
    matched_stop: str | int | None
    output_tokens: int
    cached_tokens: int
    tool_calls: int = 0
    """How many tool calls the choice made; with STOP, the dialects' finish reason is then their word for that."""
    reasoning_tokens: int = 0


class Embedded(msgspec.Struct, frozen=True, gc=False):
    """One prompt's vector as little-endian float32 bytes."""

    index: int
    vector: bytes


class Scored(msgspec.Struct, frozen=True, gc=False):
    """The labels' logprobs after one prompt, in the order that the labels were given in."""

    index: int
    logprobs: tuple[float, ...]
    label_token_ids: tuple[int, ...] = ()


class Detokenized(msgspec.Struct, frozen=True, gc=False):
    """One list of ids as text."""

    index: int
    text: str


class Rendered(msgspec.Struct, frozen=True, gc=False):
    """One prompt's sampling params, as they would be sent with it."""

    index: int
    sampling_params: SamplingParams


Delta = TextDelta | ReasoningDelta | ToolCallDelta
"""A piece of one choice. Pieces of the three kinds come in the order in which the model made them."""

Event = Started | Delta | PromptScored | Finished | Embedded | Scored | Detokenized | Rendered


@dataclass(slots=True)
class Text:
    """A block of a folded answer: plain text, with the logprobs of its own tokens where they were asked for."""

    text: str
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])


@dataclass(slots=True)
class Reasoning:
    """A block of a folded answer: what the model thought."""

    text: str


@dataclass(slots=True)
class ToolCall:
    """A block of a folded answer: one tool call; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


Block = Text | Reasoning | ToolCall


@dataclass(slots=True)
class Choice:
    """One index's share of the fold."""

    blocks: list[Block] = field(default_factory=list[Block])
    """The answer in the order in which it was made; neighbours of one kind are one block."""
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    finished: Finished | None = None
    output_tokens: int = 0
    _held: list[TokenLogprob] = field(default_factory=list[TokenLogprob])  # of tokens whose text is yet to come

    @property
    def text(self) -> str:
        """The content alone."""
        return "".join([block.text for block in self.blocks if isinstance(block, Text)])

    @property
    def reasoning(self) -> str:
        return "".join([block.text for block in self.blocks if isinstance(block, Reasoning)])

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [block for block in self.blocks if isinstance(block, ToolCall)]

    def add(self, delta: Delta) -> None:
        match delta:
            case TextDelta():
                self._extend(Text, delta.text)
                self._place(delta.logprobs)
            case ReasoningDelta():
                self._extend(Reasoning, delta.text)
                self._held.clear()
            case ToolCallDelta():
                self._held.clear()
                last = self.blocks[-1] if self.blocks else None
                if delta.id is not None or not isinstance(last, ToolCall):
                    self.blocks.append(ToolCall(delta.id or "", delta.name or "", delta.arguments))
                else:
                    last.arguments += delta.arguments
        self.token_ids += delta.token_ids
        self.output_tokens += len(delta.token_ids)
        if delta.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs += delta.logprobs

    def _place(self, logprobs: list[TokenLogprob] | None) -> None:
        """Logprobs belong to the block that their text is in; before it begins, they wait for it."""
        if logprobs is None:
            return
        last = self.blocks[-1] if self.blocks else None
        if isinstance(last, Text):
            last.logprobs += [*self._held, *logprobs]
            self._held.clear()
        else:
            self._held += logprobs

    def _extend(self, kind: type[Text] | type[Reasoning], text: str) -> None:
        last = self.blocks[-1] if self.blocks else None
        if isinstance(last, kind):
            last.text += text
        elif text:
            self.blocks.append(kind(text))


class Result:
    """The fold: feed it every event, then read the answer."""

    def __init__(self) -> None:
        self.prompts: list[PreparedPrompt] = []
        self.prompt_tokens = 0
        """Each prompt counts once, however many choices it has."""
        self.choices: dict[int, Choice] = {}
        self.vectors: dict[int, bytes] = {}
        self.scores: dict[int, Scored] = {}
        self.texts: dict[int, str] = {}
        self.sampling_params: dict[int, SamplingParams] = {}

    def feed(self, event: Event) -> None:
        match event:
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                self._choice(event.index).add(event)
            case Finished():
                choice = self._choice(event.index)
                choice.finished = event
                choice.output_tokens = event.output_tokens
            case Embedded():
                self.vectors[event.index] = event.vector
            case Started():
                self.prompts = event.prompts
                self.prompt_tokens = sum([prompt.token_count for prompt in event.prompts])
            case PromptScored():
                self._choice(event.index).prompt_logprobs = event.logprobs
            case Scored():
                self.scores[event.index] = event
            case Detokenized():
                self.texts[event.index] = event.text
            case Rendered():
                self.sampling_params[event.index] = event.sampling_params

    def _choice(self, index: int) -> Choice:
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = Choice()
        return choice

    @property
    def output_tokens(self) -> int:
        return sum(choice.output_tokens for choice in self.choices.values())

    @property
    def reasoning_tokens(self) -> int:
        return sum(choice.finished.reasoning_tokens for choice in self.choices.values() if choice.finished is not None)

    @property
    def cached_tokens(self) -> int:
        """As with the prompts, once for each: what its choices found in the cache, the least of them, for the others
        found what the first had left there."""
        per_prompt = max(1, len(self.choices) // max(1, len(self.prompts)))
        least: dict[int, int] = {}
        for index, choice in self.choices.items():
            if choice.finished is not None:
                prompt, cached = index // per_prompt, choice.finished.cached_tokens
                least[prompt] = min(cached, least.get(prompt, cached))
        return sum(least.values())
