"""Job → events. `Pipeline.run` is the one asynchronous loop of a request; everything per token in it is synchronous."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, Internal, InvalidRequest, Unavailable
from apiserver.events import Detokenized, Embedded, Event, Rendered, Scored, Started
from apiserver.pipeline.admission import Admission
from apiserver.pipeline.capable import check_capable
from apiserver.pipeline.deadline import Deadline, within
from apiserver.pipeline.decode import Decoder
from apiserver.pipeline.lane import Lane
from apiserver.pipeline.parse import parse
from apiserver.pipeline.prepare import (
    Prepared,
    prepare_detokenize,
    prepare_each,
    prepare_generate,
    prepare_render,
    prepare_tokenize,
)
from apiserver.requests import (
    DetokenizeJob,
    EmbedJob,
    GenerateJob,
    Job,
    ParseJob,
    Prompt,
    RenderJob,
    ScoreJob,
    TokenizeJob,
)
from apiserver.timings import Timings
from engine_bridge.client import EngineClient, EngineUnavailable
from engine_bridge.submission import Answer, Submission
from engine_bridge.wire import (
    Capabilities,
    Embed,
    Embedding,
    Failure,
    FailureKind,
    FinishReason,
    Generate,
    Output,
    Score,
    Scores,
)

Events = AsyncGenerator[list[Event]]


class Pipeline:
    """One an API server. The events come in lists: what arrived together is told together."""

    def __init__(self, client: EngineClient, lane: Lane, admission: Admission) -> None:
        self._client = client
        self._lane = lane
        self._admission = admission

    def run(self, job: Job, card: Card, timings: Timings, deadline: Deadline | None = None, owner: str = "") -> Events:
        """The events of one job, Started first. Leave it early with `aclose` (aclosing) and its work is aborted.
        `owner` is whose it is, for those who may abort only what is theirs.

        Raises an ApiError: before Started if the job is refused, later if the engine fails or the deadline passes.
        """
        match job:
            case GenerateJob():
                return self._generate(job, card, timings, deadline, owner)
            case EmbedJob() | ScoreJob():
                return self._answer_each(job, card, timings, deadline, owner)
            case TokenizeJob():
                return self._tokenize(job, card, timings, deadline)
            case DetokenizeJob():
                return self._detokenize(job, card, timings, deadline)
            case RenderJob():
                return self._render(job, card, timings, deadline)
            case ParseJob():
                return parse(job)

    async def _tokenize(self, job: TokenizeJob, card: Card, timings: Timings, deadline: Deadline | None) -> Events:
        prompts = await within(deadline, self._lane.run(prepare_tokenize, job, card, timings))
        yield [Started(prompts)]

    async def _detokenize(self, job: DetokenizeJob, card: Card, timings: Timings, deadline: Deadline | None) -> Events:
        texts = await within(deadline, self._lane.run(prepare_detokenize, job, card, timings))
        yield [Started([]), *(Detokenized(index, text) for index, text in enumerate(texts))]

    async def _render(self, job: RenderJob, card: Card, timings: Timings, deadline: Deadline | None) -> Events:
        _require(card.capabilities, "generate")
        check_capable(job.generate.sampling_params, card.capabilities)
        prepared = await within(deadline, self._lane.run(prepare_render, job, card, timings))
        params = (Rendered(index, params) for index, params in enumerate(prepared.params))
        yield [Started(prepared.prompts), *params]

    async def _answer_each(
        self, job: EmbedJob | ScoreJob, card: Card, timings: Timings, deadline: Deadline | None, owner: str
    ) -> Events:
        """Where the engine gives one whole answer to each prompt."""
        try:
            _require_task(self._client.require(), job)
            with self._admission.enter(len(job.prompts), _many_of(job)) as place:
                prepared = await within(deadline, self._lane.run(prepare_each, job, card, timings))
                async with self._open(deadline) as submission:
                    requests = _ask_each(job, owner, prepared, submission)
                    indexes = {request.request_id: index for index, request in enumerate(requests)}
                    place.submit(requests)
                    submission.submit(requests)
                    submitted = time.perf_counter()
                    yield [Started(prepared.prompts)]
                    while indexes:
                        answers = await submission.receive()
                        if place.queued:
                            place.begin(answers)
                        events = [
                            _answered(answer, indexes.pop(answer.request_id), job, prepared, timings)
                            for answer in answers
                        ]
                        timings.engine = time.perf_counter() - submitted - timings.queue
                        yield events
        except EngineUnavailable as error:
            raise Unavailable(str(error)) from error

    async def _generate(
        self, job: GenerateJob, card: Card, timings: Timings, deadline: Deadline | None, owner: str
    ) -> Events:
        try:
            capabilities = self._client.require()
            _require(capabilities, "generate")
            for one in job.each or (job,):
                check_capable(one.sampling_params, capabilities)
            param = job.n_param if job.n > 1 else _many(job.prompts)
            with self._admission.enter(len(job.prompts) * job.n, param) as place:
                prepared = await within(deadline, self._lane.run(prepare_generate, job, card, timings))
                async with self._open(deadline) as submission:
                    requests, decoders = self._fan_out(job, owner, capabilities, submission, prepared)
                    place.submit(requests)
                    submission.submit(requests)
                    submitted = time.perf_counter()
                    await submission.accepted()
                    answers = submission.take()
                    _raise_failures(answers)
                    started: list[Event] = [Started(prepared.prompts)]
                    for decoder in decoders.values():
                        started += decoder.start()
                    yield started
                    running = len(decoders)
                    scores_prompts = any(one.sampling_params.prompt_logprobs is not None for one in job.each or (job,))
                    while True:
                        events: list[Event] = []
                        arrived = time.perf_counter()
                        if scores_prompts:
                            await _score_prompts(answers, decoders)
                        if place.queued:
                            place.begin(answers)
                        ended, failure = _take(answers, decoders, submission, events, timings)
                        running -= ended
                        timings.detokenize += time.perf_counter() - arrived
                        timings.engine = arrived - submitted - timings.queue
                        if events:
                            yield events
                        if failure is not None:
                            raise failure
                        if not running:
                            break
                        answers = await submission.receive()
        except EngineUnavailable as error:
            raise Unavailable(str(error)) from error

    def _open(self, deadline: Deadline | None) -> Submission:
        submission = self._client.open()
        if deadline is not None:
            submission.end_at(deadline.when, deadline.passed)
        return submission

    def _fan_out(
        self,
        job: GenerateJob,
        owner: str,
        capabilities: Capabilities,
        submission: Submission,
        prepared: Prepared,
    ) -> tuple[list[Generate], dict[int, Decoder]]:
        """One engine request for each choice of each prompt, and who decodes it."""
        requests: list[Generate] = []
        decoders: dict[int, Decoder] = {}
        tokenizer = self._lane.preprocessor.tokenizer
        each = zip(prepared.prompts, prepared.params, strict=True)
        for number, (prompt, prompt_params) in enumerate(each):
            asked = job.of(number)
            for choice in range(job.n):
                choice_params = prompt_params
                if choice and choice_params.seed is not None:
                    # n choices of one seed would be n times the same answer.
                    choice_params = msgspec.structs.replace(
                        choice_params, seed=_offset_seed(choice_params.seed, choice)
                    )
                request_id = submission.new_id()
                client_id, salt = asked.client_request_id, asked.cache_salt
                requests.append(
                    Generate(request_id, prompt.packed, choice_params, client_id, job.priority, salt, owner)
                )
                decoders[request_id] = Decoder(len(decoders), asked, tokenizer, prompt, capabilities.eos_token_ids)
        return requests, decoders


def _many(prompts: Sequence[Prompt]) -> str:
    """The client's field that has them all: its last item's is that of a query's documents, too."""
    return prompts[-1].param.partition("[")[0]


