"""A deterministic engine without a model: for tests, load tests and capacity planning.

What it says is a function of the prompt, the seed and nothing else (`seeded`), or the prompt itself (`echo`, which
scripts any sequence of ids through any API that takes token ids); `--arrival-log` writes down in which order requests
came. How long it takes is a time model: a step costs
`step_ms + step_ms_per_request * running + prefilled tokens / prefill_tokens_per_second`, and gives each running
request `tokens_per_step` ids. With `--constraints` it takes schemas and grammars, and trusts the script to keep them.
Faults happen on demand: a prompt that holds a fault's token id sets it off.
"""

import asyncio
import json
import os
import signal
import time
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_bridge import wire
from engine_bridge.engines import Answer, Emit, EngineRefusal, Key
from engine_bridge.engines.sim_options import Fault, FaultKind, SimOptions, parse_options
from engine_bridge.engines.sim_scores import score_labels
from engine_bridge.engines.sim_vectors import Vectors, no_number
from engine_bridge.wire import (
    Capabilities,
    Embed,
    Embedding,
    Failure,
    FailureKind,
    FinishReason,
    Generate,
    Output,
    Request,
    Score,
    Scores,
    TokenLogprobs,
    pack_ids,
    unpack_ids,
)

_VERBS = ("flush_cache", "pause_generation", "continue_generation", "internal_state")
_GREEDY = wire.SamplingParams()
_FORCING_BIAS = 50.0  # a logit bias from here on decides; below it, it is noise to us


@dataclass(slots=True)
class _Running:
    """A request that has been admitted to a step."""

    key: Key
    request: Request
    prompt_token_ids: list[int]
    fault: Fault | None
    queued_seconds: float
    made: int = 0
    state: int = 0
    forced: int | None = None
    script: list[int] = field(default_factory=list[int])


