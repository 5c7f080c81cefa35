"""What every chunk of an OpenAI stream has around its choices: who made it, and the usage where that was asked for."""

from collections.abc import Iterator
from typing import Any

from apiserver.events import Delta, Finished, Result, Started
from apiserver.protocol import openai
from apiserver.protocol.exchange import Chunk
from apiserver.protocol.generation_fields import StreamOptions


class Envelope:
    """One request's. `head` and `tail` are the bytes around `"choices":[…]`, for chunks that are spliced."""

    __slots__ = ("_continuous", "_include_usage", "_output_tokens", "_prompt_tokens", "fields", "head", "tail")

    def __init__(self, prefix: str, kind: str, model: str, options: StreamOptions) -> None:
        self.fields = {"id": openai.new_id(prefix), "object": kind, "created": openai.now(), "model": model}
        self.head = openai.encode_json(self.fields)[:-1]
        self._include_usage = bool(options.include_usage)
        self._continuous = bool(options.continuous_usage_stats) and self._include_usage
        self.tail = b',"usage":null}' if self._include_usage else b"}"
        self._prompt_tokens = 0
        self._output_tokens: dict[int, int] = {}  # of each choice; counted only for continuous usage

    @property
    def is_constant(self) -> bool:
        """Whether `head` and `tail` are every chunk's."""
        return not self._continuous

    def start(self, started: Started) -> None:
        self._prompt_tokens = sum(prompt.token_count for prompt in started.prompts)

    def count(self, delta: Delta) -> None:
        """Tokens that are told, for continuous usage."""
        if self._continuous:
            self._output_tokens[delta.index] = self._output_tokens.get(delta.index, 0) + len(delta.token_ids)

    def finish(self, finished: Finished) -> None:
        self._output_tokens[finished.index] = finished.output_tokens

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        document: dict[str, Any] = {**self.fields, "choices": choices}
        if self._continuous:
            document["usage"] = openai.usage_counts(self._prompt_tokens, sum(self._output_tokens.values()))
        elif self._include_usage:
            document["usage"] = None
        return document

    def last(self, result: Result) -> Iterator[Chunk]:
        """The usage of all, and the end."""
        if self._include_usage:
            yield Chunk(self.chunk([]) | {"usage": openai.usage(result)})
        yield openai.DONE
