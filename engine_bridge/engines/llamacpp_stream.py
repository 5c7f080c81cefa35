"""One generation with llama.cpp: its chunks as our Outputs. Runs in a slot's thread.

What its stream tells, as found with xllamacpp 2026.10 and `n_probs` of 1 or more: a chunk for each token, with its id
and logprob (before temperature, bias and bans); the end token has a chunk too, with no text, so it is in our
ids and counted; then a last chunk with the reason and no token. What is missing, and made up for here:

- **A token that ends inside a character has no chunk**: the text waits for the rest, and that chunk names the last
  token only. `timings_per_token` says how many were sampled, and the chunk's text less the last token's piece is what
  the lost ones spell: `GgufHeader.split` finds them. Their logprobs are lost (`UNKNOWN_LOGPROB`).
- So it is asked for `_SPARE_TOKENS` more than are wanted, to see a last character finished, and we end at max_tokens
  ourselves. Only what the context's end or an end token cuts inside a character stays unknown.
- **A JSON schema that does not compile is ignored**: llguidance writes a line to stderr, and the text comes out
  unconstrained. A new schema is tried first, on the request's own prompt (whose cache the request then uses): one
  token, with the end token made all but certain. No JSON text is empty, so if it comes, no schema is in force.
"""

from collections.abc import Callable, Sequence

import msgspec

from engine_bridge.engines.gguf import GgufHeader
from engine_bridge.engines.llamacpp_request import Refused, Run, completion_body
from engine_bridge.engines.llamacpp_server import CompletionServer
from engine_bridge.wire import (
    Capabilities,
    FailureKind,
    FinishReason,
    Generate,
    Output,
    TokenLogprobs,
    pack_ids,
    unpack_ids,
)

UNKNOWN_LOGPROB = -9999.0
"""Stands for a logprob that llama.cpp does not tell; the number that OpenAI's API has for "not among the best"."""

_SPARE_TOKENS = 3  # a character has four bytes at most
_MAX_VETTED_SCHEMAS = 256
CERTAIN = 1000.0
"""A logit bias that no logit outweighs."""


class _Candidate(msgspec.Struct):
    id: int
    logprob: float | None = None  # null is minus infinity


class _Token(msgspec.Struct):
    id: int
    logprob: float | None = None
    top_logprobs: list[_Candidate] = []


class _Logprobs(msgspec.Struct):
    content: list[_Token] = []


class _Choice(msgspec.Struct):
    text: str = ""
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Timings(msgspec.Struct):
    cache_n: int = 0
    predicted_n: int = 0