def _many_of(job: EmbedJob | ScoreJob) -> str:
    named = job.prompts_param if isinstance(job, ScoreJob) else ""
    return named or _many(job.prompts)


def _require_task(capabilities: Capabilities, job: EmbedJob | ScoreJob) -> None:
    if isinstance(job, EmbedJob):
        _require(capabilities, "embed")
    elif not capabilities.score:
        raise InvalidRequest(f"The engine ({capabilities.engine}) cannot score tokens.", param="model")


def _ask_each(
    job: EmbedJob | ScoreJob, owner: str, prepared: Prepared, submission: Submission
) -> Sequence[Embed | Score]:
    """One engine request for each prompt."""
    own = job.client_request_id, job.priority, owner
    if isinstance(job, EmbedJob):
        return [Embed(submission.new_id(), prompt.packed, job.dimensions, *own) for prompt in prepared.prompts]
    labelled = zip(prepared.prompts, prepared.labels, strict=True)
    return [Score(submission.new_id(), prompt.packed, labels, *own) for prompt, labels in labelled]


def _answered(answer: Answer, index: int, job: EmbedJob | ScoreJob, prepared: Prepared, timings: Timings) -> Event:
    """What a prompt's one answer means."""
    if type(answer) is Embedding and isinstance(job, EmbedJob):
        event = Embedded(index, answer.vector)
    elif type(answer) is Scores and isinstance(job, ScoreJob):
        event = Scored(index, answer.logprobs, prepared.labels[index])
    else:
        raise _failure(answer, job.prompts[index].param)
    timings.queue = max(timings.queue, answer.queued_seconds)
    return event


