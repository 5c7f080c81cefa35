"""The grammar of a Responses stream, and its events by the official client's own models."""

import json
import re
from collections.abc import Sequence
from typing import Any, get_args

from openai import BaseModel
from openai.types.responses import ResponseStreamEvent

TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
_MODELS: dict[str, type[BaseModel]] = {
    get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(get_args(ResponseStreamEvent)[0])
}
_PARTS = {
    "response.content_part": ("content_index", "text"),
    "response.reasoning_summary_part": ("summary_index", "text"),
}


def parsed(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream's bytes; each has an `event:` line that says its type, and one `data:` line."""
    events: list[dict[str, Any]] = []
    assert stream.endswith(b"\n\n")
    for frame in stream.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def check(events: Sequence[dict[str, Any]], *, first: int = 0) -> dict[str, Any]:
    """Every rule of the grammar, on a stream that was followed from event `first` on. Returns the last event."""
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    types = [event["type"] for event in events]
    assert [place for place, kind in enumerate(types) if kind in TERMINAL] == [len(types) - 1], types
    for event in events:
        _MODELS[event["type"]].model_validate(event, strict=True)
    if first == 0:
        assert types[:2] == ["response.created", "response.in_progress"]
        _check_items(events)
    return events[-1]


def _check_items(events: Sequence[dict[str, Any]]) -> None:
    """Items and their parts open and close in turn, one at a time; what is told in pieces is told whole at the end."""
    done: list[dict[str, Any]] = []
    item: dict[str, Any] | None = None
    pieces: dict[str, str] = {}
    open_part: str | None = None
    for event in events[2:-1]:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert item is None
            item, pieces = event["item"], {}
            assert event["output_index"] == len(done)
            assert item is not None
            assert item["status"] == "in_progress"
            continue
        assert item is not None, kind
        assert event["output_index"] == len(done)
        if kind == "response.output_item.done":
            assert open_part is None
            assert event["item"]["id"] == item["id"]
            assert event["item"]["status"] in ("completed", "incomplete")
            assert _texts(event["item"]) == [text for name, text in pieces.items() if name.endswith(".delta")]
            done.append(event["item"])
            item = None
            continue
        assert event["item_id"] == item["id"]
        if kind.endswith("part.added"):
            assert open_part is None
            open_part = kind.removesuffix(".added")
            pieces = {}
        elif kind.endswith("part.done"):
            assert open_part == kind.removesuffix(".done")
            open_part = None
        elif kind.endswith(".delta"):
            pieces[kind] = pieces.get(kind, "") + event["delta"]
        else:
            name = kind.removesuffix(".done")
            assert pieces.setdefault(f"{name}.delta", "") == event.get("text", event.get("arguments"))
    # What cannot be told any more, since the store fails or the response was deleted, ends where it is.
    assert item is None or events[-1]["type"] == "error", "an item is still open"
    if "response" in events[-1]:
        assert events[-1]["response"]["output"] == done


def _texts(item: dict[str, Any]) -> list[str]:
    if item["type"] == "function_call":
        return [item["arguments"]]
    parts = [*item.get("content", []), *item.get("summary", [])]
    return [part["text"] for part in parts] or [""]


def anonymous(document: Any) -> Any:
    """The document with its ids by order of appearance and its times as 0: two responses can be compared."""
    names: dict[str, str] = {}
    text = re.sub(
        r"\b(resp|msg|rs|fc|fco)_[0-9a-f]{32}\b",
        lambda found: names.setdefault(found.group(), f"{found.group(1)}_{len(names)}"),
        json.dumps(document),
    )
    return json.loads(re.sub(r'"(created_at|completed_at)": \d+', r'"\1": 0', text))
