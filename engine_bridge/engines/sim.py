"""A deterministic engine without a model: for tests, load tests and capacity planning.

What it says is a function of the prompt, the seed and nothing else (`seeded`), or the prompt itself (`echo`, which
scripts any sequence of ids through any API that takes token ids); `--arrival-log` writes down in which order requests
came. How long it takes is a time model: a step costs
`step_ms + step_ms_per_request * running + prefilled tokens / prefill_tokens_per_second`, and gives each running
request `tokens_per_step` ids. Faults happen on demand: a prompt that holds a fault's token id sets it off.
"""

import argparse
import array
import asyncio
import json
import math
import os
import random
import signal
import time
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from engine_bridge import wire
from engine_bridge.engines import Answer, Emit, EngineRefusal, Key
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
    TokenLogprobs,
    pack_ids,
    unpack_ids,
)

_VECTORS = 256  # base vectors; rotated by the prompt's hash, so that different prompts differ
_FORCING_BIAS = 50.0  # a logit bias from here on decides; below it, it is noise to us


class FaultKind(StrEnum):
    CRASH = "crash"  # the process dies of SIGKILL
    STALL = "stall"  # the loop turns, but no output comes any more
    HANG = "hang"  # the loop itself stands still
    SLOW = "slow"  # this step takes AFTER seconds
    REFUSE = "refuse"  # the queue is "full" for this request
    ERROR = "error"  # this request fails after AFTER tokens
    NAN = "nan"  # its vector holds a NaN


@dataclass(frozen=True, slots=True)
class Fault:
    """`KIND:TOKEN_ID[:AFTER]`; AFTER is a count of output tokens, or seconds for `slow`."""

    kind: FaultKind
    token_id: int
    after: float = 0

    @classmethod
    def parse(cls, text: str) -> "Fault":
        kind, token_id, *after = text.split(":")
        return cls(FaultKind(kind), int(token_id), float(after[0]) if after else 0)


@dataclass(frozen=True, slots=True)
class SimOptions:
    task: str = "generate"
    mode: str = "seeded"
    vocab_size: int = 259
    eos_token_id: int = 258
    max_model_len: int = 40_960
    dimensions: int = 384
    tokens_per_step: int = 1
    step_ms: float = 0.0
    step_ms_per_request: float = 0.0
    prefill_tokens_per_second: float = math.inf
    max_running: int = 256
    max_waiting: int = 0  # 0 = no limit
    load_seconds: float = 0.0
    faults: tuple[Fault, ...] = ()
    arrival_log: Path | None = None


