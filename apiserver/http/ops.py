"""The endpoints that ask no engine: health, readiness, models, metrics, the pool."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import psutil

from apiserver import __version__
from apiserver.board import Cell, KeyCell, PoolCell, Slot, WorkerState, key_cell
from apiserver.card import Card
from apiserver.errors import NotFound
from apiserver.http.call import Call
from apiserver.http.service import Service
from apiserver.metrics import Gauge
from apiserver.protocol import anthropic
from engine_bridge.status import EngineRow, Field

_encode = msgspec.json.Encoder().encode


class Ops:
    """One method an endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, call: Call) -> None:
        """200 if the engine serves, 503 (never 500: that would mean a bug) if not; the same from every worker."""
        await self._verdict(call, self._service.health())

    async def ready(self, call: Call) -> None:
        await self._verdict(call, self._service.readiness())

    async def live(self, call: Call) -> None:
        """This worker's loop turns: it just did."""
        await self._verdict(call, None)

    async def _verdict(self, call: Call, reason: str | None) -> None:
        if reason is None:
            await call.respond(200, b'{"status":"ok"}')
        else:
            stage = self._service.stage()
            document = {"status": reason, "stage": stage} if stage else {"status": reason}
            await call.respond(503, _encode(document), headers=(("retry-after", "1"),))

    async def hello(self, call: Call) -> None:
        """Somebody is here: what Claude Code asks before it connects, by HEAD and without a path of ours in mind."""
        await call.respond(200, b'{"status":"ok"}')

    async def version(self, call: Call) -> None:
        await call.respond(200, _encode({"version": __version__}))

    async def models(self, call: Call) -> None:
        card = self._service.card()
        if call.is_anthropic:
            await call.respond(200, _encode(anthropic.models_document(card, call.query)))
            return
        names = list(card.listed_names)
        document = {
            "object": "list",
            "data": [_model(card, name) for name in names],
            "has_more": False,
            "first_id": names[0],
            "last_id": names[-1],
        }
        await call.respond(200, _encode(document))

    async def model(self, call: Call) -> None:
        card = self._service.card()
        name = call.path_params["model"]
        if not name:
            raise NotFound("Which model? GET /v1/models lists them.", param="model", code="model_not_found")
        document = anthropic.model_document if call.is_anthropic else _model
        await call.respond(200, _encode(document(card, card.resolve(name))))

    async def metrics(self, call: Call) -> None:
        service = self._service
        slots = [slot.metrics for slot in service.board.used_slots]
        text = service.metrics.render(slots, list(self._gauges()))
        await call.respond(200, text, b"text/plain; version=1.0.0; charset=utf-8")

    def _gauges(self) -> Iterator[Gauge]:
        service = self._service
        row = service.engine_row
        slots = service.board.slots
        yield Gauge("num_requests_running", "Requests in the engine's batch.", (), [((), row.get(Field.RUNNING))])
        yield Gauge("num_requests_waiting", "Requests in the engine's queue.", (), [((), row.get(Field.WAITING))])
        capacity = row.get(Field.TOKEN_CAPACITY)
        if capacity:
            usage = row.get(Field.TOKENS_USED) / capacity
            yield Gauge("kv_cache_usage_perc", "Share of the key-value cache in use, 0 to 1.", (), [((), usage)])
            throughput = row.get(Field.TOKENS_PER_SECOND)
            yield Gauge("gen_throughput", "Tokens per second, by the engine's own count.", (), [((), throughput)])
        yield Gauge("engine_up", "1 if the engine serves.", (), [((), float(service.health() is None))])
        for name, text, cell, scale in (
            ("http_requests_active", "HTTP requests being answered.", Cell.IN_FLIGHT, 1.0),
            ("background_runs", "Responses that go on without their client.", Cell.BACKGROUND, 1.0),
            ("connections", "Open connections.", Cell.CONNECTIONS, 1.0),
            ("event_loop_lag_seconds", "How late the last timer of the loop was.", Cell.LOOP_LAG, 1e-9),
        ):
            yield Gauge(name, text, ("slot",), [((str(slot.number),), slot.get(cell) * scale) for slot in slots])
        up = [((str(slot.number),), float(slot.is_serving)) for slot in slots]
        yield Gauge("api_server_up", "1 if the slot has a serving API server.", ("slot",), up)
        yield from self._limit_gauges()
        deaths = service.board.get(PoolCell.WORKER_DEATHS)
        restarts = max(0, row.get(Field.EPOCH) - 1)
        yield Gauge("engine_restarts", "Engine cores that were started after one had died.", (), [((), restarts)])
        yield Gauge("api_server_deaths", "API servers that died and were replaced.", (), [((), deaths)])

    def _limit_gauges(self) -> Iterator[Gauge]:
        """What is counted only where there are limits, or keys."""
        service = self._service
        board = service.board
        if service.admission.limits_pool:
            for name, text, cell in (
                ("admitted_requests", "Requests in the engine or on their way to it.", Cell.ADMITTED),
                ("queued_requests", "Of those, the ones that the engine has not begun to answer.", Cell.QUEUED),
                ("queued_tokens", "The prompt tokens of those.", Cell.QUEUED_TOKENS),
            ):
                yield Gauge(name, text, (), [((), board.total(cell))])
        for name, text, cell, counts in (
            ("key_requests_active", "Requests being answered, by the name of their key.", KeyCell.IN_FLIGHT, False),
            ("key_requests", "Requests, by the name of their key.", KeyCell.REQUESTS, True),
            ("key_rejections", "Of those, the ones over a limit of the key.", KeyCell.REFUSED, True),
        ):
            samples = [
                ((key,), board.key_total(key_cell(number, cell))) for number, key in enumerate(service.key_names)
            ]
            if samples:
                yield Gauge(name, text, ("key",), samples, counts=counts)

    async def pool(self, call: Call) -> None:
        """Every process of the pool; psutil reads /proc, so it runs beside the loop."""
        document = await asyncio.to_thread(self._pool_document)
        await call.respond(200, _encode(document))

    def _pool_document(self) -> dict[str, Any]:
        service = self._service
        board, row = service.board, service.engine_row
        parent = psutil.Process().ppid()
        engine = {
            "state": row.state.name.lower(),
            "stage": service.stage(),
            "epoch": row.get(Field.EPOCH),
            "running": row.get(Field.RUNNING),
            "waiting": row.get(Field.WAITING),
            **figures_of(row),
            "requests": row.get(Field.REQUESTS),
            "output_tokens": row.get(Field.OUTPUT_TOKENS),
            "junk_messages": row.get(Field.JUNK),
            "seconds_since_heartbeat": round(row.seconds_since_beat, 3),
            **_usage_of(row.get(Field.PID)),
        }
        return {
            "state": service.readiness() or "ready",
            "answered_by": service.slot.number,
            "api_server_count": board.count,
            "tokenizer_backend": {"name": service.encoder, "reason": service.encoder_reason},
            "preprocess_order": service.preprocess_order,
            "api_server_deaths": board.get(PoolCell.WORKER_DEATHS),
            "uptime_seconds": round((time.monotonic_ns() - board.get(PoolCell.STARTED)) / 1e9, 1),
            "supervisor": {"role": "supervisor", **_usage_of(parent)},
            "processes": [_worker(slot) for slot in board.slots],
            "engine": {"role": "engine", **engine},
        }


