"""The engine's logprobs → events': each token with its own text, its true bytes and its place in the text."""

from collections.abc import Generator

from apiserver.events import PreparedPrompt, TokenLogprob
from apiserver.pipeline.detokenize import make_detokenizer
from apiserver.tokenizer import Tokenizer
from engine_bridge.wire import TokenLogprobs

_STEP_TOKENS = 256  # a millisecond or two


class Scorer:
    """One a choice. A token's place is an offset in prompt + completion, as OpenAI counts."""

    __slots__ = ("_asked_ids", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, asked_ids: tuple[int, ...] = ()) -> None:
        """`asked_ids` are the request's token_ids_logprob."""
        self._tokenizer = tokenizer
        self._asked_ids = asked_ids

    def token(self, token_id: int, entry: TokenLogprobs | None, offset: int) -> TokenLogprob:
        """One token's logprob; `entry` is None for a prompt's first token, which nothing precedes."""
        raw = self._tokenizer.token_bytes(token_id)
        text = raw.decode(errors="replace")
        if entry is None:
            return TokenLogprob(token_id, None, text, raw, (), offset)
        top = tuple(self._alternative(other, logprob, offset) for other, logprob in entry.top)
        asked = ()
        if entry.asked:
            each = zip(self._asked_ids, entry.asked, strict=True)
            asked = tuple(self._alternative(other, logprob, offset) for other, logprob in each)
        return TokenLogprob(token_id, _finite(entry.logprob), text, raw, top, offset, asked)

    def _alternative(self, token_id: int, logprob: float, offset: int) -> TokenLogprob:
        raw = self._tokenizer.token_bytes(token_id)
        return TokenLogprob(token_id, _finite(logprob), raw.decode(errors="replace"), raw, (), offset)

    def place(self, token_id: int, before: int, told: str) -> int:
        """Where a token begins, when `told` is what the detokenizer gave for it and `before` characters came earlier.

        Text that was held back may come with it, so a token's own text is looked for at the end; a part of a character
        is where its character is.
        """
        own = self._tokenizer.token_bytes(token_id).decode(errors="replace")
        return before + len(told) - len(own) if told.endswith(own) else before

    def prompt(
        self, prompt: PreparedPrompt, entries: tuple[TokenLogprobs | None, ...]
    ) -> Generator[None, None, list[TokenLogprob]]:
        """The prompt's own logprobs, one a token; in steps, since 36,000 of them take a third of a second."""
        token_ids = prompt.token_ids
        offsets = yield from self._prompt_offsets(token_ids, prompt.text or "")
        scored: list[TokenLogprob] = []
        for start in range(0, len(entries), _STEP_TOKENS):
            step = slice(start, start + _STEP_TOKENS)
            for token_id, entry, offset in zip(token_ids[step], entries[step], offsets[step], strict=True):
                scored.append(self.token(token_id, entry, offset))
            yield
        return scored

    def _prompt_offsets(self, token_ids: list[int], text: str) -> Generator[None, None, list[int]]:
        """Where each token begins in the prompt as the client knows it, which need not have the tokenizer's own BOS."""
        decoded, offsets = yield from self._walk(token_ids, skip_special_tokens=True)
        if decoded != text:
            decoded, offsets = yield from self._walk(token_ids, skip_special_tokens=False)
        ahead = len(decoded) - len(text) if decoded.endswith(text) else 0
        return [min(max(0, offset - ahead), len(text)) for offset in offsets]

    def _walk(self, token_ids: list[int], *, skip_special_tokens: bool) -> Generator[None, None, tuple[str, list[int]]]:
        detokenizer = make_detokenizer(self._tokenizer, skip_special_tokens=skip_special_tokens)
        size, texts, offsets = 0, list[str](), list[int]()
        for number, token_id in enumerate(token_ids):
            text = detokenizer.feed(token_id)
            offsets.append(self.place(token_id, size, text))
            size += len(text)
            texts.append(text)
            if number % _STEP_TOKENS == _STEP_TOKENS - 1:
                yield
        return "".join(texts) + detokenizer.flush(), offsets


def _finite(logprob: float) -> float:
    """JSON has no infinity; vLLM's floor for it."""
    return max(logprob, -9999.0)
