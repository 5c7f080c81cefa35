"""What SGLang's gateways and load tools ask a server about itself, and the probe that goes through the engine."""

import asyncio
import time
from contextlib import aclosing
from typing import Any

import msgspec

from apiserver import __version__
from apiserver.card import Card
from apiserver.errors import ApiError
from apiserver.http.admin import seconds_asked
from apiserver.http.call import Call
from apiserver.http.ops import figures_of
from apiserver.http.service import Service
from apiserver.protocol.generate import WEIGHT_VERSION
from apiserver.requests import EmbedJob, GenerateJob, TokenIds
from apiserver.timings import Timings
from engine_bridge.client import AdminFailed, EngineUnavailable
from engine_bridge.status import Field
from engine_bridge.wire import SamplingParams

_encode = msgspec.json.Encoder().encode
_STATE_SECONDS = 2.0  # how long the engine may take to tell its state
_PROBE_SECONDS = 20.0  # SGLang's


class Info:
    """One method a route."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health_generate(self, call: Call) -> None:
        """One token (or one vector) through the engine: 200, or 503 after `?timeout=` seconds."""
        seconds = seconds_asked(call, _PROBE_SECONDS)
        reason = self._service.health()
        if reason is None:
            try:
                async with asyncio.timeout(seconds):
                    await self._probe(self._service.card())
            except TimeoutError:
                reason = f"the engine gave no answer within {seconds:g} s"
            except ApiError as error:
                reason = error.message
        if reason is None:
            await call.respond(200, b'{"status":"ok"}')
        else:
            await call.respond(503, _encode({"status": reason}), headers=(("retry-after", "1"),))

    async def _probe(self, card: Card) -> None:
        prompt = TokenIds([0], "probe")
        if card.capabilities.task == "embed":
            job = EmbedJob([prompt])
        else:
            job = GenerateJob([prompt], SamplingParams(temperature=0.0), max_tokens=1)
        async with aclosing(self._service.pipeline.run(job, card, Timings())) as events:
            async for _ in events:
                pass

    async def model_info(self, call: Call) -> None:
        card = self._service.card()
        await call.respond(200, _encode(_model_facts(card, self._service.model.tokenizer)))

    async def server_info(self, call: Call) -> None:
        """What this pool was told and chose, and what the engine tells of its state."""
        service = self._service
        card, model = service.card(), service.model
        state = await self._engine_state(card)
        document = {
            "version": __version__,
            **_model_facts(card, service.model.tokenizer),
            "served_model_names": list(card.names),
            "max_model_len": card.max_model_len,
            "vocab_size": card.vocab_size,
            "task": card.capabilities.task,
            "engine": card.capabilities.engine,
            "tokenizer_backend": {"name": service.encoder, "reason": service.encoder_reason},
            "preprocess_order": service.preprocess_order,
            "tool_call_parser": {"name": model.tool_call_parser, "reason": model.tool_call_parser_reason},
            "reasoning_parser": {"name": model.reasoning_parser, "reason": model.reasoning_parser_reason},
            "api_server_count": service.board.count,
            "dp_size": 1,
            "status": service.readiness() or "ready",
            "max_total_num_tokens": state.get("max_total_num_tokens"),
            "max_running_requests": state.get("max_running_requests"),
            "internal_states": [figures_of(service.engine_row) | state],
        }
        await call.respond(200, _encode(document))

    async def _engine_state(self, card: Card) -> dict[str, Any]:
        """Empty where the engine tells nothing of its inside, or does not answer in time."""
        if "internal_state" not in card.capabilities.admin:
            return {}
        try:
            async with asyncio.timeout(_STATE_SECONDS):
                return await self._service.client.admin("internal_state", {})
        except (TimeoutError, AdminFailed, EngineUnavailable):
            return {}

    async def loads(self, call: Call) -> None:
        """SGLang's `/v1/loads`: the one engine that this pool has, as the one rank."""
        state = await self._engine_state(self._service.card())
        running, waiting = self._counts()
        load: dict[str, Any] = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
            "num_total_reqs": running + waiting,
            "gen_throughput": state.get("last_gen_throughput"),
        }
        known = ("num_used_tokens", "max_total_num_tokens", "max_running_requests", "token_usage", "cache_hit_rate")
        load |= {name: state[name] for name in known if name in state}
        await call.respond(200, _encode({"timestamp": time.time(), "version": __version__, "loads": [load]}))

    async def get_load(self, call: Call) -> None:
        """What older gateways ask for."""
        state = await self._engine_state(self._service.card())
        running, waiting = self._counts()
        load = {
            "dp_rank": 0,
            "num_reqs": running + waiting,
            "num_waiting_reqs": waiting,
            "num_tokens": state.get("num_used_tokens", 0),
        }
        await call.respond(200, _encode([load]))

    def _counts(self) -> tuple[int, int]:
        row = self._service.engine_row
        return row.get(Field.RUNNING), row.get(Field.WAITING)


_GET = ("GET", "HEAD")
INFO_ROUTES = {
    "/health_generate": (Info.health_generate, _GET),
    "/model_info": (Info.model_info, _GET),
    "/get_model_info": (Info.model_info, _GET),
    "/server_info": (Info.server_info, _GET),
    "/get_server_info": (Info.server_info, _GET),
    "/v1/loads": (Info.loads, _GET),
    "/get_load": (Info.get_load, _GET),
}
"""Each path's handler, and the methods that it takes."""


def _model_facts(card: Card, tokenizer: str) -> dict[str, Any]:
    capabilities = card.capabilities
    return {
        "model_path": card.root,
        "tokenizer_path": tokenizer or card.root,
        "served_model_name": card.names[0],
        "is_generation": capabilities.task == "generate",
        "model_type": capabilities.model_type or None,
        "architectures": list(capabilities.architectures),
        "weight_version": WEIGHT_VERSION,
        "preferred_sampling_params": None,
        "reasoning_parser": card.reasoning_parser,
        "tool_call_parser": card.tool_call_parser,
        "has_image_understanding": False,
        "has_audio_understanding": False,
    }
