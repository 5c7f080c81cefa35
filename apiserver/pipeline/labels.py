"""Label texts → the token that each of them would be as the next one behind a prompt.

What a text becomes depends on what stands before it, but not on much of that: tokenizers cut text at words and at
special tokens first. So a label is looked at behind the prompt's last few tokens, where their text gives the same ids
again, and else behind all of it; and where prompts end alike (a chat template ends all of them alike), once for all.
"""

from apiserver.errors import InvalidRequest, shown
from apiserver.events import PreparedPrompt
from apiserver.pipeline.preprocess import Preprocessor
from engine_bridge.wire import ID_BYTES, unpack_ids

_TAIL_TOKENS = 8  # a template's own end, and a word or two before it


class LabelFinder:
    """For the prompts of one job."""

    def __init__(self, preprocessor: Preprocessor) -> None:
        self._preprocessor = preprocessor
        self._contexts: dict[tuple[int, ...], tuple[str, list[int]]] = {}
        self._found: dict[tuple[tuple[int, ...], str], int | None] = {}

    def find(self, prompt: PreparedPrompt, param: str, labels: tuple[str, ...]) -> tuple[int, ...]:
        """Raises InvalidRequest unless each label is one token, and another one than the others."""
        tail = tuple(unpack_ids(prompt.packed[-_TAIL_TOKENS * ID_BYTES :]))
        ids: list[int] = []
        for label in labels:
            key = (tail, label)
            if key not in self._found:
                self._found[key] = self._token_after(prompt, tail, label)
            token_id = self._found[key]
            if token_id is None or token_id in ids:
                raise InvalidRequest(
                    f"The answer {shown(label)} is not one token of its own behind this prompt, so this model cannot "
                    "be asked in this way. Try a question of another type.",
                    param=param,
                )
            ids.append(token_id)
        return tuple(ids)

    def _token_after(self, prompt: PreparedPrompt, tail: tuple[int, ...], label: str) -> int | None:
        if tail not in self._contexts:
            self._contexts[tail] = self._context(prompt, list(tail))
        text, token_ids = self._contexts[tail]
        *before, last = self._encode(text + label) or [-1]
        return last if before == token_ids else None

    def _context(self, prompt: PreparedPrompt, tail: list[int]) -> tuple[str, list[int]]:
        """The text to put the label behind, and its ids."""
        text = self._preprocessor.decode(tail, skip_special_tokens=False)
        if self._encode(text) == tail or prompt.text is None:
            return text, tail
        return prompt.text, prompt.token_ids

    def _encode(self, text: str) -> list[int]:
        return self._preprocessor.encoder.encode(text, add_special_tokens=False)
