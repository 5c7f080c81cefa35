"""The running SGLang: requests in, answers out, what it says of itself.

Each request is a task over one async generator of SGLang's TokenizerManager, which checks it, waits where generation is
paused, finds its LoRA adapter and sends it. Cancelling the task is what aborts it (SGLang's own abort misses a request
that has not left for the scheduler yet). What a step has made does not come out of the generators: it is taken from the
scheduler's message. The ids that SGLang gets are ours, all of one length: it matches aborted ids by their beginnings.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine_bridge.engines import Answer, Emit, EngineError, Key
from engine_bridge.engines import sglang_api as api
from engine_bridge.engines.sglang_admin import Admin
from engine_bridge.engines.sglang_answers import Answers, Chunk, chunk_of, failure
from engine_bridge.engines.sglang_capabilities import capabilities_of
from engine_bridge.engines.sglang_request import Refused, SamplingParamsClass, make_input
from engine_bridge.status import Figures
from engine_bridge.wire import (
    Capabilities,
    Embed,
    Embedding,
    Failure,
    FailureKind,
    Generate,
    Output,
    Request,
    SamplingParams,
    pack_ids,
)

_WARM_UP_TOKENS = 4
_LINGER_MS = 500

log = logging.getLogger("engine_bridge.sglang")


class Session:
    """Made on the loop, for a loaded Engine. `on_failure` is called if SGLang's answers can no longer be received."""

    def __init__(self, engine: Any, emit: Emit, on_failure: Callable[[str], None]) -> None:
        self._engine = engine
        self._manager: Any = engine.tokenizer_manager
        self._manager.sampling_params_class = SamplingParamsClass
        self._emit = emit
        self._live: dict[Key, asyncio.Task[None]] = {}
        self._begun: set[Key] = set()  # have given something
        self._runs: dict[str, _Run] = {}  # by SGLang's id
        self._outbox: list[tuple[Key, Answer]] = []
        self._last_id = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._throughput = _Throughput()
        self._loop = asyncio.get_running_loop()
        # SGLang would start this with the first request, and with it its handlers of SIGTERM and SIGQUIT.
        self._manager.event_loop = self._loop
        self._receiving = asyncio.create_task(self._receive(on_failure))
        self.admin = Admin(self._manager, has_lora=bool(engine.server_args.enable_lora))
        self._capabilities = capabilities_of(engine, self.admin.verbs)

    async def _receive(self, on_failure: Callable[[str], None]) -> None:
        manager = self._manager
        try:
            while True:
                received = await api.async_sock_recv(manager.recv_from_detokenizer)
                if type(received) is api.io.BatchTokenIDOutput:
                    self._take_step(received)
                elif type(received) is api.io.BatchEmbeddingOutput:
                    await manager._handle_batch_output(received)
                else:
                    manager._result_dispatcher(received)
        except Exception as error:
            log.exception("SGLang's answers cannot be received any more")
            on_failure(f"SGLang's answers cannot be received any more: {error}")

    def _take_step(self, step: Any) -> None:
        """A step's tokens go straight to their requests: SGLang would make a dictionary and wake a task for each."""
        states, runs = self._manager.rid_to_state, self._runs
        for index, rid in enumerate(step.rids):
            state, run = states.get(rid), runs.get(rid)
            if state is None:
                continue  # its end has crossed this step
            reason = step.finished_reasons[index]
            if run is not None:
                self._take_share(run, state, step, index)
            if reason is not None:
                state.finished = True
                del states[rid]
                self._manager._release_lora_once(state)
                state.out_list.append({"output_ids": (), "meta_info": {"finish_reason": None}})
                state.event.set()  # its generator ends by this
            elif run is not None and run.answers.ended:
                run.task.cancel()  # by a stop token of ours: SGLang aborts what it goes on with

    def _take_share(self, run: "_Run", state: Any, step: Any, index: int) -> None:
        """A share that cannot be read ends its own request; the step's others, and SGLang, go on."""
        try:
            self._take(run, chunk_of(self._manager, state, step, index))
        except Exception:
            log.exception("SGLang's answer to a request cannot be read")
            run.answers.ended = True
            run.post(Failure(run.answers.request_id, FailureKind.INTERNAL, "the engine failed at this request"))

    async def warm_up(self) -> Capabilities:
        """The capabilities, after a first request (a vector's size is known by it). Raises EngineError."""
        prompt = pack_ids((min(5, self._capabilities.vocab_size - 1),))
        request: Request
        if self._capabilities.task == "embed":
            request = Embed(0, prompt)
        else:
            request = Generate(0, prompt, SamplingParams(max_tokens=_WARM_UP_TOKENS, temperature=0.0, ignore_eos=True))
        answers: list[Answer] = []
        await asyncio.gather(asyncio.create_task(self._run(request, answers.append)), return_exceptions=True)
        end = answers[-1]
        if isinstance(end, Failure):
            raise EngineError(f"SGLang cannot serve its first request: {end.message}")
        if isinstance(end, Embedding):
            dimensions = len(end.vector) // 4
            self._capabilities = msgspec.structs.replace(self._capabilities, dimensions=dimensions)
        self._prompt_tokens = self._cached_tokens = 0
        # A full collection looks at all that SGLang and torch have imported, here and in the schedulers: half a second
        # in which nobody gets a token.
        await self._manager.freeze_gc()
        return self._capabilities

    # ---- requests ----

    def submit(self, requests: Sequence[tuple[Key, Request]]) -> None:
        for key, request in requests:
            self._live[key] = asyncio.create_task(self._serve(key, request))

    def abort(self, keys: Sequence[Key]) -> None:
        for key in keys:
            task = self._live.pop(key, None)
            if task is not None:
                task.cancel()
                self._begun.discard(key)

    async def _serve(self, key: Key, request: Request) -> None:
        def post(answer: Answer) -> None:
            self._post(key, answer)

        await self._run(request, post)

    async def _run(self, request: Request, post: Callable[[Answer], None]) -> None:
        """From the request to its one end; when this returns or is cancelled, SGLang has forgotten it or is told to."""
        request_id = request.request_id
        self._last_id += 1
        rid = f"{self._last_id:016x}"
        try:
            asked = make_input(request, rid, self._capabilities)
            run = self._runs[rid] = _Run(Answers(request), post, self._task())
            # Tokens come by `_take_step`, which also ends this; vectors, refusals and aborts come here.
            async with contextlib.aclosing(self._manager.generate_request(asked, None)) as chunks:
                async for chunk in chunks:
                    self._take(run, chunk)
                    if run.answers.ended:
                        return
        except Refused as refusal:
            post(Failure(request_id, refusal.kind, str(refusal)))
        except ValueError as error:
            post(Failure(request_id, FailureKind.INVALID, str(error)))
        except api.HttpException as error:
            post(failure(request_id, error.status_code, str(error.detail)))
        except Exception:
            log.exception("SGLang failed at a request")
            post(Failure(request_id, FailureKind.INTERNAL, "the engine failed at this request"))
        finally:
            self._runs.pop(rid, None)

    @staticmethod
    def _task() -> "asyncio.Task[None]":
        task = asyncio.current_task()
        assert task is not None
        return task

    def _take(self, run: "_Run", chunk: Chunk) -> None:
        if run.answers.ended:
            return  # by a stop token of ours; its abort is on the way
        if not run.answers.begun:
            meta = chunk["meta_info"]
            self._prompt_tokens += meta.get("prompt_tokens", 0)
            self._cached_tokens += meta.get("cached_tokens", 0)
        self._throughput.tokens += len(chunk.get("output_ids", ()))
        run.post(run.answers.take(chunk))

    def _post(self, key: Key, answer: Answer) -> None:
        """All that comes in one turn of the loop goes out together."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append((key, answer))
        self._begun.add(key)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        answers = [entry for entry in outbox if entry[0] in self._live]  # an abort may have come in between
        for key, answer in answers:
            if type(answer) is not Output or answer.finish_reason is not None:
                self._live.pop(key)
                self._begun.discard(key)
        if answers:
            self._emit(answers)

    # ---- what it says of itself ----

    def counts(self) -> tuple[int, int]:
        """Aborted requests count until SGLang has let go of them."""
        held = max(len(self._live), len(self._manager.rid_to_state))
        if not held:
            return 0, 0
        queued = sum(load.num_waiting_reqs for load in self._loads())
        waiting = min(queued, len(self._live) - len(self._begun))
        return held - waiting, waiting

    def figures(self, stage: str) -> Figures:
        loads = self._loads()
        return Figures(
            stage=stage,
            tokens_used=sum(load.num_used_tokens for load in loads),
            token_capacity=sum(load.max_total_num_tokens for load in loads),
            tokens_per_second=self._throughput.per_second(self._loop.time()),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
        )

    def _loads(self) -> list[Any]:
        """What each scheduler has last written into shared memory."""
        return self._manager.load_snapshot_reader.read_all()

    async def close(self, *, is_gone: bool) -> None:
        """Stop all tasks, and ask the schedulers to end (they free a GPU's memory before they do)."""
        tasks = [self._receiving, *self._live.values()]
        self.abort(list(self._live))
        self._receiving.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not is_gone:
            self._manager._dispatch_to_scheduler(api.io.ShutdownReq())
        linger = 0 if is_gone else _LINGER_MS
        for socket in (self._manager.recv_from_detokenizer, self._manager.send_to_scheduler, self._engine.send_to_rpc):
            socket.close(linger)
        for socket in (self._manager.send_to_scheduler, self._engine.send_to_rpc):  # the first two share a context
            await asyncio.to_thread(socket.context.term)


@dataclass(frozen=True, slots=True)
class _Run:
    """One request in SGLang."""

    answers: Answers
    post: Callable[[Answer], None]
    task: "asyncio.Task[None]"


class _Throughput:
    """Tokens per second, over the last second or a little more. (SGLang's own is 0 unless it exports metrics.)"""

    def __init__(self) -> None:
        self.tokens = 0
        self._before = 0
        self._since = 0.0
        self._rate = 0

    def per_second(self, now: float) -> int:
        elapsed = now - self._since
        if elapsed >= 1.0:
            self._rate = round((self.tokens - self._before) / elapsed)
            self._before, self._since = self.tokens, now
        return self._rate
