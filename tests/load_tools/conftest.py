"""Pools of four API servers, and the tokenizer that a load tool counts with."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pool import Pool, running_pool
from tests.real_tokenizers import tokenizer_directory


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's, as transformers reads it: its GGUF has no such directory."""
    directory = tmp_path_factory.mktemp("tokenizer")
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copyfile(tokenizer_directory("smollm2") / name, directory / name)
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return directory


@pytest.fixture(scope="session")
def sim_pool(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Iterator[Pool]:
    output = tmp_path_factory.mktemp("sim") / "pool.log"
    flags = ("--api-server-count", "4", "--max-model-len", "4096", "--tokenizer", str(tokenizer))
    with running_pool(output, *flags, engine=["--step-ms", "2"]) as pool:
        yield pool


@pytest.fixture(scope="session")
def sim_embed_pool(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Iterator[Pool]:
    output = tmp_path_factory.mktemp("sim-embed") / "pool.log"
    flags = ("--api-server-count", "4", "--max-model-len", "4096", "--tokenizer", str(tokenizer))
    with running_pool(output, *flags, engine=["--task", "embed"]) as pool:
        yield pool


@pytest.fixture(scope="session")
def minilm_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    output = tmp_path_factory.mktemp("minilm") / "pool.log"
    with running_pool(output, "--api-server-count", "4", model="minilm") as pool:
        yield pool
