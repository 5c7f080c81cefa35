"""An engine in this process: what it does without a pool around it.

The text goes through the pool's own tokenizer and the engine's own interface (`engine_bridge.engines`), in one process:
no HTTP, no JSON, no socket. What a request takes longer online is what the pool adds.
"""

import asyncio
import importlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from apiserver import models
from apiserver.tokenizer.byte import byte_tokenizer_json
from apiserver.tokenizer.hf import HfTokenizer
from apiserver.tokenizer.source import TokenizerError, prepare
from benchlib.errors import OfflineError
from benchlib.pool import PoolSpec, serve_flags
from engine_bridge import wire
from engine_bridge.engines import Answer, Engine, EngineError, Key

if TYPE_CHECKING:
    from apiserver.tokenizer import Encoder

_ME = b"offline"


@dataclass(slots=True)
class _Waiting:
    """One request on its way: what it has got so far, and who waits for its end."""

    end: asyncio.Future[wire.Failure | None]
    output_token_ids: list[int]


class OfflineEngine:
    """A loaded engine with its tokenizer. To be used within `running`."""

    def __init__(self, engine: Engine, tokenizer: HfTokenizer, encoder: "Encoder") -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._waiting: dict[Key, _Waiting] = {}
        self._last_id = 0
        self.capabilities = wire.Capabilities(task="", max_model_len=0, vocab_size=0)

    async def start(self) -> None:
        self.capabilities = await self._engine.start(self._emit)

    async def close(self) -> None:
        await self._engine.close()

    @property
    def embeds(self) -> bool:
        return self.capabilities.task == "embed"

    @property
    def encoder_name(self) -> str:
        return self._encoder.name

    def count(self, text: str) -> int:
        """How many tokens the text has, special tokens included."""
        return len(self._encoder.encode(text, add_special_tokens=True))

    async def one(self, text: str, *, output_tokens: int) -> None:
        """One text from its characters to its vector, or to the text that follows it. Raises OfflineError."""
        await self._finish([self._submit([text], output_tokens)[0]])

    async def all(self, texts: Sequence[str], *, output_tokens: int) -> None:
        """All of them handed to the engine at once, as an offline library does."""
        await self._finish(self._submit(texts, output_tokens))

    def _submit(self, texts: Sequence[str], output_tokens: int) -> list[_Waiting]:
        loop = asyncio.get_running_loop()
        requests = [self._request(text, output_tokens) for text in texts]
        waiting = [_Waiting(loop.create_future(), []) for _ in requests]
        keys = [(_ME, request.request_id) for request in requests]
        self._waiting.update(zip(keys, waiting, strict=True))
        self._engine.submit(list(zip(keys, requests, strict=True)))
        return waiting

    def _request(self, text: str, output_tokens: int) -> wire.Request:
        self._last_id += 1
        packed = wire.pack_ids(self._encoder.encode(text, add_special_tokens=True))
        if self.embeds:
            return wire.Embed(self._last_id, packed)
        params = wire.SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
        return wire.Generate(self._last_id, packed, params)

    async def _finish(self, waiting: Sequence[_Waiting]) -> None:
        for request in waiting:
            failure = await request.end
            if failure is not None:
                raise OfflineError(f"the engine failed at a request: {failure.message}")
            if not self.embeds:
                self._tokenizer.decode(request.output_token_ids, skip_special_tokens=True)

    def _emit(self, answers: Sequence[tuple[Key, Answer]]) -> None:
        for key, answer in answers:
            waiting = self._waiting[key]
            failure = None
            if type(answer) is wire.Output:
                waiting.output_token_ids += wire.unpack_ids(answer.new_token_ids)
                if answer.finish_reason is None:
                    continue
            elif type(answer) is wire.Failure:
                failure = answer
            del self._waiting[key]
            waiting.end.set_result(failure)


@asynccontextmanager
async def running(spec: PoolSpec) -> AsyncGenerator[OfflineEngine]:
    """The engine that a pool of this spec would have, here. Raises OfflineError."""
    try:
        name, path, source = _resolve(spec)
        if source is None:
            text, eos_token_ids = byte_tokenizer_json(), ()
        else:
            files = prepare(source, models.cache_root() / "tokenizers")
            text, eos_token_ids = files.tokenizer_json.read_text(encoding="utf-8"), files.eos_token_ids
        tokenizer = HfTokenizer(text)
        arguments = [*_arguments(name, tokenizer, eos_token_ids), *spec.engine_arguments]
        engine = importlib.import_module(f"engine_bridge.engines.{name}").create(path, arguments)
        offline = OfflineEngine(engine, tokenizer, _encoder(text, tokenizer))
        await offline.start()
    except (models.ModelError, TokenizerError, EngineError, ImportError) as error:
        raise OfflineError(f"{spec.model} offline: {error}") from error
    try:
        yield offline
    finally:
        await offline.close()


def _resolve(spec: PoolSpec) -> tuple[str, str, str | None]:
    """Engine, model and tokenizer source (None: one token a byte), as `apiserver serve` finds them."""
    own = None if spec.tokenizer is None else str(spec.tokenizer)
    if spec.model == "sim":
        return "sim", "sim", own
    model = models.resolve(spec.model)
    if model.demo is not None:
        models.fetch(model.demo.name)
    return model.engine, model.path, own or model.tokenizer


def _arguments(engine: str, tokenizer: HfTokenizer, eos_token_ids: Sequence[int]) -> list[str]:
    """What the pool says to its engine by itself."""
    if engine != "sim":
        return []
    eos = ["--eos-token-id", str(eos_token_ids[0])] if eos_token_ids else []
    return ["--vocab-size", str(tokenizer.vocab_size), *eos]


def _encoder(tokenizer_json: str, tokenizer: HfTokenizer) -> "Encoder":
    """The one that the pool's `--tokenizer-backend auto` takes; `tokenizers` where the pool has no such choice."""
    if not serve_flags().has("--tokenizer-backend"):
        return tokenizer
    try:
        from apiserver.tokenizer.fast import FastEncoder
        from apiserver.tokenizer.probe import disagreement
    except ImportError:
        return tokenizer
    return tokenizer if disagreement(tokenizer_json) is not None else FastEncoder(tokenizer_json)
