"""Sentence embeddings with onnxruntime: token ids in, pooled and normalised vectors out.

One thread takes a batch of what waits, runs the model (which releases the GIL) and wakes the loop once with all of the
batch's vectors. Between the two is one lock; the loop holds it for as long as it takes to put down what it got.
"""

import argparse
import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine_bridge.engines import Answer, Emit, EngineError, EngineRefusal, Key
from engine_bridge.engines.option_parser import OptionParser
from engine_bridge.wire import Capabilities, Embed, Embedding, Failure, FailureKind, Request

if TYPE_CHECKING:
    from engine_bridge.engines.onnx_model import OnnxModel, Vectors

logger = logging.getLogger(__name__)

_WINDOW = 256  # how many of the waiting a batch is chosen from
_MAX_PADDING = 0.25  # of a batch's positions; padding costs as much as tokens do


@dataclass(frozen=True)
class OnnxOptions:
    """How to run an ONNX model."""

    pooling: str | None = None
    """mean, cls or last; None = as 1_Pooling/config.json beside the model says, else mean."""
    normalize: bool = True
    """Scale vectors to length 1."""
    matryoshka: bool = False
    """The model was trained for vectors that may be cut, so requests may set dimensions."""
    max_model_len: int | None = None
    """Tokens of one text; None = as config.json beside the model says, else 512."""
    threads: int | None = None
    """Threads that compute; None = one fewer than this process has CPUs, from 1 to 8."""
    max_batch_tokens: int = 512
    """Tokens of a step, padding included; one longer text is a step of its own."""
    max_waiting: int = 8192
    """Requests that may wait; one more fails as overloaded."""


class _Job:
    """One request in the engine."""

    __slots__ = ("aborted", "arrived", "dimensions", "key", "length", "prompt_token_ids", "queued_seconds")

    def __init__(self, key: Key, request: Request) -> None:
        self.key = key
        self.prompt_token_ids = request.prompt_token_ids
        self.length = len(request.prompt_token_ids) // 4
        self.dimensions = request.dimensions if isinstance(request, Embed) else None
        self.aborted = False
        self.arrived = time.monotonic()
        self.queued_seconds = 0.0


