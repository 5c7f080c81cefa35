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


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Running]]:
    """`start("llama", *more_flags)`: a running engine, until the module's end."""
    running: list[Running] = []

    def begin(model: str, *flags: str) -> Running:
        running.append(Running(model, *CPU_FLAGS, *flags))
        return running[-1]

    yield begin
    for each in running:
        each.stop()
