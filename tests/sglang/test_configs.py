"""SGLang's own parser takes the flags of every configuration that we ship for it."""

from pathlib import Path

import pytest

from apiserver.flags import make_parsers, parse_serve
from engine_bridge.engines.sglang import create

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("sglang-*.yaml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_sglang_takes_a_configurations_flags(config: Path) -> None:
    settings = parse_serve(make_parsers(), ["serve", "--config", str(config)])
    assert settings.engine == "sglang"
    create(settings.model, list(settings.engine_arguments))


def test_there_is_one_for_each_kind_of_node() -> None:
    assert len(CONFIGS) == 5