@dataclass(slots=True)
class _Running:
    """A request that has been admitted to a step."""

    key: Key
    request: Generate | Embed
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
        self._vectors: list[bytes] = []
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
            self._vectors = [_unit_vector(seed, options.dimensions) for seed in range(_VECTORS)]
        generates = options.task == "generate"
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
            engine="sim",
        )

    def submit(self, requests: Sequence[tuple[Key, Request]]) -> None:
        options = self._options
        refused: list[tuple[Key, Answer]] = []
        for key, request in requests:
            self._note(request)
            if not isinstance(request, Generate if options.task == "generate" else Embed):
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
        raise EngineRefusal(f"this engine cannot do '{verb}'")

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
        if self._stepping is not None or self._stalled or not (self._waiting or self._running):
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
            assert not isinstance(request, Score), "submit has refused it"
            running = _Running(key, request, token_ids, self._fault_of(token_ids), time.monotonic() - arrived)
            running.state = zlib.crc32(request.prompt_token_ids)
            if type(request) is Generate:
                self._prepare(running, request)
            self._running[key] = running
        return prefilled

    def _prepare(self, running: _Running, request: Generate) -> None:
        params = request.sampling_params
        if params.seed is not None:
            running.state ^= zlib.crc32(params.seed.to_bytes(8, "little", signed=True))
        if self._options.mode == "echo":
            running.script = running.prompt_token_ids
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
            self._logprobs(new, params.logprobs),
            self._prompt_logprobs(running, params.prompt_logprobs) if first else None,
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

    def _logprobs(self, token_ids: list[int], count: int | None) -> tuple[TokenLogprobs, ...] | None:
        if count is None:
            return None
        return tuple(self._logprob(token_id, count) for token_id in token_ids)

    def _prompt_logprobs(self, running: _Running, count: int | None) -> tuple[TokenLogprobs | None, ...] | None:
        if count is None:
            return None
        return (None, *(self._logprob(token_id, count) for token_id in running.prompt_token_ids[1:]))

    def _logprob(self, token_id: int, count: int) -> TokenLogprobs:
        """The sampled token is always the likeliest; its neighbours follow."""
        own = -0.001 * (1 + token_id % 97)
        size = self._options.vocab_size
        return TokenLogprobs(own, tuple(((token_id + i) % size, own - i) for i in range(count)))

    def _vector(self, running: _Running, request: Embed) -> bytes:
        if running.fault is not None and running.fault.kind is FaultKind.NAN:
            return array.array("f", [math.nan] * (request.dimensions or self._options.dimensions)).tobytes()
        hashed = running.state
        base = self._vectors[hashed % _VECTORS]
        cut = 4 * ((hashed >> 8) % self._options.dimensions)
        vector = base[cut:] + base[:cut]
        if request.dimensions is None or request.dimensions == self._options.dimensions:
            return vector
        return _normalised(array.array("f", vector[: 4 * request.dimensions]).tolist())


def _nobody(answers: Sequence[tuple[Key, Answer]]) -> None:
    raise AssertionError("emitted before start")


def _unit_vector(seed: int, dimensions: int) -> bytes:
    source = random.Random(seed)
    return _normalised([source.gauss(0, 1) for _ in range(dimensions)])


def _normalised(values: list[float]) -> bytes:
    norm = math.sqrt(sum(value * value for value in values)) or 1.0
    return array.array("f", [value / norm for value in values]).tobytes()


def create(model: str, arguments: list[str]) -> SimEngine:
    """The engine from everything that stood after `--`; `model` is only a name here."""
    defaults = SimOptions()
    parser = argparse.ArgumentParser(prog="--engine sim --", description="The simulated engine's options.")
    parser.add_argument("--task", choices=("generate", "embed"), default=defaults.task)
    parser.add_argument("--mode", choices=("seeded", "echo"), default=defaults.mode)
    parser.add_argument("--vocab-size", type=int, default=defaults.vocab_size)
    parser.add_argument("--eos-token-id", type=int, default=defaults.eos_token_id)
    parser.add_argument("--max-model-len", type=int, default=defaults.max_model_len)
    parser.add_argument("--dimensions", type=int, default=defaults.dimensions)
    parser.add_argument("--tokens-per-step", type=int, default=defaults.tokens_per_step)
    parser.add_argument("--step-ms", type=float, default=defaults.step_ms)
    parser.add_argument("--step-ms-per-request", type=float, default=defaults.step_ms_per_request)
    parser.add_argument("--prefill-tokens-per-second", type=float, default=defaults.prefill_tokens_per_second)
    parser.add_argument("--max-running", type=int, default=defaults.max_running)
    parser.add_argument("--max-waiting", type=int, default=defaults.max_waiting)
    parser.add_argument("--load-seconds", type=float, default=defaults.load_seconds)
    parser.add_argument("--fault", type=Fault.parse, action="append", default=[], help="KIND:TOKEN_ID[:AFTER]")
    parser.add_argument("--arrival-log", type=Path, metavar="FILE", help="write a line of JSON for each request")
    options = parser.parse_args(arguments)
    values = vars(options)
    values["faults"] = tuple(values.pop("fault"))
    return SimEngine(SimOptions(**values))
