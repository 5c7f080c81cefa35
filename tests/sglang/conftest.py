"""What these tests need besides: patience, and deaf ears for the warnings of SGLang and torch."""

from collections.abc import Callable, Iterator

import pytest

from tests.sglang.shared import Running
from tests.sglang.tiny_models import CPU_FLAGS

HERE = "tests/sglang/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.nodeid:
            item.add_marker(pytest.mark.timeout(240))  # a start takes 10 s, and 30 on a busy machine
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def start() -> Iterator[Callable[..., Running]]:
    """`start("llama", *more_flags)`: a running engine, the same for the same words, until the end."""
    running: dict[tuple[str, ...], Running] = {}

    def begin(*words: str) -> Running:
        if words not in running:
            model, *flags = words
            running[words] = Running(model, *CPU_FLAGS, *flags)
        return running[words]

    yield begin
    for each in running.values():
        each.stop()


@pytest.fixture(scope="class")
def start_crowded() -> Iterator[Callable[..., Running]]:
    """The same, with a short queue, and only until its class's end."""
    running: list[Running] = []

    def begin(model: str, *flags: str) -> Running:
        if not running:
            crowded = ("--max-running-requests", "2", "--max-queued-requests", "3")
            running.append(Running(model, *CPU_FLAGS, *flags, *crowded))
        return running[0]

    yield begin
    for each in running:
        each.stop()
