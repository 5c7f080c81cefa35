"""The logprobs of native answers: columns with, for each token, `[logprob, id, text or null]` or a list of them."""

from collections.abc import Sequence
from typing import Any

from apiserver.events import TokenLogprob
from apiserver.protocol.native_sampling import LogprobView
from apiserver.protocol.openai import Many

Columns = dict[str, Any]
"""Each a list, or whatever makes one of an iterator: `openai.Many`."""


class LogprobColumns:
    """The columns that one prompt's answers have, the tokens' own first."""

    __slots__ = ("_view", "_with_texts")

    def __init__(self, view: LogprobView, *, with_texts: bool) -> None:
        self._view = view
        self._with_texts = with_texts

    def of_prompt(self, tokens: Sequence[TokenLogprob], many: Many = list) -> Columns:
        """Under their names in `meta_info`; empty where the prompt's were not asked for."""
        start = self._view.start
        return self._columns("input", tokens[start:] if start >= 0 else (), many)

    def of_output(self, tokens: Sequence[TokenLogprob], many: Many = list) -> Columns:
        """Under their names in `meta_info`."""
        return self._columns("output", tokens, many)

    def _columns(self, side: str, tokens: Sequence[TokenLogprob], many: Many) -> Columns:
        columns: Columns = {f"{side}_token_logprobs": many(map(self._entry, tokens))}
        if self._view.top:
            columns[f"{side}_top_logprobs"] = many(self._entries(token.top) for token in tokens)
        if self._view.token_ids:
            columns[f"{side}_token_ids_logprobs"] = many(self._entries(token.asked) for token in tokens)
        return columns

    def _entry(self, token: TokenLogprob) -> list[Any]:
        return [token.logprob, token.token_id, token.text if self._with_texts else None]

    def _entries(self, tokens: Sequence[TokenLogprob]) -> list[list[Any]] | None:
        return [self._entry(token) for token in tokens] or None
