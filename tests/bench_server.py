"""A small server for the benchmarks' client, which cuts its bytes at awkward places and fails as it is told."""

import asyncio
import json
import re
import threading
from typing import Any

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding:  chunked\r\n\r\n"
)


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def chat_event(**delta: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%X;ext=1\r\n%s\r\n" % (len(part), part) for part in parts)


def whole(status: int, document: object) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def chat_stream(output_tokens: int, prompt_tokens: int, *, done: bool = True) -> bytes:
    """A role, the tokens in several events a chunk and several chunks an event, a separate end, usage, [DONE]."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
    body = b"".join(
        [
            chat_event(role="assistant", content=""),
            *(chat_event(content=f'to"{number}') for number in range(output_tokens)),
            event({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "length"}]}),
            event({"choices": [], "usage": usage}),
            b"data: [DONE]\n\n" if done else b"",
        ]
    )
    pieces = [body[at : at + 33] for at in range(0, len(body), 33)]
    return STREAM_HEAD + chunked(*pieces) + b"0\r\nTrailer: x\r\n\r\n"


class FakeServer(asyncio.Protocol):
    """Speaks just enough; which of its faults a chat request meets is told by its model's name."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, found, body = self._held.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        if not found or len(body) < (int(length[1]) if length else 0):
            return
        self._held = b""
        path = head.split(b" ")[1].decode()
        document = json.loads(body) if body else {}
        self._server.requests.append((path, document))
        answer = self._answer(path, document)
        for at in range(0, len(answer), 50):
            self._transport.write(answer[at : at + 50])
        if document.get("model") == "cut":
            self._transport.close()

    def _answer(self, path: str, document: dict[str, Any]) -> bytes:
        match path:
            case "/v1/models":
                return whole(200, {"data": [{"id": "sim"}]})
            case "/tokenize":
                return whole(200, {"count": self._count(document)})
            case "/pool":
                return whole(200, {"processes": [{"role": "api", "slot": 0, "pid": self._server.pid}], "engine": None})
            case "/v1/embeddings":
                usage = {"prompt_tokens": len(document["input"].split())}
                return whole(200, {"data": [{"embedding": [0.5, 0.25]}], "usage": usage})
            case "/v1/chat/completions":
                return self._chat(document)
        return whole(404, {"error": {"message": "no such route"}})

    def _count(self, document: dict[str, Any]) -> int:
        text = document["messages"][0]["content"] if "messages" in document else document["prompt"]
        return len(text.split()) + (3 if "messages" in document else 0)

    def _chat(self, document: dict[str, Any]) -> bytes:
        asked, counted = document["max_tokens"], self._count(document)
        match document["model"]:
            case "overloaded":
                return whole(503, {"error": {"message": "the | queue is full"}})
            case "short":
                return chat_stream(asked - 1, counted)
            case "unfinished":
                return chat_stream(asked, counted, done=False)
            case "cut":
                return chat_stream(asked, counted)[:-40]
            case "broken":
                return STREAM_HEAD + chunked(event({"error": {"message": "died"}}), b"data: [DONE]\n\n") + b"0\r\n\r\n"
            case "garbage":
                return b"SSH-2.0-OpenSSH\r\n\r\n"
        if not document["stream"]:
            return whole(200, {"choices": [], "usage": {"prompt_tokens": counted, "completion_tokens": asked}})
        return chat_stream(asked, counted)


class Server:
    """A FakeServer in a thread, and what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.url = ""
        self.pid: int | None = None
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> "Server":
        self._thread.start()
        assert self._is_up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await self._loop.create_server(lambda: FakeServer(self), "127.0.0.1", 0)
        async with server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._is_up.set()
            await self._stop.wait()