async def _score_prompts(answers: Sequence[Answer], decoders: dict[int, Decoder]) -> None:
    """Ahead of `_take`, with the loop given back: the logprobs of 36,000 prompt tokens would hold it for a third of a
    second."""
    for answer in answers:
        if type(answer) is Output and answer.prompt_logprobs is not None:
            for _ in decoders[answer.request_id].score_prompt(answer):
                await asyncio.sleep(0)


def _take(
    answers: Sequence[Answer],
    decoders: dict[int, Decoder],
    submission: Submission,
    events: list[Event],
    timings: Timings,
) -> tuple[int, ApiError | None]:
    """Append what these answers mean; returns how many choices ended, and the failure that all of them end with. What
    came with it, but was made before it, is told first."""
    ended = 0
    for answer in answers:
        try:
            ended += _feed(answer, decoders[answer.request_id], submission, events)
        except ApiError as failure:
            return ended, failure
        if type(answer) is Output and answer.queued_seconds:
            timings.queue = max(timings.queue, answer.queued_seconds)
    return ended, None


def _feed(answer: Answer, decoder: Decoder, submission: Submission, events: list[Event]) -> int:
    """Append what this answer means; returns 1 if it ended its choice."""
    if decoder.finished:
        return 0  # a stop string ended it; these tokens were on their way
    if type(answer) is not Output:
        if type(answer) is Failure and answer.kind is FailureKind.ABORTED:
            events.append(decoder.abort())
            return 1
        raise _failure(answer, None)
    events += decoder.feed(answer)
    if not decoder.finished:
        return 0
    if answer.finish_reason is None:
        submission.abort(answer.request_id)
    elif answer.finish_reason is FinishReason.ERROR:
        raise Internal("The engine failed at this request.")
    return 1


def _raise_failures(answers: Sequence[Answer]) -> None:
    """A refusal that came before the headers left keeps its status."""
    for answer in answers:
        if type(answer) is Failure and answer.kind is not FailureKind.ABORTED:
            raise _failure(answer, None)


def _failure(answer: Answer, param: str | None) -> ApiError:
    """The client's view of an engine's failure."""
    if type(answer) is not Failure:
        return Internal("The engine gave an answer of the wrong kind.")
    match answer.kind:
        case FailureKind.INVALID:
            return InvalidRequest(answer.message, param=param)
        case FailureKind.OVERLOADED | FailureKind.UNAVAILABLE:
            return Unavailable(answer.message)
        case FailureKind.ABORTED:
            return InvalidRequest("The request was aborted.")
        case FailureKind.INTERNAL:
            return Internal(f"{param}: {answer.message}" if param else answer.message)


def _require(capabilities: Capabilities, task: str) -> None:
    if capabilities.task != task:
        does = {"generate": "generates text", "embed": "makes embeddings"}
        raise InvalidRequest(
            f"This model {does.get(capabilities.task, capabilities.task)}; it cannot serve this route.", param="model"
        )


def _offset_seed(seed: int, choice: int) -> int:
    """Stays within int64."""
    return (seed + choice + 2**63) % 2**64 - 2**63
