"""The events: what happened, in no dialect, and their fold.

Order: one Started, then for each index any number of deltas and one Finished (or one Embedded), nothing after. A whole
answer is the fold of the very events that a stream sends, so the two cannot disagree.
"""

from dataclasses import dataclass, field

from engine_bridge.wire import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt as the engine gets it. `text` is None where the client sent ids and nobody needs the text."""

    token_ids: list[int]
    text: str | None
    token_texts: list[str] | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its logprob, and the best alternatives (whose own `top` is empty)."""

    token_id: int
    logprob: float | None  # None: the first prompt token, which nothing precedes
    text: str  # may hold U+FFFD where the token is part of a character
    raw: bytes  # the token's true bytes
    top: tuple["TokenLogprob", ...] = ()
    offset: int = 0  # where it begins in prompt + completion, in characters


@dataclass(frozen=True, slots=True)
class Started:
    """Everything is validated and queued: a stream's headers may go out."""

    prompts: list[PreparedPrompt]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of one choice: whole characters, no part of a stop string.

    `token_ids` are the ids since the last delta, the ones whose text is still held back included. A delta without text
    comes only where the client asked for ids or logprobs.
    """

    index: int
    text: str
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] | None = None


@dataclass(frozen=True, slots=True)
class PromptScored:
    """The prompt's own logprobs, one a token; before any delta of its index."""

    index: int
    logprobs: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one choice. `stop_reason` is the stop string or extra stop token, `matched_stop` an EOS id as well."""

    index: int
    reason: FinishReason
    stop_reason: str | int | None
    matched_stop: str | int | None
    output_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Embedded:
    """One prompt's vector as little-endian float32 bytes."""

    index: int
    vector: bytes


@dataclass(frozen=True, slots=True)
class Detokenized:
    """One list of ids as text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """One prompt's sampling params, as they would be sent with it."""

    index: int
    sampling_params: SamplingParams


Event = Started | TextDelta | PromptScored | Finished | Embedded | Detokenized | Rendered


@dataclass(slots=True)
class Choice:
    """One index's share of the fold."""

    texts: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    finished: Finished | None = None
    output_tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Result:
    """The fold: feed it every event, then read the answer."""

    def __init__(self) -> None:
        self.prompts: list[PreparedPrompt] = []
        self.choices: dict[int, Choice] = {}
        self.vectors: dict[int, bytes] = {}
        self.texts: dict[int, str] = {}
        self.sampling_params: dict[int, SamplingParams] = {}

    def feed(self, event: Event) -> None:
        match event:
            case TextDelta():
                choice = self._choice(event.index)
                choice.texts.append(event.text)
                choice.token_ids += event.token_ids
                choice.output_tokens += len(event.token_ids)
                if event.logprobs is not None:
                    choice.logprobs = [*(choice.logprobs or ()), *event.logprobs]
            case Finished():
                choice = self._choice(event.index)
                choice.finished = event
                choice.output_tokens = event.output_tokens
            case Embedded():
                self.vectors[event.index] = event.vector
            case Started():
                self.prompts = event.prompts
            case PromptScored():
                self._choice(event.index).prompt_logprobs = event.logprobs
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
    def prompt_tokens(self) -> int:
        """Each prompt counts once, however many choices it has."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def output_tokens(self) -> int:
        return sum(choice.output_tokens for choice in self.choices.values())

    @property
    def cached_tokens(self) -> int:
        return sum(choice.finished.cached_tokens for choice in self.choices.values() if choice.finished is not None)