def figures_of(row: EngineRow) -> dict[str, Any]:
    """What the engine says of itself; zeros where it does not tell. The names are SGLang's where it has one."""
    capacity = row.get(Field.TOKEN_CAPACITY)
    prompt_tokens, cached_tokens = row.get(Field.PROMPT_TOKENS), row.get(Field.CACHED_TOKENS)
    return {
        "num_running_reqs": row.get(Field.RUNNING),
        "num_waiting_reqs": row.get(Field.WAITING),
        "num_used_tokens": row.get(Field.TOKENS_USED),
        "max_total_num_tokens": capacity,
        "token_usage": round(row.get(Field.TOKENS_USED) / capacity, 4) if capacity else 0.0,
        "last_gen_throughput": row.get(Field.TOKENS_PER_SECOND),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "cache_hit_rate": round(cached_tokens / prompt_tokens, 4) if prompt_tokens else 0.0,
    }


def _worker(slot: Slot) -> dict[str, Any]:
    now = time.monotonic_ns()
    alive = slot.state not in (WorkerState.DEAD, WorkerState.EMPTY)
    return {
        "role": "api",
        "slot": slot.number,
        "state": slot.state.name.lower(),
        "generation": slot.get(Cell.GENERATION),
        "age_seconds": round((now - slot.get(Cell.STARTED)) / 1e9, 1) if alive else None,
        "connections": slot.get(Cell.CONNECTIONS),
        "in_flight": slot.get(Cell.IN_FLIGHT),
        "background": slot.get(Cell.BACKGROUND),
        "engine_requests": slot.get(Cell.ENGINE_REQUESTS),
        "requests": slot.get(Cell.REQUESTS),
        "loop_lag_ms": round(slot.get(Cell.LOOP_LAG) / 1e6, 3),
        **_usage_of(slot.get(Cell.PID)),
    }


def _usage_of(pid: int) -> dict[str, Any]:
    """CPU seconds and memory of a process; only its pid if it is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            cpu = process.cpu_times()
            memory = process.memory_full_info()
    except psutil.Error:
        return {"pid": pid}
    return {
        "pid": pid,
        "cpu_seconds": round(cpu.user + cpu.system, 3),
        "rss_bytes": memory.rss,
        "uss_bytes": memory.uss,
    }


def _model(card: Card, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": card.created,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(card.created)),
        "owned_by": "apiserver-pool",
        "root": card.root,
        "parent": None,
        "max_model_len": card.max_model_len,
        "permission": [],
    }
