"""llama.cpp as an engine: any GGUF file, through xllamacpp's `Server`.

Its slots are the continuous batching. A request is one blocking call with a callback, so there is one thread a slot.
All bookkeeping is the loop's: a thread takes a run from a queue, and what it has to say goes to the outbox, which the
loop empties once for all that has arrived. So an aborted run is silent from the moment of its abort, and its thread
is free at its next callback, which is one token or one batch of its prompt later.

What xllamacpp 2026.10 does that we guard against is said where we do: `llamacpp_server` for the process,
`llamacpp_request` for what a request can do to it, `llamacpp_stream` for what it gets wrong or leaves out.
"""

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine_bridge.engines import Answer, Emit, EngineError, EngineRefusal, Key
from engine_bridge.engines.gguf import GgufHeader
from engine_bridge.engines.llamacpp_request import Refused, Run, check, check_score
from engine_bridge.engines.llamacpp_score import Scoring
from engine_bridge.engines.llamacpp_server import LlamaCppOptions, open_server, own_signal_handlers
from engine_bridge.engines.llamacpp_stream import Completion
from engine_bridge.engines.option_parser import OptionParser
from engine_bridge.wire import Capabilities, Failure, FailureKind, Generate, Request, Score

logger = logging.getLogger(__name__)


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
        with own_signal_handlers():
            await asyncio.to_thread(self._load)
        for slot in range(self._options.n_parallel):
            thread = threading.Thread(target=self._serve_slot, name=f"llamacpp-{slot}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self._capabilities

    def submit(self, requests: Sequence[tuple[Key, Request]]) -> None:
        refused: list[tuple[Key, Answer]] = []
        for key, request in requests:
            try:
                self._check(request)
            except Refused as refusal:
                refused.append((key, Failure(request.request_id, refusal.kind, str(refusal))))
            else:
                run = self._live[key] = Run(key, request)
                self._waiting.append(run)
                self._fill_slots()
        if refused:
            self._emit(refused)

    def abort(self, keys: Sequence[Key]) -> None:
        for key in keys:
            run = self._live.pop(key, None)
            if run is not None:
                run.aborted = True
                if not run.has_slot:
                    self._waiting.remove(run)

    def counts(self) -> tuple[int, int]:
        return self._busy_slots, len(self._waiting)

    async def admin(self, verb: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        raise EngineRefusal(f"this engine cannot do '{verb}'")

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
        self._server, version = open_server(self._model, self._options, max_model_len=max_model_len)
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
            score=True,
            engine=f"llamacpp (xllamacpp {version})",
            temperature=self._options.default_temperature,
            top_p=self._options.default_top_p,
        )

    def _check(self, request: Request) -> None:
        match request:
            case Generate():
                check(request, self._capabilities)
            case Score():
                check_score(request, self._capabilities)
            case _:
                raise Refused("this model generates text, it does not embed")
        if len(self._waiting) >= self._options.max_waiting:
            raise Refused("the engine's queue is full", FailureKind.OVERLOADED)

    def _fill_slots(self) -> None:
        while self._waiting and self._busy_slots < self._options.n_parallel:
            run = self._waiting.popleft()
            run.take_slot()
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

    def _say_progress(self) -> None:
        self._loop.call_soon_threadsafe(self._emit, ())

    def _serve_slot(self) -> None:
        while (run := self._jobs.get()) is not None:
            self._post(run, self._serve(run), is_end=True)

    def _serve(self, run: Run) -> Answer:
        assert self._server is not None
        try:
            if isinstance(run.request, Score):
                capabilities = self._capabilities
                scoring = Scoring(run, vocab_size=capabilities.vocab_size, eos_token_ids=capabilities.eos_token_ids)
                return scoring.score(self._server)
            completion = Completion(
                run,
                header=self._header,
                capabilities=self._capabilities,
                vetted_schemas=self._vetted_schemas,
                emit=lambda output: self._post(run, output),
                on_progress=self._say_progress,
            )
            return completion.generate(self._server)
        except Refused as refusal:
            return Failure(run.request.request_id, refusal.kind, str(refusal))
        except Exception:
            logger.exception("llama.cpp failed at a request")
            return Failure(run.request.request_id, FailureKind.INTERNAL, "the engine failed at this request")


def create(model: str, arguments: list[str]) -> LlamaCppEngine:
    """The engine for this GGUF file, from everything that stood after `--`."""
    defaults = LlamaCppOptions()
    parser = OptionParser(prog="--engine llamacpp --", description="The llama.cpp engine's options.")
    parser.add_argument("--n-parallel", type=int, default=defaults.n_parallel, help="requests that generate at a time")
    parser.add_argument("--max-model-len", type=int, default=defaults.max_model_len, help="tokens of a request")
    parser.add_argument("--threads", type=int, default=defaults.threads, help="threads that compute")
    parser.add_argument("--batch-tokens", type=int, default=defaults.batch_tokens, help="prompt tokens a step")
    parser.add_argument("--max-waiting", type=int, default=defaults.max_waiting, help="requests that may wait")
    parser.add_argument("--default-temperature", type=float, help="for requests that set none")
    parser.add_argument("--default-top-p", type=float, help="for requests that set none")
    parser.add_argument("--gpu-layers", type=int, default=defaults.gpu_layers, help="layers on the GPU; -1 = all")
    parser.add_argument("--verbosity", type=int, choices=range(4), default=defaults.verbosity, help="llama.cpp's log")
    return LlamaCppEngine(Path(model), options=LlamaCppOptions(**vars(parser.parse_args(arguments))))
