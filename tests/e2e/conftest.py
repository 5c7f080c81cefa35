"""One connection to a shared pool, for as long as the server leaves it open."""

from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.refusals import one_connection
from tests.pool import Pool


@pytest.fixture(scope="module")
def echo_client(echo_pool: Pool) -> Iterator[httpx.Client]:
    with one_connection(echo_pool) as client:
        yield client


@pytest.fixture(scope="module")
def embed_client(embed_pool: Pool) -> Iterator[httpx.Client]:
    with one_connection(embed_pool) as client:
        yield client
