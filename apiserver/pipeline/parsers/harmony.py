"""gpt-oss: messages in channels. Analysis is reasoning, what is addressed to a function is a call, the rest is content.

A message is <|start|>ROLE, then <|channel|>CHANNEL and maybe to=RECIPIENT and <|constrain|>TYPE in any order, then
<|message|>TEXT<|end|>. The prompt ends behind <|start|>assistant, so an answer begins in the middle of such a head.
"""

import re

from apiserver.pipeline.parsers.json_text import copy_json
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.source import Markers, Reading, Source

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS)
_HEAD_BEGINS = Markers((_START, _CHANNEL, _MESSAGE))
_HEAD_ENDS = Markers((_MESSAGE, *_ENDS))
_BODY_ENDS = Markers((*_ENDS, _START, _CHANNEL))
_MARKER = re.compile("|".join(map(re.escape, MARKERS)))
_RECIPIENT_FIRST = (" to=", "to=")  # of an answer whose head goes on behind the role
_RECIPIENT = re.compile(r"\bto=functions\.([\w.\-]+)")
_MOST_HEAD = 512


def read_harmony(source: Source, output: Output, *, reasons: bool, calls: bool) -> Reading[None]:
    """Everything to the end. Without `reasons` the analysis is content, without `calls` the calls' text is."""
    marker = yield from source.next_is(*_RECIPIENT_FIRST)
    while True:
        marker = marker or (yield from source.until(_HEAD_BEGINS, output.content))
        if not marker:
            return
        head = ""
        if marker != _MESSAGE:
            source.record("" if marker in _RECIPIENT_FIRST else marker)
            found = yield from source.collect(_HEAD_ENDS, _MOST_HEAD)
            if found is None or found[1] != _MESSAGE:
                output.content(_without_markers(source.recorded()))
                marker = ""
                continue
            source.forget()
            head = marker + found[0]
        marker = yield from _read_message(source, output, head, reasons, calls)


def _read_message(source: Source, output: Output, head: str, reasons: bool, calls: bool) -> Reading[str]:
    """One message's text. Returns the marker that begins the next one, if that is what ended it."""
    recipient = _RECIPIENT.search(head) if calls else None
    if recipient is not None:
        return (yield from _read_call(source, output, recipient[1]))
    thinks = reasons and head.rpartition(_CHANNEL)[2].lstrip().startswith("analysis")
    if thinks:
        output.think()
    marker = yield from source.until(_BODY_ENDS, output.reasoning if thinks else output.content)
    if thinks and marker:
        output.think_no_more()
    return marker if marker in (_START, _CHANNEL) else ""


def _read_call(source: Source, output: Output, name: str) -> Reading[str]:
    output.begin(name)
    yield from source.spaces()
    if (yield from source.next_is(*_ENDS)):
        output.arguments("{}")
    elif (yield from source.next_is("{")):
        yield from copy_json(source, output.arguments)
    marker = yield from source.until(_BODY_ENDS, output.content)
    return marker if marker in (_START, _CHANNEL) else ""


def _without_markers(text: str) -> str:
    """The text of a head that leads nowhere; its control tokens are no text."""
    return _MARKER.sub("", text)