class SimEngine:
    """See the module; implements `engine_bridge.engines.Engine`."""

    def __init__(self, options: SimOptions) -> None:
        self._options = options
        self._waiting: deque[tuple[Key, Request, float]] = deque()
        self._running: dict[Key, _Running] = {}
        self._aborted: set[Key] = set()
        self._stepping: asyncio.TimerHandle | asyncio.Handle | None = None
        self._stalled = False
        self._emit: Emit = _nobody
        low, high = (32, 127) if options.vocab_size < 1000 else (1000, min(options.vocab_size, 30_000))
        self._low, self._span = low, max(1, high - low)
        self._vectors: Vectors | None = None
        self._paused = False
        self._began = time.monotonic()
        self._made = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        # A line at a time: whoever reads it while we run sees whole lines. Open as long as the process lives.
        log = options.arrival_log
        self._arrivals = log.open("w", buffering=1, encoding="utf-8") if log is not None else None

    async def start(self, emit: Emit) -> Capabilities:
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        options = self._options
        await asyncio.sleep(options.load_seconds)
        if options.task == "embed":
            self._vectors = Vectors(options.dimensions)
        generates = options.task == "generate"
        constrains = generates and options.constraints
        return Capabilities(
            task=options.task,
            max_model_len=options.max_model_len,
            vocab_size=options.vocab_size,
            eos_token_ids=(options.eos_token_id,),
            dimensions=0 if generates else options.dimensions,
            matryoshka=not generates,
            logprobs=20 if generates else -1,
            prompt_logprobs=generates,
            min_tokens=generates,
            logit_bias=generates,
            json_schema=constrains,
            regex=constrains,
            grammar=constrains,
            engine="sim",
            score=generates,
            structural_tag=constrains,
            admin=_VERBS,
            tag_formats=constrains,
            token_ids_logprob=generates,
        )

    def submit(self, requests: Sequence[tuple[Key, Request]]) -> None:
        options = self._options
        refused: list[tuple[Key, Answer]] = []
        for key, request in requests:
            self._note(request)
            if isinstance(request, Embed) != (options.task == "embed"):
                refused.append((key, Failure(key[1], FailureKind.INVALID, f"this engine can only {options.task}")))
            elif options.max_waiting and len(self._waiting) >= options.max_waiting:
                refused.append((key, Failure(key[1], FailureKind.OVERLOADED, "the engine's queue is full")))
            else:
                self._waiting.append((key, request, time.monotonic()))
        if refused:
            self._emit(refused)
        self._schedule()

    def _note(self, request: Request) -> None:
        """One line of the arrival log: how many prompt tokens, and a CRC-32 of their bytes on the wire."""
        if self._arrivals is not None:
            packed = request.prompt_token_ids
            line = json.dumps({"prompt_tokens": len(packed) // 4, "crc": zlib.crc32(packed)})
            self._arrivals.write(f"{line}\n")

    def abort(self, keys: Sequence[Key]) -> None:
        waiting = set(keys)
        for key in keys:
            if self._running.pop(key, None) is not None:
                waiting.discard(key)
        if waiting:
            self._waiting = deque(entry for entry in self._waiting if entry[0] not in waiting)

    def counts(self) -> tuple[int, int]:
        return len(self._running), len(self._waiting)

    async def admin(self, verb: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        match verb:
            case "flush_cache":  # there is none; but a flush wants an idle engine, as SGLang's does
                if self._running or self._waiting:
                    raise EngineRefusal("the cache can only be flushed while nothing is running or waiting")
                return {}
            case "pause_generation":
                self._pause()
                return {}
            case "continue_generation":
                self._paused = False
                self._schedule()
                return {}
            case "internal_state":
                return self._internal_state()
            case _:
                raise EngineRefusal(f"this engine cannot do '{verb}'")

    def _pause(self) -> None:
        """What runs stays where it is, and what comes waits."""
        self._paused = True
        if self._stepping is not None:
            self._stepping.cancel()
            self._stepping = None

    def _internal_state(self) -> dict[str, Any]:
        used = sum(len(running.prompt_token_ids) + running.made for running in self._running.values())
        total = self._options.max_running * self._options.max_model_len
        return {
            "last_gen_throughput": round(self._made / max(time.monotonic() - self._began, 1e-3), 3),
            "num_used_tokens": used,
            "max_total_num_tokens": total,
            "max_running_requests": self._options.max_running,
            "token_usage": used / total,
            "is_paused": self._paused,
        }

    async def close(self) -> None:
        if self._stepping is not None:
            self._stepping.cancel()
        self._running.clear()
        self._waiting.clear()
        if self._arrivals is not None:
            self._arrivals.close()

    # ---- the step ----

    def _schedule(self) -> None:
        """Admit what fits and let the step take its time; its outputs come when the time is over."""
        if self._stepping is not None or self._stalled or self._paused or not (self._waiting or self._running):
            return
        assert self._loop is not None
        prefilled = self._admit()
        options = self._options
        seconds = (options.step_ms + options.step_ms_per_request * len(self._running)) / 1000
        seconds += prefilled / options.prefill_tokens_per_second
        seconds += self._slow_seconds()
        if self._stalled:
            return
        self._stepping = self._loop.call_later(seconds, self._step) if seconds else self._loop.call_soon(self._step)

    def _admit(self) -> int:
        """Move requests from waiting to running; returns how many prompt tokens they bring."""
        prefilled = 0
        while self._waiting and len(self._running) < self._options.max_running:
            key, request, arrived = self._waiting.popleft()
            token_ids = unpack_ids(request.prompt_token_ids)
            prefilled += len(token_ids)
            running = _Running(key, request, token_ids, self._fault_of(token_ids), time.monotonic() - arrived)
            running.state = zlib.crc32(request.prompt_token_ids)
            if self._options.mode == "echo":
                running.script = token_ids
            if type(request) is Generate:
                self._prepare(running, request)
            self._running[key] = running
        return prefilled

    def _prepare(self, running: _Running, request: Generate) -> None:
        params = request.sampling_params
        if params.seed is not None:
            running.state ^= zlib.crc32(params.seed.to_bytes(8, "little", signed=True))
        for token_id, bias in params.logit_bias:
            if bias >= _FORCING_BIAS:
                running.forced = token_id

    def _fault_of(self, token_ids: list[int]) -> Fault | None:
        for fault in self._options.faults:
            if fault.token_id in token_ids:
                return fault
        return None

    def _slow_seconds(self) -> float:
        """Set off the faults that concern the whole engine; returns the seconds that slow ones add to this step."""
        seconds = 0.0
        for running in self._running.values():
            fault = running.fault
            if fault is None or (fault.kind is not FaultKind.SLOW and running.made < fault.after):
                continue
            if fault.kind is FaultKind.CRASH:
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault.kind is FaultKind.STALL:
                self._stalled = True
            elif fault.kind is FaultKind.HANG:
                time.sleep(1e6)
            elif fault.kind is FaultKind.SLOW:
                seconds += fault.after
                running.fault = None
        return seconds

    def _step(self) -> None:
        self._stepping = None
        answers: list[tuple[Key, Answer]] = []
        for running in list(self._running.values()):
            answer = self._advance(running)
            answers.append((running.key, answer))
            if type(answer) is not Output or answer.finish_reason is not None:
                del self._running[running.key]
            if type(answer) is Output:
                self._made += len(answer.new_token_ids) >> 2
        if answers:
            self._emit(answers)
        self._schedule()

    def _advance(self, running: _Running) -> Answer:
        fault = running.fault
        request_id = running.key[1]
        if fault is not None and running.made >= fault.after:
            if fault.kind is FaultKind.REFUSE:
                return Failure(request_id, FailureKind.OVERLOADED, "the engine's queue is full")
            if fault.kind is FaultKind.ERROR:
                return Failure(request_id, FailureKind.INTERNAL, "the engine failed at this request")
        if type(running.request) is Generate:
            return self._generate(running, running.request)
        if type(running.request) is Score:
            return self._score(running, running.request)
        assert type(running.request) is Embed
        return Embedding(request_id, self._vector(running, running.request), running.queued_seconds)

    def _generate(self, running: _Running, request: Generate) -> Output:
        params = request.sampling_params
        first = running.made == 0
        new: list[int] = []
        most = min(params.max_tokens, self._options.max_model_len - len(running.prompt_token_ids))
        reason = FinishReason.LENGTH if most <= 0 else None
        stop_token_id = None
        while reason is None and len(new) < self._options.tokens_per_step:
            token_id = self._next_id(running, params)
            new.append(token_id)
            running.made += 1
            if self._stops(token_id, running.made, params):
                reason, stop_token_id = FinishReason.STOP, token_id
            elif running.made >= most:
                reason = FinishReason.LENGTH
        return Output(
            running.key[1],
            pack_ids(new),
            reason,
            stop_token_id,
            self._logprobs(new, params.logprobs, params.token_ids_logprob),
            self._prompt_logprobs(running, params) if first else None,
            queued_seconds=running.queued_seconds if first else 0.0,
        )

    def _next_id(self, running: _Running, params: wire.SamplingParams) -> int:
        if running.forced is not None and self._may_come(running.forced, running.made, params):
            return running.forced
        script = running.script
        if script:
            position = running.made
            if position < len(script):
                return script[position]
            if not params.ignore_eos and running.made >= params.min_tokens:
                return self._options.eos_token_id
            return script[position % len(script)]
        running.state = (running.state * 1103515245 + 12345) & 0x7FFFFFFF
        return self._low + (running.state >> 8) % self._span

    def _may_come(self, token_id: int, made: int, params: wire.SamplingParams) -> bool:
        """The end token is out of the question until min_tokens are there."""
        return token_id != self._options.eos_token_id or made >= params.min_tokens

    def _stops(self, token_id: int, made: int, params: wire.SamplingParams) -> bool:
        if made <= params.min_tokens:
            return False
        if token_id in params.stop_token_ids:
            return True
        return token_id == self._options.eos_token_id and not params.ignore_eos

    def _logprobs(
        self, token_ids: Sequence[int], count: int | None, asked: tuple[int, ...]
    ) -> tuple[TokenLogprobs, ...] | None:
        if count is None:
            return None
        return tuple(self._logprob(token_id, count, asked) for token_id in token_ids)

    def _prompt_logprobs(
        self, running: _Running, params: wire.SamplingParams
    ) -> tuple[TokenLogprobs | None, ...] | None:
        scored = self._logprobs(running.prompt_token_ids[1:], params.prompt_logprobs, params.token_ids_logprob)
        return None if scored is None else (None, *scored)

    def _logprob(self, token_id: int, count: int, asked: tuple[int, ...] = ()) -> TokenLogprobs:
        """The sampled token is always the likeliest; its neighbours follow."""
        own = -0.001 * (1 + token_id % 97)
        size = self._options.vocab_size
        top = tuple(((token_id + i) % size, own - i) for i in range(count))
        return TokenLogprobs(own, top, tuple(own - (other - token_id) % size for other in asked))

    def _score(self, running: _Running, request: Score) -> Scores:
        next_id = self._next_id(running, _GREEDY)
        scores = score_labels(
            request.prompt_token_ids,
            request.label_token_ids,
            next_id=next_id,
            logprob=self._logprob(next_id, 0).logprob,
            vocab_size=self._options.vocab_size,
        )
        return Scores(running.key[1], scores, running.queued_seconds)

    def _vector(self, running: _Running, request: Embed) -> bytes:
        if running.fault is not None and running.fault.kind is FaultKind.NAN:
            return no_number(request.dimensions or self._options.dimensions)
        assert self._vectors is not None
        return self._vectors.of(running.state, request.dimensions)


def _nobody(answers: Sequence[tuple[Key, Answer]]) -> None:
    raise AssertionError("emitted before start")


def create(model: str, arguments: list[str]) -> SimEngine:
    """The engine from everything that stood after `--`; `model` is only a name here."""
    return SimEngine(parse_options(arguments))
