"""Pools that many tests share, and one for a test alone."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.pool import ECHO_TEMPLATE, Pool, running_pool

_ELSEWHERE = {
    "sglang": (("sglang",), "scripts/test-sglang"),
    "clients": (("langchain_openai", "litellm"), "scripts/test-clients"),
}
"""Directories whose tests need packages that the project does not: which ones, and what runs them."""

_NOT_HERE = {
    directory: script
    for directory, (packages, script) in _ELSEWHERE.items()
    if any(importlib.util.find_spec(package) is None for package in packages)
}
if "LOAD_TOOLS_PYTHON" not in os.environ:  # the tools are processes of a venv of their own
    _NOT_HERE["load_tools"] = "scripts/test-load-tools"
collect_ignore = list(_NOT_HERE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for directory, script in _NOT_HERE.items():
        terminalreporter.write_line(f"tests/{directory} was not run: {script} runs it.")


StartPool = Callable[..., AbstractContextManager[Pool]]


@pytest.fixture
def start_pool(tmp_path: Path) -> StartPool:
    """`with start_pool(*flags, engine=[...]) as pool:` for a test that needs a pool of its own."""
    number = iter(range(1000))

    def start(*flags: str, **options: Any) -> AbstractContextManager[Pool]:
        return running_pool(tmp_path / f"pool-{next(number)}.log", *flags, **options)

    return start


@pytest.fixture(scope="session")
def echo_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Two API servers and a sim that answers with the prompt's own ids, one token a byte."""
    output = tmp_path_factory.mktemp("echo") / "pool.log"
    flags = ("--api-server-count", "2", "--chat-template", ECHO_TEMPLATE, "--max-model-len", "20000")
    flags += ("--tool-call-parser", "hermes")
    with running_pool(output, *flags, engine=["--mode", "echo"]) as pool:
        yield pool


@pytest.fixture(scope="session")
def seeded_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Four API servers and a sim with its own words, a millisecond a step."""
    output = tmp_path_factory.mktemp("seeded") / "pool.log"
    flags = ("--api-server-count", "4", "--max-model-len", "4096", "--tool-call-parser", "hermes")
    with running_pool(output, *flags, engine=["--step-ms", "1"]) as pool:
        yield pool


@pytest.fixture(scope="session")
def embed_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Two API servers and a sim that makes vectors."""
    output = tmp_path_factory.mktemp("embed") / "pool.log"
    with running_pool(output, "--api-server-count", "2", "--max-model-len", "512", engine=["--task", "embed"]) as pool:
        yield pool


@pytest.fixture(scope="session")
def smollm2_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Four API servers and a real model on the CPU."""
    output = tmp_path_factory.mktemp("smollm2") / "pool.log"
    flags = ("--api-server-count", "4", "--max-model-len", "2048", "--model-alias", "claude-*")
    flags += ("--tool-call-parser", "hermes")
    with running_pool(output, *flags, model="smollm2") as pool:
        yield pool
        assert "Traceback" not in pool.log
