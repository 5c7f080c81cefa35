"""llama.cpp as an engine: any GGUF file, through xllamacpp's `Server`.

Its slots are the continuous batching. A request is one blocking call with a callback, so there is one thread a slot.
All bookkeeping is the loop's: a thread takes a run from a queue, and what it has to say goes to the outbox, which the
loop empties once for all that has arrived. So an aborted run is silent from the moment of its abort, and its thread
is free at its next callback, which is one token or one batch of its prompt later.

What we guard against, all of it seen with xllamacpp 2026.10:

- `Server` always opens an HTTP server. It gets a Unix socket in a private directory and a random key, and the socket
  is deleted as soon as it stands.
- It takes over SIGINT and SIGTERM; the process's own handlers are put back.
- At any log level above 0 it writes clients' grammars to stderr.
- It ignores a JSON schema that it cannot compile, loses ids, and has a parser that a request can crash:
  `llamacpp_request` and `llamacpp_stream` say more.
"""

import asyncio
import importlib
import logging
import os
import queue
import secrets
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_bridge.engines import Answer, Emit, EngineError, Key
from engine_bridge.engines.gguf import GgufHeader
from engine_bridge.engines.llamacpp_request import Refused, Run, check
from engine_bridge.engines.llamacpp_stream import Completion, CompletionServer
from engine_bridge.wire import Capabilities, Failure, FailureKind, Generate, Request

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LlamaCppOptions:
    """How to run a GGUF model."""

    n_parallel: int = 4
    """Requests that generate at the same time; each has its own part of the KV cache."""
    max_model_len: int | None = None
    """Prompt plus output tokens of one request; None = what the model was trained for, at most 4,096."""
    threads: int | None = None
    """Threads that compute; None = one fewer than this process has CPUs, from 1 to 8."""
    batch_tokens: int = 64
    """Prompt tokens a step, so also the most that is computed for a request aborted in its prefill."""
    max_waiting: int = 1024
    """Requests that may wait for a slot; one more fails as overloaded."""
    gpu_layers: int = -1
    """Layers on the GPU, where the wheel has been built for one; -1 = all."""
    verbosity: int = 0
    """llama.cpp's own log on stderr: 0 nothing, 1 errors, 2 warnings, 3 all."""


