"""Many steps' outputs as one, and one that is long in parts: what a client that reads slowly costs, now and later."""

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


def portion(answers: list[A | Output], *, of_one: int, of_all: int) -> tuple[list[A | Output], list[A | Output]]:
    """These answers up to so many tokens of one Output, and of all, and the rest. What does not fit is cut in two, and
    ends the portion."""
    room = of_all
    for place, answer in enumerate(answers):
        if type(answer) is Output:
            count, most = len(answer.new_token_ids) >> 2, min(of_one, room)
            if count > most:
                head, tail = _cut(answer, most)
                return [*answers[:place], head], [tail, *answers[place + 1 :]]
            room -= count
    return answers, []


def _cut(output: Output, count: int) -> tuple[Output, Output]:
    logprobs = output.logprobs
    head = Output(
        output.request_id,
        output.new_token_ids[: 4 * count],
        logprobs=None if logprobs is None else logprobs[:count],
        prompt_logprobs=output.prompt_logprobs,
        cached_tokens=output.cached_tokens,
        queued_seconds=output.queued_seconds,
    )
    tail = Output(
        output.request_id,
        output.new_token_ids[4 * count :],
        output.finish_reason,
        output.stop_token_id,
        None if logprobs is None else logprobs[count:],
    )
    return head, tail
