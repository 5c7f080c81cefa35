"""Sections of calls: each call with a head that names the tool, and its arguments as JSON."""

from collections.abc import Callable
from typing import NamedTuple

from apiserver.pipeline.parsers.json_text import copy_json
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.source import Reading, Source


class SectionMarks(NamedTuple):
    """What stands around the calls of a section, once it is open."""

    call: str
    after_arguments: tuple[str, ...]
    """To the end of the call; each may be missing, and there may be white space before it."""
    section_end: str


def read_section(
    source: Source, output: Output, opener: str, marks: SectionMarks, read_name: Callable[[Source], Reading[str]]
) -> Reading[None]:
    """The calls of a section, to its end. `read_name` reads up to the arguments' brace; where it gives "" this is no
    call, and its text is content."""
    source.record(opener)
    while True:
        yield from source.spaces()
        tag = yield from source.takes(marks.call, marks.section_end)
        if tag != marks.call:
            break
        name = yield from read_name(source)
        if not name:
            output.content(source.recorded())
            return
        source.forget()
        output.begin(name)
        if not (yield from copy_json(source, output.arguments)):
            return
        for word in marks.after_arguments:
            yield from source.spaces()
            yield from source.takes(word)
        source.record("")
    if tag:
        source.forget()
    else:
        output.content(source.recorded())