class OnnxEngine:
    """An Engine that embeds. start() raises EngineError if the file is not a model that this can run."""

    def __init__(self, model: Path, *, options: OnnxOptions) -> None:
        self._path = model
        self._options = options
        self._live: dict[Key, _Job] = {}
        self._work = threading.Condition()
        # Guarded by the condition's lock:
        self._waiting: deque[_Job] = deque()
        self._running = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self._model: OnnxModel | None = None

    async def start(self, emit: Emit) -> Capabilities:
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        model = self._model = await asyncio.to_thread(_load, self._path, self._options)
        self._capabilities = Capabilities(
            task="embed",
            max_model_len=model.max_model_len,
            vocab_size=model.vocab_size,
            dimensions=model.dimensions,
            matryoshka=self._options.matryoshka,
            engine=f"onnx (onnxruntime {model.version})",
        )
        self._thread = threading.Thread(target=self._step_until_closed, args=(model,), name="onnx-step", daemon=True)
        self._thread.start()
        return self._capabilities

    def submit(self, requests: Sequence[tuple[Key, Request]]) -> None:
        refused: list[tuple[Key, Answer]] = []
        with self._work:
            for key, request in requests:
                failure = self._refusal(request)
                if failure is None:
                    job = self._live[key] = _Job(key, request)
                    self._waiting.append(job)
                else:
                    refused.append((key, failure))
            self._work.notify()
        if refused:
            self._emit(refused)

    def abort(self, keys: Sequence[Key]) -> None:
        jobs = [job for key in keys if (job := self._live.pop(key, None)) is not None]
        for job in jobs:
            job.aborted = True
        if jobs:
            with self._work:
                self._waiting = deque(job for job in self._waiting if not job.aborted)

    def counts(self) -> tuple[int, int]:
        return self._running, len(self._waiting)

    async def admin(self, verb: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        raise EngineRefusal(f"this engine cannot do '{verb}'")

    async def close(self) -> None:
        with self._work:
            self._closing = True
            self._waiting.clear()
            self._work.notify()
        self.abort(list(self._live))
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._thread = self._model = None

    def _refusal(self, request: Request) -> Failure | None:
        if not isinstance(request, Embed):
            return Failure(request.request_id, FailureKind.INVALID, "this model embeds, it does not generate")
        message = self._invalid(request)
        if message is not None:
            return Failure(request.request_id, FailureKind.INVALID, message)
        if len(self._waiting) >= self._options.max_waiting:
            return Failure(request.request_id, FailureKind.OVERLOADED, "the engine's queue is full")
        return None

    def _invalid(self, request: Embed) -> str | None:
        capabilities = self._capabilities
        length = len(request.prompt_token_ids) // 4
        if not 0 < length <= capabilities.max_model_len:
            return f"a text has from 1 to {capabilities.max_model_len} tokens, this one {length}"
        if request.dimensions not in (None, capabilities.dimensions):
            if not capabilities.matryoshka:
                return f"this model's vectors have {capabilities.dimensions} dimensions and cannot be cut"
            if not 0 < request.dimensions < capabilities.dimensions:
                return f"dimensions is from 1 to {capabilities.dimensions}"
        # One id outside the vocabulary fails the model's whole batch; a negative one it would count from the end.
        ids = memoryview(request.prompt_token_ids).cast("i")
        if not 0 <= min(ids) <= max(ids) < capabilities.vocab_size:
            return "the text has token ids outside the vocabulary"
        return None

    def _finish(self, ends: Sequence[tuple[_Job, Answer]]) -> None:
        answers: list[tuple[Key, Answer]] = []
        for job, answer in ends:
            if not job.aborted:
                del self._live[job.key]
                answers.append((job.key, answer))
        if answers:
            self._emit(answers)

    # ---- in the step thread ----

    def _step_until_closed(self, model: "OnnxModel") -> None:
        while jobs := self._next_batch():
            ends = _embed(model, jobs)
            self._loop.call_soon_threadsafe(self._finish, ends)

    def _next_batch(self) -> list[_Job]:
        """What to embed next, of what waits; empty when the engine closes."""
        with self._work:
            self._running = 0
            self._work.wait_for(lambda: self._waiting or self._closing)
            window = [self._waiting[index] for index in range(min(len(self._waiting), _WINDOW))]
            if not window:
                return []
            batch = choose_batch([job.length for job in window], max_tokens=self._options.max_batch_tokens)
            for index in sorted(batch, reverse=True):
                del self._waiting[index]
            self._running = len(batch)
            now = time.monotonic()
            jobs = [window[index] for index in batch]
            for job in jobs:
                job.queued_seconds = now - job.arrived
            return jobs


def choose_batch(lengths: Sequence[int], *, max_tokens: int) -> list[int]:
    """Which of the waiting to run together: the oldest, which comes first, and those nearest to it in length."""
    oldest, *nearest = sorted(range(len(lengths)), key=lambda index: abs(lengths[index] - lengths[0]))
    batch = [oldest]
    longest = tokens = lengths[oldest]
    for index in nearest:
        longest = max(longest, lengths[index])
        tokens += lengths[index]
        positions = longest * (len(batch) + 1)
        if positions > max_tokens or positions - tokens > positions * _MAX_PADDING:
            break
        batch.append(index)
    return batch


def _load(path: Path, options: OnnxOptions) -> "OnnxModel":
    try:
        from engine_bridge.engines.onnx_model import OnnxModel  # here, since numpy and onnxruntime are an extra
    except ImportError as error:
        raise EngineError(f"onnx: {error.name} is missing; pip install 'apiserver-pool[cpu]'") from error
    return OnnxModel(
        path,
        pooling=options.pooling,
        normalize=options.normalize,
        max_model_len=options.max_model_len,
        threads=options.threads,
    )


def _embed(model: "OnnxModel", jobs: Sequence[_Job]) -> list[tuple[_Job, Answer]]:
    try:
        vectors = model.embed([job.prompt_token_ids for job in jobs])
    except Exception:
        if len(jobs) > 1:  # one text must not fail its neighbours
            return [end for job in jobs for end in _embed(model, [job])]
        logger.exception("onnxruntime failed at a text of %d tokens", jobs[0].length)
        return [(jobs[0], _failure(jobs[0], "the engine failed at this text"))]
    return [(job, _answer(model, job, vector)) for job, vector in zip(jobs, vectors, strict=True)]


def _answer(model: "OnnxModel", job: _Job, vector: "Vectors") -> Answer:
    if job.dimensions is not None:
        vector = model.cut(vector, job.dimensions)
    if not model.is_finite(vector):
        return _failure(job, "the model's vector for this text holds NaN or infinity")
    return Embedding(job.key[1], vector.tobytes(), job.queued_seconds)


def _failure(job: _Job, message: str) -> Failure:
    return Failure(job.key[1], FailureKind.INTERNAL, message)


def create(model: str, arguments: list[str]) -> OnnxEngine:
    """The engine for this ONNX file, from everything that stood after `--`."""
    defaults = OnnxOptions()
    parser = OptionParser(prog="--engine onnx --", description="The ONNX engine's options.")
    parser.add_argument("--pooling", choices=("mean", "cls", "last"), default=defaults.pooling)
    parser.add_argument("--normalize", action=argparse.BooleanOptionalAction, default=defaults.normalize)
    parser.add_argument("--matryoshka", action="store_true", help="vectors may be cut")
    parser.add_argument("--max-model-len", type=int, default=defaults.max_model_len, help="tokens of a text")
    parser.add_argument("--threads", type=int, default=defaults.threads, help="threads that compute")
    parser.add_argument("--max-batch-tokens", type=int, default=defaults.max_batch_tokens, help="tokens of a step")
    parser.add_argument("--max-waiting", type=int, default=defaults.max_waiting, help="requests that may wait")
    return OnnxEngine(Path(model), options=OnnxOptions(**vars(parser.parse_args(arguments))))
