"""What the routes about stored responses say: a page of input items, and that one is gone."""

from collections.abc import Sequence
from typing import Any

from apiserver.errors import InvalidRequest, shown
from apiserver.protocol.responses_input import Item

_MOST, _USUAL = 100, 20  # items a page; OpenAI's


def page(items: Sequence[Item], *, after: str | None, limit: str | None, order: str | None) -> dict[str, Any]:
    """One page of `items`, which come oldest first; the parameters are the query's. Raises InvalidRequest."""
    if order not in (None, "asc", "desc"):
        raise InvalidRequest(f"order must be asc or desc, not {shown(order)}.", param="order")
    size = _limit(limit)
    ordered = list(items) if order == "asc" else list(items)[::-1]
    begin = 0
    if after is not None:
        begin = next((place for place, item in enumerate(ordered, 1) if item["id"] == after), 0)
        if begin == 0:
            raise InvalidRequest(f"after is {shown(after, most=80)}, which is none of the items.", param="after")
    data = ordered[begin : begin + size]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": begin + size < len(ordered),
    }


def _limit(limit: str | None) -> int:
    if limit is None:
        return _USUAL
    if not limit.isascii() or not limit.isdigit() or len(limit) > 3 or not 1 <= int(limit) <= _MOST:
        raise InvalidRequest(f"limit must be 1 to {_MOST}, not {shown(limit)}.", param="limit")
    return int(limit)


def deleted(response_id: str) -> dict[str, Any]:
    return {"id": response_id, "object": "response", "deleted": True}
