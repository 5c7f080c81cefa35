"""Where SGLang is not installed, its engine says what to install."""

import sys

import pytest

from engine_bridge.engines import EngineError
from engine_bridge.engines.sglang import create


def test_an_engine_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    monkeypatch.delitem(sys.modules, "engine_bridge.engines.sglang_arguments", raising=False)
    with pytest.raises(EngineError, match=r"pip install 'apiserver-pool\[sglang\]'"):
        create("no/model", [])
