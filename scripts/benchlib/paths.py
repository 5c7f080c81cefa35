"""The pieces of a request's way beside their alternatives: routing, responses, JSON, the wire's ids, the socket."""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from apiserver.http.call import Call
from apiserver.http.sse import encode as encode_event
from apiserver.protocol.exchange import Chunk
from benchlib.arguments import add_outcome
from benchlib.program import run
from benchlib.report import table
from engine_bridge import wire
from engine_bridge.transport import Channel, dealer, make_context, router

_BODY = b'{"object":"list","data":[]}'
_HEAD = b'{"id":"chatcmpl-000000000000000000000000","object":"chat.completion.chunk","created":1,"model":"m"'
_TOKENS = 32

Once = Callable[[], Awaitable[None]]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench_paths", description=__doc__)
    add_outcome(parser, repeat=5, plots=False)
    return run("bench_paths", parser.parse_args(arguments), _measure, render=_render)


def _render(document: dict[str, Any]) -> str:
    rows = [[row["what"], row["how"], f"{row['us']:.2f}"] for row in document["rows"]]
    return table(["what", "how", "CPU µs"], rows)


async def _measure(options: argparse.Namespace) -> dict[str, Any]:
    context = make_context()
    directory = tempfile.TemporaryDirectory()
    wires = _Wires(context, Path(directory.name))
    cases: list[tuple[str, str, int, Once]] = [
        ("a request", "raw ASGI", 2000, lambda: _call(_raw_app)),
        ("a request", "starlette's route, our Call", 2000, lambda: _call(_OURS)),
        ("a request", "starlette's route and JSONResponse", 2000, lambda: _call(_STARLETTE)),
        (f"a stream of {_TOKENS} chunks", "our Call", 300, lambda: _call(_stream_app)),
        (f"a stream of {_TOKENS} chunks", "starlette's StreamingResponse", 300, lambda: _call(_STARLETTE_STREAM)),
        ("a chunk's JSON", "spliced from bytes made once", 20_000, _spliced),
        ("a chunk's JSON", "msgspec, whole document", 20_000, _whole),
        ("a chunk's JSON", "json.dumps", 20_000, _dumps),
        ("36,000 ids to the core", "packed int32, as an engine takes them", 50, lambda: _ids(unpack=False)),
        ("36,000 ids to the core", "packed int32, made a list again", 50, lambda: _ids(unpack=True)),
        ("36,000 ids to the core", "msgpack list", 50, _listed_ids),
        ("a round trip of the wire", "socket with add_reader", 1000, wires.reader),
        ("a round trip of the wire", "zmq.asyncio", 1000, wires.asyncio),
    ]
    times: dict[int, list[float]] = {}
    for _ in range(options.repeat):
        for number, (_, _, count, once) in enumerate(cases):
            times.setdefault(number, []).append(await _time(once, count))
    wires.close()
    directory.cleanup()
    rows = [
        {"what": what, "how": how, "us": 1e6 * median(times[number])} for number, (what, how, _, _) in enumerate(cases)
    ]
    return {"rows": rows}


async def _time(once: Once, count: int) -> float:
    await once()
    began = time.process_time()
    for _ in range(count):
        await once()
    return (time.process_time() - began) / count


# ---- requests ------------------------------------------------------------------------------------------------------


async def _call(app: Any) -> None:
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()  # as a connection that stays: nobody leaves
        sent = True
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        pass

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/embeddings",
        "raw_path": b"/v1/embeddings",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"2")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "scheme": "http",
        "state": {},
    }
    await app(scope, receive, send)


async def _raw_app(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(_BODY)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _BODY})


class _Ours:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        call = Call(scope, receive, send, 1 << 20)
        await call.body()
        await call.respond(200, _BODY)


async def _starlette_endpoint(request: Request) -> Response:
    await request.body()
    return JSONResponse({"object": "list", "data": []})


async def _stream_app(scope: Any, receive: Any, send: Any) -> None:
    call = Call(scope, receive, send, 1 << 20)
    await call.body()
    await call.start_stream()
    for _ in range(_TOKENS):
        await call.write(b"data: {}\n\n")
    await call.end_stream()


async def _starlette_stream(request: Request) -> Response:
    await request.body()

    async def chunks() -> Any:
        for _ in range(_TOKENS):
            yield b"data: {}\n\n"

    return StreamingResponse(chunks(), media_type="text/event-stream")


_OTHER_ROUTES = [Route(f"/other/{number}", _starlette_endpoint, methods=["POST"]) for number in range(5)]
_OURS = Starlette(routes=[*_OTHER_ROUTES, Route("/v1/embeddings", _Ours(), methods=["POST"])])
_STARLETTE = Starlette(routes=[*_OTHER_ROUTES, Route("/v1/embeddings", _starlette_endpoint, methods=["POST"])])
_STARLETTE_STREAM = Starlette(routes=[*_OTHER_ROUTES, Route("/v1/embeddings", _starlette_stream, methods=["POST"])])


# ---- JSON ----------------------------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode


async def _spliced() -> None:
    head = _HEAD + b',"choices":[{"index":0,"delta":{"content":'
    raw = msgspec.Raw(head + _encode(" word") + b'},"logprobs":null,"finish_reason":null}]}')
    encode_event(Chunk(raw))


def _document() -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}
    return {
        "id": "chatcmpl-000000000000000000000000",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
    }


async def _whole() -> None:
    encode_event(Chunk(_document()))


async def _dumps() -> None:
    _ = b"data: " + json.dumps(_document(), ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


# ---- the wire ------------------------------------------------------------------------------------------------------

_LONG = [number * 7919 % 151_643 for number in range(36_000)]


async def _ids(*, unpack: bool) -> None:
    sent = wire.encode([wire.Embed(1, wire.pack_ids(_LONG))])
    message = wire.decode_to_core(sent)[0]
    assert isinstance(message, wire.Embed)
    if unpack:
        wire.unpack_ids(message.prompt_token_ids)


async def _listed_ids() -> None:
    msgspec.msgpack.decode(msgspec.msgpack.encode(_LONG), type=list[int])


class _Wires:
    """A DEALER and a ROUTER that echoes, once on Channels and once on zmq.asyncio."""

    def __init__(self, context: Any, directory: Path) -> None:
        address = f"ipc://{directory}/reader"
        self._server = Channel(router(context, address), lambda frames: self._server.send(frames))
        self._client = Channel(dealer(context, address, b"a"), self._on_answer)
        self._answer: asyncio.Future[None] | None = None
        self._context = zmq.asyncio.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(f"ipc://{directory}/asyncio")
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.connect(f"ipc://{directory}/asyncio")
        self._echo = asyncio.create_task(self._serve())

    def _on_answer(self, frames: list[bytes]) -> None:
        if self._answer is not None:
            self._answer.set_result(None)

    async def reader(self) -> None:
        self._answer = asyncio.get_running_loop().create_future()
        self._client.send([b"message"])
        await self._answer

    async def _serve(self) -> None:
        while True:
            await self._router.send_multipart(await self._router.recv_multipart())

    async def asyncio(self) -> None:
        await self._dealer.send_multipart([b"message"])
        await self._dealer.recv_multipart()

    def close(self) -> None:
        self._echo.cancel()
        self._client.close()
        self._server.close()
        self._dealer.close(linger=0)
        self._router.close(linger=0)
