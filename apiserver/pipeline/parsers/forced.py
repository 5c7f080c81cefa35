"""Calls that the engine's grammar forces: the whole answer is JSON of a shape that we asked for, and nothing else."""

from collections.abc import Mapping
from typing import Any, ClassVar

from apiserver.pipeline.parsers.call_object import read_call_objects
from apiserver.pipeline.parsers.json_text import copy_json
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import Marks
from apiserver.pipeline.parsers.source import Reading, Source


class ForcedCalls:
    """A list of calls: [{"name": "f", "parameters": {...}}, ...]."""

    marks: ClassVar[Marks] = Marks(at_start=("[",))

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        pass

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        yield from source.takes("[")
        if (yield from read_call_objects(source, output, "[", (",",))):
            yield from source.spaces()
            yield from source.takes("]")


class ForcedCall:
    """The arguments of one call of the one tool that there is."""

    marks: ClassVar[Marks] = Marks(at_start=("{",))

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        [self._name] = tools

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        output.begin(self._name)
        yield from copy_json(source, output.arguments)
