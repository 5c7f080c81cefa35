"""Many steps' outputs as one: what a client that reads slowly costs."""

from collections.abc import Sequence
from typing import TypeVar

from engine_bridge.wire import Output

A = TypeVar("A")


def merged(answers: Sequence[A | Output]) -> list[A | Output]:
    """The same answers with one Output a request, where its first one stood; the rest as it is."""
    result: list[A | Output] = []
    shares: dict[int, list[Output]] = {}
    places: dict[int, int] = {}
    for answer in answers:
        if type(answer) is Output:
            shares.setdefault(answer.request_id, []).append(answer)
            if answer.request_id in places:
                continue
            places[answer.request_id] = len(result)
        result.append(answer)
    for request_id, outputs in shares.items():
        if len(outputs) > 1:
            result[places[request_id]] = _joined(outputs)
    return result


def _joined(outputs: Sequence[Output]) -> Output:
    first, last = outputs[0], outputs[-1]
    logprobs = [entry for output in outputs for entry in output.logprobs or ()]
    return Output(
        first.request_id,
        b"".join([output.new_token_ids for output in outputs]),
        last.finish_reason,
        last.stop_token_id,
        tuple(logprobs) if logprobs else first.logprobs,
        first.prompt_logprobs,
        cached_tokens=first.cached_tokens,
        queued_seconds=first.queued_seconds,
    )
