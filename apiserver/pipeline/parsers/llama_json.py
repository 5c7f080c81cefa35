"""Llama 3.1 to 3.3: the answer is {"name": "f", "parameters": {...}}, maybe behind <|python_tag|>, or a few of them.

Without a tag, JSON that is no call of a known tool is an answer in JSON.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from apiserver.pipeline.parsers.call_object import read_call_objects
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import Marks
from apiserver.pipeline.parsers.source import Reading, Source

_BRACE = "{"


class LlamaJson:
    marks: ClassVar[Marks] = Marks(("<|python_tag|>",), at_start=(_BRACE,))

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._tools = tools

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        yield from read_call_objects(source, output, opener, (";", ","), self._tools)