class _Error(msgspec.Struct):
    code: int = 500
    message: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    timings: _Timings | None = None
    error: _Error | None = None

    @property
    def token(self) -> _Token | None:
        logprobs = self.choices[0].logprobs if self.choices else None
        return logprobs.content[-1] if logprobs is not None and logprobs.content else None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class Completion:
    """Generates one request's tokens; `emit` gets every Output but the last, `on_progress` is called in the prompt."""

    def __init__(
        self,
        run: Run,
        *,
        header: GgufHeader,
        capabilities: Capabilities,
        vetted_schemas: set[str],
        emit: Callable[[Output], None],
        on_progress: Callable[[], None],
    ) -> None:
        assert isinstance(run.request, Generate)
        self._run = run
        self._request = run.request
        self._params = run.request.sampling_params
        self._header = header
        self._vetted_schemas = vetted_schemas
        self._emit = emit
        self._on_progress = on_progress
        self._prompt = unpack_ids(run.request.prompt_token_ids)
        self._room = capabilities.max_model_len - len(self._prompt)
        self._max_tokens = min(self._params.max_tokens, self._room)
        self._min_tokens = 0 if self._params.ignore_eos else min(self._params.min_tokens, self._max_tokens)
        self._token_ids: list[int] = []
        self._sampled = 0  # what llama.cpp has counted in this call
        self._held: _Token | None = None  # it has no text, so the next chunk may say that it was the end
        self._cached_tokens: int | None = None  # until the first chunk that tells
        self._end: Output | None = None
        self._failure: Exception | None = None

    def generate(self, server: CompletionServer) -> Output:
        """Generate to the end, and give that. Raises Refused if llama.cpp does not take the request."""
        schema = self._params.json_schema
        if schema is not None and schema not in self._vetted_schemas:
            self._vet_schema(server, schema)
        # min_tokens, exactly: a call in which no end can be sampled, and one that goes on from its cache.
        if self._min_tokens:
            bans = [(token_id, False) for token_id in self._params.stop_token_ids]
            self._call(server, max_tokens=self._room, ignore_eos=True, logit_bias=bans)
            self._min_tokens = 0
        if self._end is None and self._left > 0:
            self._call(server, max_tokens=self._left + _SPARE_TOKENS, ignore_eos=self._params.ignore_eos)
        return self._end or self._output([], FinishReason.LENGTH)

    @property
    def _left(self) -> int:
        return self._max_tokens - len(self._token_ids)

    def _call(
        self,
        server: CompletionServer,
        *,
        max_tokens: int,
        ignore_eos: bool,
        logit_bias: Sequence[tuple[int, float]] = (),
    ) -> None:
        prompt = self._prompt + self._token_ids
        body = completion_body(
            self._request, prompt=prompt, max_tokens=max_tokens, ignore_eos=ignore_eos, logit_bias=logit_bias
        )
        self._sampled = 0
        self._held = None  # one that min_tokens' first call sampled beyond its share is sampled again
        self._complete(server, body, self._on_chunk)

    def _vet_schema(self, server: CompletionServer, schema: str) -> None:
        """Raises Refused if llama.cpp would ignore this schema."""
        eos_token_ids = self._header.eos_token_ids
        if not eos_token_ids:
            return
        sampled: list[int] = []

        def on_chunk(chunk: _Chunk) -> bool:
            self._note_cached_tokens(chunk)
            if chunk.token is not None:
                sampled.append(chunk.token.id)
            return bool(sampled)

        end = [(eos_token_ids[0], CERTAIN)]
        body = completion_body(self._request, prompt=self._prompt, max_tokens=4, ignore_eos=False, logit_bias=end)
        self._complete(server, {**body, "temperature": 0.0}, on_chunk)
        if sampled[:1] == [eos_token_ids[0]]:
            raise Refused("json_schema is not one that this engine can compile")
        if sampled:  # none, if the run was aborted meanwhile
            if len(self._vetted_schemas) >= _MAX_VETTED_SCHEMAS:
                self._vetted_schemas.clear()
            self._vetted_schemas.add(schema)

    def _complete(self, server: CompletionServer, body: dict[str, object], on_chunk: Callable[[_Chunk], bool]) -> None:
        """Run a completion until it ends, `on_chunk` says True, or the run is aborted. Raises Refused."""
        if self._run.aborted:
            return

        def callback(data: bytes) -> bool:
            try:
                if self._run.aborted:
                    return True
                chunk = _decode_chunk(data)
                if chunk.error is not None:
                    raise refusal_of(chunk.error.code, chunk.error.message)
                return on_chunk(chunk)
            except Exception as error:
                self._failure = error  # it would not get through the C++ that called us
                return True

        server.handle_completions(msgspec.json.encode(body), callback)
        if self._failure is not None:
            raise self._failure

    def _on_chunk(self, chunk: _Chunk) -> bool:
        """The one place that touches each token. True ends the completion."""
        self._note_cached_tokens(chunk)
        held = [self._held] if self._held is not None else []
        if chunk.token is not None:
            tokens = [*held, *self._lost_tokens(chunk, chunk.token), chunk.token]
            hold = not chunk.choices[0].text and chunk.token.id not in self._params.stop_token_ids
            self._held = tokens.pop() if hold else None
            return self._take(tokens)
        match chunk.choices[0].finish_reason if chunk.choices else None:
            case "stop":
                # With nothing held, the end token cut a character short, and was lost with it.
                last = held or [_Token(self._header.eos_token_ids[0])]
                self._end = self._output(last, FinishReason.STOP, stop_token_id=last[0].id)
            case "length":
                self._end = self._output(held, FinishReason.LENGTH)
            case _:
                self._on_progress()
        return False

    def _note_cached_tokens(self, chunk: _Chunk) -> None:
        if self._cached_tokens is None and chunk.timings is not None:
            self._cached_tokens = chunk.timings.cache_n

    def _lost_tokens(self, chunk: _Chunk, token: _Token) -> list[_Token]:
        """The tokens inside this chunk's character that had no chunk of their own."""
        sampled = chunk.timings.predicted_n if chunk.timings is not None else 0
        lost = sampled - self._sampled - 1
        self._sampled = sampled
        if lost <= 0:
            return []
        spelled = chunk.choices[0].text.encode().removesuffix(self._header.piece(token.id))
        return [_Token(token_id) for token_id in self._header.split(spelled, lost)]

    def _take(self, tokens: list[_Token]) -> bool:
        for count, token in enumerate(tokens, start=1):
            if token.id in self._params.stop_token_ids:
                self._end = self._output(tokens[:count], FinishReason.STOP, stop_token_id=token.id)
                return True
            if count == self._left:
                self._end = self._output(tokens[:count], FinishReason.LENGTH)
                return True
        if tokens:
            self._emit(self._output(tokens))
        return 0 < self._min_tokens <= len(self._token_ids)

    def _output(
        self, tokens: Sequence[_Token], finish_reason: FinishReason | None = None, *, stop_token_id: int | None = None
    ) -> Output:
        is_first = not self._token_ids
        token_ids = [token.id for token in tokens]
        self._token_ids += token_ids
        return Output(
            self._request.request_id,
            pack_ids(token_ids),
            finish_reason,
            stop_token_id,
            logprobs=None if self._params.logprobs is None else tuple(self._logprobs(token) for token in tokens),
            cached_tokens=(self._cached_tokens or 0) if is_first else 0,
            queued_seconds=self._run.queued_seconds if is_first else 0.0,
        )

    def _logprobs(self, token: _Token) -> TokenLogprobs:
        best = token.top_logprobs[: self._params.logprobs]
        return TokenLogprobs(
            UNKNOWN_LOGPROB if token.logprob is None else token.logprob,
            tuple((other.id, other.logprob) for other in best if other.logprob is not None),
        )


def refusal_of(code: int, message: str) -> Refused:
    """llama.cpp's own error as ours."""
    # A grammar that leaves no token to sample is the request's fault, though llama.cpp says 500.
    is_invalid = code < 500 or "grammar" in message
    kind = FailureKind.INVALID if is_invalid else FailureKind.INTERNAL
    return Refused(f"llama.cpp refuses: {message}" if is_invalid else f"llama.cpp failed: {message}", kind)
