"""Label scores with llama.cpp: one token is generated for its logprobs. Runs in a slot's thread.

The logprobs that it tells are those of the whole vocabulary's distribution, before temperature and bias. What costs is
the JSON in which it tells them: SmolLM2's 49,152 are 4.7 MB and 400 ms on one core, the best 1,000 are 82 kB and 3 ms.
Labels that somebody asks about are nearly always among the best, so all are asked for only where one is not.

The token that is generated is the end token, made certain by a bias: another one could end inside a character, and that
has no chunk and no logprobs (see `llamacpp_stream`).
"""

import msgspec

from engine_bridge.engines.llamacpp_request import Refused, Run, completion_body
from engine_bridge.engines.llamacpp_server import CompletionServer
from engine_bridge.engines.llamacpp_stream import CERTAIN, refusal_of
from engine_bridge.wire import FailureKind, Generate, SamplingParams, Score, Scores, unpack_ids

_BEST = 1000


class _Candidate(msgspec.Struct):
    id: int
    logprob: float | None = None


class _Token(msgspec.Struct):
    top_logprobs: list[_Candidate] = []


class _Logprobs(msgspec.Struct):
    content: list[_Token] = []


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None = None


class _Error(msgspec.Struct):
    code: int = 500
    message: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Error | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class Scoring:
    """Scores one request's labels."""

    def __init__(self, run: Run, *, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        assert isinstance(run.request, Score)
        self._run = run
        self._request = run.request
        self._vocab_size = vocab_size
        self._bias = tuple((token_id, CERTAIN) for token_id in eos_token_ids[:1])

    def score(self, server: CompletionServer) -> Scores:
        """Raises Refused if llama.cpp does not take the request, or was told to give it up."""
        labels = self._request.label_token_ids
        logprobs: dict[int, float] = {}
        for count in (min(_BEST, self._vocab_size), self._vocab_size):
            logprobs = self._logprobs(server, count)
            if logprobs.keys() >= set(labels):
                return Scores(self._request.request_id, tuple(logprobs[label] for label in labels), self._queued)
        raise Refused("llama.cpp gave no logprobs for these labels", FailureKind.INTERNAL)

    @property
    def _queued(self) -> float:
        return self._run.queued_seconds

    def _logprobs(self, server: CompletionServer, count: int) -> dict[int, float]:
        """Of the `count` likeliest tokens; nothing if the run was aborted."""
        found: dict[int, float] = {}
        failures: list[Exception] = []

        def callback(data: bytes) -> bool:
            try:
                if self._run.aborted:
                    return True
                self._read(data, found)
            except Exception as error:
                failures.append(error)  # it would not get through the C++ that called us
            return bool(failures)

        server.handle_completions(msgspec.json.encode(self._body(count)), callback)
        if failures:
            raise failures[0]
        return found

    def _read(self, data: bytes, found: dict[int, float]) -> None:
        chunk = _decode_chunk(data)
        if chunk.error is not None:
            raise refusal_of(chunk.error.code, chunk.error.message)
        for choice in chunk.choices:
            for token in choice.logprobs.content if choice.logprobs is not None else ():
                for other in token.top_logprobs:
                    found[other.id] = -9999.0 if other.logprob is None else other.logprob  # null is minus infinity

    def _body(self, count: int) -> dict[str, object]:
        params = SamplingParams(max_tokens=1, temperature=0.0)
        request = Generate(self._request.request_id, self._request.prompt_token_ids, params)
        prompt = unpack_ids(self._request.prompt_token_ids)
        body = completion_body(request, prompt=prompt, max_tokens=1, ignore_eos=False, logit_bias=self._bias)
        return {**body, "n_probs": count}
