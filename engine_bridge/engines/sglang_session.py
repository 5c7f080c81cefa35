"""The running SGLang: requests in, answers out, what it says of itself.

Each request is a task over one async generator of SGLang's TokenizerManager; cancelling the task is what aborts it
(SGLang's own abort misses a request that has not left for the scheduler yet). The ids that SGLang gets are ours and all
of one length: it matches aborted ids by their beginnings.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from engine_bridge.engines import Answer, Emit, EngineError, Key
from engine_bridge.engines import sglang_api as api
from engine_bridge.engines.sglang_admin import Admin
from engine_bridge.engines.sglang_answers import Answers, failure
from engine_bridge.engines.sglang_arguments import VERSION
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

_MOST_LOGPROBS = 20
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
        self._capabilities = self._ask()

    async def _receive(self, on_failure: Callable[[str], None]) -> None:
        try:
            await self._manager.handle_loop()
        except Exception as error:
            log.exception("SGLang's answers cannot be received any more")
            on_failure(f"SGLang's answers cannot be received any more: {error}")

    def _ask(self) -> Capabilities:
        """What is known without a request; a vector's size is not."""
        config, args = self._manager.model_config, self._engine.server_args
        (info, *_) = self._engine._scheduler_init_result.scheduler_infos
        generates = bool(config.is_generation)
        has_grammar = generates and bool(info.get("has_grammar"))
        defaults: dict[str, Any] = config.get_default_sampling_params() if generates else {}
        longest = int(info["max_req_input_len"])  # of these SGLang takes prompts one shorter
        return Capabilities(
            task="generate" if generates else "embed",
            max_model_len=longest if generates else longest - 1,
            vocab_size=int(config.vocab_size),
            eos_token_ids=tuple(sorted(config.hf_eos_token_id or ())),
            dimensions=0 if generates else int(config.hidden_size),
            matryoshka=bool(config.is_matryoshka),
            logprobs=_MOST_LOGPROBS if generates else -1,
            prompt_logprobs=generates,
            min_tokens=generates and bool(info.get("has_tokenizer")),
            logit_bias=generates,
            json_schema=has_grammar,
            regex=has_grammar,
            grammar=has_grammar,
            lora=bool(args.enable_lora),
            engine=f"sglang {VERSION}",
            temperature=defaults.get("temperature"),
            top_p=defaults.get("top_p"),
            top_k=defaults.get("top_k"),
            score=generates,
            structural_tag=has_grammar,
            priority=bool(args.enable_priority_scheduling),
            admin=self.admin.verbs,
            model_type=str(getattr(config.hf_config, "model_type", "")),
            architectures=tuple(config.hf_config.architectures or ()),
            seed=generates and bool(args.enable_deterministic_inference),
        )

    async def warm_up(self) -> Capabilities:
        """The capabilities, after a first request (a vector's size is known by it). Raises EngineError."""
        prompt = pack_ids((min(5, self._capabilities.vocab_size - 1),))
        request: Request
        if self._capabilities.task == "embed":
            request = Embed(0, prompt)
        else:
            request = Generate(0, prompt, SamplingParams(max_tokens=_WARM_UP_TOKENS, temperature=0.0, ignore_eos=True))
        answers: list[Answer] = []
        await self._run(request, answers.append)
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
        try:
            asked = make_input(request, f"{self._last_id:016x}", self._capabilities)
            answers = Answers(request)
            async with contextlib.aclosing(self._manager.generate_request(asked, None)) as chunks:
                async for chunk in chunks:
                    if not answers.begun:
                        self._count(chunk["meta_info"])
                    self._throughput.tokens += len(chunk.get("output_ids", ()))
                    post(answers.take(chunk))
                    if answers.ended:
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

    def _count(self, meta: dict[str, Any]) -> None:
        self._prompt_tokens += meta.get("prompt_tokens", 0)
        self._cached_tokens += meta.get("cached_tokens", 0)

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