class LlamaCppEngine:
    """An Engine that generates. start() raises EngineError if llama.cpp cannot load the file."""

    def __init__(self, model: Path, *, options: LlamaCppOptions) -> None:
        self._model = model
        self._options = options
        self._live: dict[Key, Run] = {}
        self._waiting: deque[Run] = deque()
        self._busy_slots = 0
        self._jobs: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._outbox: deque[tuple[Run, Answer, bool]] = deque()
        self._flush_scheduled = False
        self._threads: list[threading.Thread] = []
        self._vetted_schemas: set[str] = set()

    async def start(self, emit: Emit) -> Capabilities:
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        with _own_signal_handlers():
            await asyncio.to_thread(self._load)
        for slot in range(self._options.n_parallel):
            thread = threading.Thread(target=self._serve_slot, name=f"llamacpp-{slot}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self._capabilities

    def submit(self, requests: Sequence[tuple[Key, Request]]) -> None:
        for key, request in requests:
            run = self._live[key] = Run(key, request)
            try:
                self._check(request)
            except Refused as refusal:
                self._post(run, Failure(request.request_id, refusal.kind, str(refusal)), is_end=True)
            else:
                self._waiting.append(run)
                self._fill_slots()

    def abort(self, keys: Sequence[Key]) -> None:
        for key in keys:
            run = self._live.pop(key, None)
            if run is not None:
                run.aborted = True
                if run in self._waiting:
                    self._waiting.remove(run)

    def counts(self) -> tuple[int, int]:
        return self._busy_slots, len(self._waiting)

    async def close(self) -> None:
        self.abort(list(self._live))
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._threads.clear()
        self._server = None  # frees the model, and joins llama.cpp's own threads

    def _load(self) -> None:
        try:
            self._header = GgufHeader(self._model)
        except (OSError, ValueError) as error:
            raise EngineError(f"llamacpp: {error}") from error
        trained_for = self._header.context_length
        max_model_len = self._options.max_model_len or min(trained_for, 4096)
        if max_model_len > trained_for:
            raise EngineError(f"llamacpp: max_model_len {max_model_len} exceeds the model's {trained_for}")
        self._server, version = _open_server(self._model, self._options, max_model_len=max_model_len)
        self._capabilities = Capabilities(
            task="generate",
            max_model_len=max_model_len,
            vocab_size=self._header.vocab_size,
            eos_token_ids=self._header.eos_token_ids,
            logprobs=20,
            min_tokens=True,
            logit_bias=True,
            json_schema=True,
            grammar=True,
            engine=f"llamacpp (xllamacpp {version})",
        )

    def _check(self, request: Request) -> None:
        if not isinstance(request, Generate):
            raise Refused("this model generates text, it does not embed")
        check(request, self._capabilities)
        if len(self._waiting) >= self._options.max_waiting:
            raise Refused("the engine's queue is full", FailureKind.OVERLOADED)

    def _fill_slots(self) -> None:
        while self._waiting and self._busy_slots < self._options.n_parallel:
            run = self._waiting.popleft()
            run.has_slot = True
            self._busy_slots += 1
            self._jobs.put(run)

    def _flush(self) -> None:
        self._flush_scheduled = False  # before the outbox is read, so that what comes later schedules its own
        answers: list[tuple[Key, Answer]] = []
        while self._outbox:
            run, answer, is_end = self._outbox.popleft()
            if not run.aborted:
                answers.append((run.key, answer))
            if is_end:
                self._busy_slots -= run.has_slot
                if not run.aborted:
                    del self._live[run.key]
        self._fill_slots()
        if answers:
            self._emit(answers)

    def _post(self, run: Run, answer: Answer, *, is_end: bool = False) -> None:
        """Have an answer emitted, from any thread."""
        # All slots' tokens of one step come within microseconds of each other: one wake-up of the loop carries them.
        self._outbox.append((run, answer, is_end))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon_threadsafe(self._flush)

    def _serve_slot(self) -> None:
        while (run := self._jobs.get()) is not None:
            self._post(run, self._serve(run), is_end=True)

    def _serve(self, run: Run) -> Answer:
        try:
            completion = Completion(
                run,
                header=self._header,
                capabilities=self._capabilities,
                vetted_schemas=self._vetted_schemas,
                emit=lambda output: self._post(run, output),
            )
            assert self._server is not None
            return completion.generate(self._server)
        except Refused as refusal:
            return Failure(run.request.request_id, refusal.kind, str(refusal))
        except Exception:
            logger.exception("llama.cpp failed at a request")
            return Failure(run.request.request_id, FailureKind.INTERNAL, "the engine failed at this request")


@contextmanager
def _own_signal_handlers() -> Generator[None]:
    """Put back the handlers that llama.cpp's server replaces behind Python's back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _open_server(model: Path, options: LlamaCppOptions, *, max_model_len: int) -> tuple[CompletionServer, str]:
    """Load the model; also xllamacpp's version. Raises EngineError."""
    try:
        xllamacpp: Any = importlib.import_module("xllamacpp")  # an extra, and without types
    except ImportError as error:
        raise EngineError("llamacpp: xllamacpp is missing; pip install 'apiserver-pool[cpu]'") from error
    # The API servers share the machine, and a pool that meets at every operator waits for its slowest member.
    threads = options.threads or min(max(len(os.sched_getaffinity(0)) - 1, 1), 8)
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_parallel = options.n_parallel
    params.n_ctx = options.n_parallel * max_model_len  # all slots together
    params.n_batch = params.n_ubatch = options.batch_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_gpu_layers = options.gpu_layers
    params.fit_params = False  # it would make the context smaller, to fit
    params.cache_ram_mib = 0  # its default copies up to 8 GiB of old prompts into memory
    params.cache_idle_slots = False
    params.chat_template = "chatml"  # never used; the file's own would fail the start if it did not parse
    params.verbosity = options.verbosity
    params.n_threads_http = 1
    params.endpoint_slots = False
    params.api_keys = [secrets.token_hex(32)]
    with tempfile.TemporaryDirectory(prefix="llamacpp-") as private:
        params.hostnames = [f"{private}/http.sock"]
        try:
            return xllamacpp.Server(params), str(xllamacpp.__version__)
        except RuntimeError as error:
            raise EngineError(f"llamacpp: llama.cpp cannot load {model}; verbosity 1 shows why") from error
