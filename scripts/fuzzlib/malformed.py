"""What is no HTTP, or nearly: request lines, headers, lengths, chunks, two requests in one, other protocols."""
# The tables hold many values a line (fmt: skip), and long ones: one a line is more than anybody reads.
# ruff: noqa: E501

import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from random import Random

from fuzzlib.bodies import Taken
from fuzzlib.inputs import Input, request
from fuzzlib.mutations import damaged

_METHODS = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "PATCH",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PRI",
    "get",
    "G\0T",
    "A" * 300,
    "",
]
_VERSIONS = [
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/2.0",
    "HTTP/0.9",
    "HTTP/9.9",
    "HTTP/1.1.1",
    "http/1.1",
    "HTTP/",
    "",
    "RTSP/1.0",
]
_TARGETS = [
    "*", "", " ", "//", "/../../etc/passwd", "/%00", "/%", "/%zz", "/%ff%fe", "/\xff", "/a b", "http://", "http://[::1", "?",
    "http://x:99999/health", "/v1/models/%2e%2e/%00", "/v1/models/" + "a" * 9000, "/v1/responses/%F0%9F%98%80", "/v1/responses//cancel",
    "/v1/responses/x?stream=maybe&starting_after=-1", "/v1/responses/x/input_items?limit=x&order=y&after=%ff", "/v1/models?limit=0",
    "/v1/models?limit=%00&after_id=%ff", "/flush_cache?timeout=-1", "/flush_cache?timeout=1e999", "/flush_cache?timeout=abc", "/health?" + "&" * 5000,
    "/health_generate?timeout=nan", "/metrics?" + "a" * 60_000, "/" + "a" * 70_000, "/" + "/" * 5000, "/v1/chat/completions#x", "/v1/models/sim;a=b",
]  # fmt: skip
_HEADERS: list[bytes] = [
    b"x", b": v", b" folded: v", b"x : v", b"x:\0", b"x: \xff\xfe", b"x\xe9: 1", b"x: a\rb", b"x: a\nb: c", b"\tx: 1",
    b"host: a\r\nhost: b", b"host:", b"connection: upgrade\r\nupgrade: websocket", b"connection: upgrade, HTTP2-Settings\r\nupgrade: h2c",
    b"expect: 100-continue", b"expect: nonsense", b"authorization: \xff", b"x-request-id: " + b"a" * 9000, b"x-request-id: \xff\r\nx-request-id: b",
    b"x-request-timeout-ms: -1", b"x-request-timeout-ms: 1e9", b"x-request-timeout-ms: " + b"9" * 400, b"x-request-timeout-ms:", b"accept: \0",
    b"anthropic-version: \xff", b"traceparent: 00-zz", b"x: " + b"y" * 20_000, b"x: " + b"y" * 200_000, b"\r\n".join([b"x: y"] * 300), b"content-type: text/plain",
    b"content-type: application/json; charset=utf-16", b"content-type:", b"content-type: \xff/json", b"content-encoding: gzip", b"content-encoding: br, gzip",
    b"content-encoding: " + b"gzip, " * 300, b"trailer: x", b"range: bytes=0-1", b"cookie: " + b"a=b; " * 1000, b"origin: null", b"transfer-encoding: gzip",
]  # fmt: skip
_LENGTHS = [
    b"-1",
    b"+5",
    b"0x5",
    b"5 5",
    b"5, 5",
    b"",
    b"1e3",
    b"5;",
    b"9" * 30,
    b"18446744073709551616",
    b"9223372036854775808",
    b"4294967296",
    b"\xff",
]
_CODINGS = [
    b"chunked",
    b"Chunked",
    b"chunked, chunked",
    b"gzip, chunked",
    b"identity",
    b"chunked;q=1",
    b"\x0bchunked",
    b"xchunked",
    b"chunked\0",
    b"",
]
_CHUNKS = [
    b"5",
    b"-5",
    b"FFFFFFFFFFFFFFFFF",
    b"ffffffff",
    b"0x5",
    b"5;" + b"a" * 20_000,
    b"5 ",
    b"",
    b"zz",
    b"5\n",
    b"00000000000000000005",
    b"\xff",
]
_TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(180))
_OTHERS = [
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"SSH-2.0-x\r\n", b"\0" * 64, b"*1\r\n$4\r\nPING\r\n", b"GET\r\n\r\n", b"\r\n" * 500, b"\n\n\n",
    b"GET / HTTP/1.1\n\n", b"HTTP/1.1 200 OK\r\n\r\n", b"\xff\xd8\xff\xe0", b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 3000, _TLS_HELLO,
    b"\x16\x03\x01", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\nGET / HTTP/1.1\r\n\r\n", b"\x0d\x0a\x0d\x0a\x00\x0d\x0aQUIT\x0a",
]  # fmt: skip


def _good(random: Random, routes: Sequence[Taken]) -> tuple[Taken, bytes]:
    route = random.choice(routes)
    return route, json.dumps(random.choice(route.good)).encode()


def request_line(random: Random, routes: Sequence[Taken]) -> Input:
    target = random.choice((*_TARGETS, random.choice(routes).path))
    line = " ".join((random.choice(_METHODS), target, random.choice(_VERSIONS)))
    data = line.encode("latin-1") + b"\r\nhost: x\r\nconnection: close\r\n\r\n"
    return Input("request line", "", (data,), must_answer=False, may_be=_unreached(target))


