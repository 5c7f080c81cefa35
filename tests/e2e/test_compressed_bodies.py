"""Bodies in gzip and deflate, where the operator takes them: inflated within bounds, whatever they turn out to be."""

import gzip
import json
import zlib
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.refusals import CHAT, HELLO, HELLO_BODY, assert_answers, assert_refused
from tests.pool import Pool, running_pool
from tests.raw_http import RawConnection, Reply, request

pytestmark = pytest.mark.e2e

LIMIT = 8_000_000


@pytest.fixture(scope="module")
def inflating_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    flags = ["--api-server-count", "1", "--allow-compressed-bodies", "--max-body-bytes", str(LIMIT)]
    flags += ["--max-model-len", "20000"]
    with running_pool(tmp_path_factory.mktemp("inflating") / "pool.log", *flags, engine=["--mode", "echo"]) as pool:
        yield pool


def sent(pool: Pool, body: bytes, coding: str) -> Reply:
    """The reply; the same connection serves on."""
    with RawConnection(pool.url) as connection:
        connection.send(request("POST", CHAT, body, content_encoding=coding))
        reply = connection.reply()
        if reply.headers.get("connection") != ["close"]:
            assert_answers(connection)
        return reply


def raw_deflate(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(HELLO_BODY)),
        ("x-gzip", gzip.compress(HELLO_BODY)),
        (" GZip ", gzip.compress(HELLO_BODY)),
        ("deflate", zlib.compress(HELLO_BODY)),
        ("identity", HELLO_BODY),
        ("", HELLO_BODY),
    ],
    ids=lambda value: value if isinstance(value, str) else "body",
)
def test_a_compressed_body_means_what_it_says(inflating_pool: Pool, coding: str, body: bytes) -> None:
    reply = sent(inflating_pool, body, coding)
    assert reply.status == 200
    assert reply.json()["choices"][0]["message"]["content"].endswith("Hello")


def test_a_large_one_is_whole_also_in_chunks(inflating_pool: Pool) -> None:
    body = json.dumps({**HELLO, "user": "".join(f"{number:x}" for number in range(1_000_000))}).encode()
    assert sent(inflating_pool, gzip.compress(body), "gzip").status == 200
    packed = gzip.compress(body)
    chunks = b"".join(
        b"%x\r\n%s\r\n" % (len(packed[at : at + 70_000]), packed[at : at + 70_000])
        for at in range(0, len(packed), 70_000)
    )
    head = request("POST", CHAT, content_type="application/json", transfer_encoding="chunked", content_encoding="gzip")
    with RawConnection(inflating_pool.url) as connection:
        connection.send(head + chunks + b"0\r\n\r\n")
        assert connection.reply().status == 200


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "gzip, identity", "compress", "nonsense"])
def test_another_coding_is_a_415_that_names_those_that_are_taken(inflating_pool: Pool, coding: str) -> None:
    reply = sent(inflating_pool, gzip.compress(HELLO_BODY), coding)
    assert_refused(reply, 415, "gzip or deflate")
    assert reply.headers["accept-encoding"] == ["gzip, deflate"]


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", HELLO_BODY),
        ("gzip", b""),
        ("gzip", zlib.compress(HELLO_BODY)),
        ("deflate", raw_deflate(HELLO_BODY)),
        ("gzip", gzip.compress(HELLO_BODY)[:-1]),
        ("gzip", gzip.compress(HELLO_BODY)[:20]),
        ("gzip", gzip.compress(HELLO_BODY) + b"x"),
        ("gzip", gzip.compress(HELLO_BODY) * 2),
        ("gzip", gzip.compress(HELLO_BODY)[:-6] + b"\0\0\0\0\0\0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "body",
)
def test_what_is_broken_or_more_than_one_is_a_400(inflating_pool: Pool, coding: str, body: bytes) -> None:
    assert_refused(sent(inflating_pool, body, coding), 400, "body")


def test_bombs_are_a_413_and_cost_no_memory(inflating_pool: Pool) -> None:
    [pid] = inflating_pool.worker_pids()
    worker = psutil.Process(pid)
    before = worker.memory_info().rss
    nothing = gzip.compress(bytes(200_000_000), 1)  # about a megabyte, so 200 times
    small = gzip.compress(b" " * 2_000_000 + HELLO_BODY)  # within every limit but the ratio
    large = gzip.compress(json.dumps({"user": "".join(f"{number:x}" for number in range(2_000_000))}).encode())
    for bomb in (nothing, small, large):
        reply = sent(inflating_pool, bomb, "gzip")
        assert_refused(reply, 413, "inflates to more than")
        assert reply.headers["connection"] == ["close"]
    assert worker.memory_info().rss - before < 4 * LIMIT


def test_white_space_within_a_megabyte_is_no_bomb(inflating_pool: Pool) -> None:
    assert sent(inflating_pool, gzip.compress(HELLO_BODY + b" " * 900_000), "gzip").status == 200


def test_what_is_too_large_compressed_is_not_read(inflating_pool: Pool) -> None:
    with RawConnection(inflating_pool.url) as connection:
        connection.send(
            request("POST", CHAT, b"", content_length=str(LIMIT + 1), content_encoding="gzip", expect="100-continue")
        )
        assert_refused(connection.reply(), 413)
