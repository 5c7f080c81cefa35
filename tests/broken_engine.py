"""An engine that breaks its promises where it is told; others are made of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine_bridge import wire
from engine_bridge.engines import Emit, EngineError, Key


class Broken:
    """An engine that fails where it is told."""

    def __init__(self, where: str) -> None:
        self._where = where

    async def start(self, emit: Emit) -> wire.Capabilities:
        if self._where == "start":
            raise EngineError("the model is not there")
        return wire.Capabilities("generate", 100, 100)

    def submit(self, requests: Sequence[tuple[Key, wire.Request]]) -> None:
        raise RuntimeError("a bug in the engine")

    def abort(self, keys: Sequence[Key]) -> None:
        pass

    def counts(self) -> tuple[int, int]:
        return 0, 0

    async def admin(self, verb: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        raise RuntimeError("a bug in the engine")

    async def close(self) -> None:
        pass