def _unreached(target: str) -> frozenset[int]:
    """The probe that may be told to give up at once."""
    return frozenset((503,)) if target.startswith("/health_generate") else frozenset()


def headers(random: Random, routes: Sequence[Taken]) -> Input:
    route, body = _good(random, routes)
    odd = tuple(random.sample(_HEADERS, random.choice((1, 1, 2, 3))))
    may_be = frozenset((504,)) if any(b"timeout" in one for one in odd) else frozenset[int]()
    data = request(route.method, route.path, body, odd)
    return Input("headers", route.path, (data,), must_answer=False, may_be=may_be)


def lengths(random: Random, routes: Sequence[Taken]) -> Input:
    """More than one length, one that is none, a coding that is none, and a second request behind it."""
    route, body = _good(random, routes)
    said = [b"content-length: " + random.choice((*_LENGTHS, b"%d" % len(body))) for _ in range(random.randrange(3))]
    said += [b"transfer-encoding: " + random.choice(_CODINGS) for _ in range(random.randrange(3))]
    random.shuffle(said)
    content = body if random.random() < 0.5 else _in_chunks(random, body)
    head = f"{route.method} {route.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode()
    data = head + b"".join(one + b"\r\n" for one in said) + b"\r\n" + content
    return Input("lengths", route.path, (data, request("GET", "/pool")), must_answer=False)


def chunks(random: Random, routes: Sequence[Taken]) -> Input:
    route, body = _good(random, routes)
    head = f"{route.method} {route.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    data = head.encode() + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    return Input("chunks", route.path, (data, _in_chunks(random, body)), must_answer=False)


def _in_chunks(random: Random, body: bytes) -> bytes:
    parts: list[bytes] = []
    while body:
        size = random.choice((1, 5, 100))
        part, body = body[:size], body[size:]
        said = random.choice(_CHUNKS) if random.random() < 0.05 else b"%x" % len(part)
        parts.append(said + b"\r\n" + part + (b"" if random.random() < 0.03 else b"\r\n"))
    return b"".join(parts) + random.choice(
        (b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nx: y\r\n\r\n", b"0\r\nx\r\n\r\n", b"0\r\n" + b"x: y\r\n" * 500, b"")
    )


def truncated(random: Random, routes: Sequence[Taken]) -> Input:
    """The client leaves in the middle of it."""
    route, body = _good(random, routes)
    data = request(route.method, route.path, body)
    return Input("truncated", route.path, (data[: random.randrange(len(data))],), must_answer=False)


def pipelined(random: Random, routes: Sequence[Taken]) -> Input:
    """Several at once, some of them wrong, the last one closes."""
    parts: list[bytes] = []
    for _ in range(random.choice((2, 3, 20))):
        route, body = _good(random, routes)
        part = request(route.method, route.path, body).replace(b"connection: close\r\n", b"")
        parts.append(damaged(random, part) if random.random() < 0.1 else part)
    data = b"".join(parts) + request("GET", "/version")
    cut = random.randrange(len(data))
    return Input("pipelined", "", (data[:cut], data[cut:]), must_answer=False)


def damaged_request(random: Random, routes: Sequence[Taken]) -> Input:
    route, body = _good(random, routes)
    data = request(route.method, route.path, body)
    for _ in range(random.choice((1, 2, 5))):
        data = damaged(random, data)
    return Input("damaged", "", (data,), must_answer=False)


def noise(random: Random, routes: Sequence[Taken]) -> Input:
    data = random.choice(_OTHERS) if random.random() < 0.5 else random.randbytes(random.choice((1, 20, 500, 20_000)))
    return Input("noise", "", (data,), must_answer=False)


def bodies(random: Random, routes: Sequence[Taken]) -> Input:
    """A proper request whose body is of another kind than it should be."""
    route, body = _good(random, routes)
    coding, content = random.choice((
        (b"", b""),
        (b"", b"\xef\xbb\xbf" + body),
        (b"", body.decode().encode("utf-16")),
        (b"", b"[" * random.choice((10, 1500, 300_000))),
        (b"", random.randbytes(300)),
        (b"", b'"' + b"a" * 3_000_000 + b'"'),
        (b"content-encoding: gzip", gzip.compress(body)),
        (b"content-encoding: deflate", zlib.compress(body)),
        (b"content-encoding: gzip", gzip.compress(b"[" * 20_000_000, 1)[:-9]),
        (b"content-encoding: zstd", b"\x28\xb5\x2f\xfd"),
        (b"content-type: application/x-www-form-urlencoded", b"a=b"),
        (b"content-type: multipart/form-data; boundary=x", b"--x\r\n\r\n--x--"),
    ))  # fmt: skip
    return Input("bodies", route.path, (request(route.method, route.path, content, (coding,) if coding else ()),))


KINDS: tuple[Callable[[Random, Sequence[Taken]], Input], ...] = (
    request_line, headers, lengths, chunks, truncated, pipelined, damaged_request, noise, bodies,
)  # fmt: skip
