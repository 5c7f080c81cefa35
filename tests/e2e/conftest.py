"""One connection to a shared pool, for as long as the server leaves it open."""

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.e2e.refusals import one_connection
from tests.e2e.responses_clients import FAILS_AT_ONCE, FAILS_LATER, IS_REFUSED, Worker
from tests.pool import ECHO_TEMPLATE, Pool, running_pool, wait_for


@pytest.fixture(scope="module")
def echo_client(echo_pool: Pool) -> Iterator[httpx.Client]:
    with one_connection(echo_pool) as client:
        yield client


@pytest.fixture(scope="module")
def embed_client(embed_pool: Pool) -> Iterator[httpx.Client]:
    with one_connection(embed_pool) as client:
        yield client


@pytest.fixture(scope="session")
def responses_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Four API servers and a sim that says what it was told, 3 ms a token."""
    faults = (f"error:{ord(FAILS_AT_ONCE)}:0", f"error:{ord(FAILS_LATER)}:3", f"refuse:{ord(IS_REFUSED)}:0")
    engine = ["--mode", "echo", "--step-ms", "3", *(word for fault in faults for word in ("--fault", fault))]
    flags = ("--api-server-count", "4", "--chat-template", ECHO_TEMPLATE, "--max-model-len", "4096")
    flags += ("--tool-call-parser", "hermes")
    with running_pool(tmp_path_factory.mktemp("responses") / "pool.log", *flags, engine=engine) as pool:
        yield pool


@pytest.fixture
def workers(responses_pool: Pool) -> Iterator[list[Worker]]:
    """All four, each by its own connection: whoever has fewer takes the next."""
    pool = responses_pool
    pool.client.close()
    pool.client = httpx.Client(base_url=pool.url, timeout=30.0)
    with ExitStack() as stack:
        found: dict[str, Worker] = {}

        def another() -> bool:
            worker = Worker(pool)
            stack.callback(worker.openai.close)
            found.setdefault(worker.name, worker)
            return len(found) == 4

        wait_for(another, what="a connection to each API server")
        yield list(found.values())
