"""SGLang's chunks as the wire's answers.

A chunk is `{"output_ids": […], "meta_info": {…}}`; with incremental output, ids and the output's logprobs are what is
new, the prompt's logprobs are the same list in every chunk. The token that ended an answer is among its ids, as on our
wire.
"""

import array
import math
from collections.abc import Sequence
from typing import Any

from engine_bridge.engines import Answer
from engine_bridge.wire import (
    Embed,
    Embedding,
    Failure,
    FailureKind,
    FinishReason,
    Generate,
    Output,
    Request,
    SamplingParams,
    Score,
    Scores,
    TokenLogprobs,
    pack_ids,
)

Chunk = dict[str, Any]


class Answers:
    """One request's; `take` each chunk in turn. `ended` once the answer is whole, maybe before SGLang thinks so."""

    __slots__ = ("_made", "_request", "begun", "ended")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._made = 0
        self.begun = False
        self.ended = False

    @property
    def request_id(self) -> int:
        return self._request.request_id

    def take(self, chunk: Chunk) -> Answer:
        request = self._request
        self.begun = True
        failure = failure_of(request.request_id, chunk["meta_info"].get("finish_reason"))
        if failure is not None:
            self.ended = True
            return failure
        if isinstance(request, Embed):
            self.ended = True
            return _embedding(request.request_id, chunk["embedding"])
        if isinstance(request, Score):
            self.ended = True
            return _scores(request, chunk["meta_info"])
        return self._output(request, chunk)

    def _output(self, request: Generate, chunk: Chunk) -> Output:
        meta = chunk["meta_info"]
        reason, stop_token_id = _finish(meta["finish_reason"])
        token_ids: Sequence[int] = chunk["output_ids"]
        if reason is FinishReason.ABORT and "text" in chunk:
            token_ids = ()  # of a request aborted in the queue SGLang says its last token a second time
        cut = self._own_stop(request, token_ids)
        if cut is not None:
            token_ids, stop_token_id, reason = token_ids[: cut + 1], token_ids[cut], FinishReason.STOP
        first = self._made == 0
        self._made += len(token_ids)
        self.ended = reason is not None
        params = request.sampling_params
        return Output(
            request.request_id,
            pack_ids(tuple(token_ids)),
            reason,
            stop_token_id,
            None if params.logprobs is None else _output_logprobs(meta, len(token_ids), params),
            _prompt_logprobs(meta, params) if first and params.prompt_logprobs is not None else None,
            cached_tokens=meta.get("cached_tokens", 0) if first else 0,
        )

    def _own_stop(self, request: Generate, token_ids: Sequence[int]) -> int | None:
        """Where a stop token stands that SGLang does not see: with ignore_eos it ignores these too."""
        params = request.sampling_params
        if not (params.ignore_eos and params.stop_token_ids):
            return None
        for index, token_id in enumerate(token_ids):
            if token_id in params.stop_token_ids and self._made + index + 1 > params.min_tokens:
                return index
        return None


def chunk_of(manager: Any, state: Any, step: Any, index: int) -> Chunk:
    """One request's share of a scheduler's step, as SGLang's TokenizerManager makes it, without what nobody asks."""
    asked, reason = state.obj, step.finished_reasons[index]
    token_ids = list(step.output_ids[index])
    meta: dict[str, Any] = {
        "finish_reason": reason,
        "prompt_tokens": step.prompt_tokens[index],
        "cached_tokens": step.cached_tokens[index],
    }
    if asked.return_logprob:
        wanted = (asked.top_logprobs_num, asked.token_ids_logprob)
        manager.convert_logprob_style(meta, state, *wanted, False, step, index, finished=reason is not None)
        made = len(state.output_ids)
        for name in ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs"):
            if name in meta:
                meta[name] = meta[name][made:]
    state.output_ids.extend(token_ids)
    return {"output_ids": token_ids, "meta_info": meta}


def failure_of(request_id: int, finish_reason: dict[str, Any] | None) -> Failure | None:
    """The failure that an abort with a status is; one without is somebody's wish, and an Output ends it."""
    if finish_reason is None or finish_reason["type"] != "abort" or finish_reason.get("status_code") is None:
        return None
    return failure(request_id, int(finish_reason["status_code"]), str(finish_reason.get("message")))


def failure(request_id: int, status: int, message: str) -> Failure:
    """By SGLang's HTTP status."""
    if status == 503:
        return Failure(request_id, FailureKind.OVERLOADED, "the engine's queue is full")
    if 400 <= status < 500:
        return Failure(request_id, FailureKind.INVALID, " ".join(message.split()))
    return Failure(request_id, FailureKind.INTERNAL, "the engine failed at this request")


def _finish(reason: dict[str, Any] | None) -> tuple[FinishReason | None, int | None]:
    if reason is None:
        return None, None
    match reason["type"]:
        case "stop":
            matched = reason.get("matched")
            if isinstance(matched, int):
                return FinishReason.STOP, matched
            return FinishReason.ERROR, None  # "NaN happened"; there are no stop strings here
        case "length":
            return FinishReason.LENGTH, None
        case _:
            return FinishReason.ABORT, None


def _output_logprobs(meta: dict[str, Any], count: int, params: SamplingParams) -> tuple[TokenLogprobs, ...]:
    own, best = meta["output_token_logprobs"][:count], params.logprobs or 0
    tops = meta["output_top_logprobs"] if best else [()] * count
    asked = meta["output_token_ids_logprobs"] if params.token_ids_logprob else [()] * count
    return tuple(
        TokenLogprobs(_finite(logprob), _top(top, best), _asked(others, params.token_ids_logprob))
        for (logprob, _, _), top, others in zip(own, tops, asked, strict=False)
    )


def _prompt_logprobs(meta: dict[str, Any], params: SamplingParams) -> tuple[TokenLogprobs | None, ...]:
    own, best = meta["input_token_logprobs"], params.prompt_logprobs or 0
    tops = meta["input_top_logprobs"] if best else [()] * len(own)
    asked = meta["input_token_ids_logprobs"] if params.token_ids_logprob else [()] * len(own)
    return tuple(
        None
        if logprob is None
        else TokenLogprobs(_finite(logprob), _top(top, best), _asked(others, params.token_ids_logprob))
        for (logprob, _, _), top, others in zip(own, tops, asked, strict=True)
    )


def _asked(entries: Sequence[Any], token_ids: Sequence[int]) -> tuple[float, ...]:
    """In the request's order."""
    if not token_ids:
        return ()
    found = {int(token_id): float(logprob) for logprob, token_id, _ in entries}
    return tuple(_finite(found[token_id]) for token_id in token_ids)


def _top(entries: Sequence[Any] | None, best: int) -> tuple[tuple[int, float], ...]:
    return tuple((int(token_id), _finite(logprob)) for logprob, token_id, _ in (entries or ())[:best])


def _finite(logprob: float) -> float:
    """JSON has no infinity: a token that could not come (a grammar forbids it) is just very unlikely."""
    return logprob if math.isfinite(logprob) else -9999.0


def _scores(request: Score, meta: dict[str, Any]) -> Scores:
    return Scores(request.request_id, _asked(meta["output_token_ids_logprobs"][0], request.label_token_ids))


def _embedding(request_id: int, values: Any) -> Answer:
    vector = array.array("f", values)
    if not all(map(math.isfinite, vector)):
        return Failure(request_id, FailureKind.INTERNAL, "the model's vector for this text holds NaN or infinity")
    return Embedding(request_id, vector.tobytes())
