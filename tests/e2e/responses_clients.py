"""The Responses API's clients: one for each API server, and what they check of every reply."""

from typing import Any, cast

import httpx
import openai
from pydantic import BaseModel

from tests.event_streams import checking_client
from tests.pool import Pool

RESPONSES = "/v1/responses"
FAILS_AT_ONCE, FAILS_LATER, IS_REFUSED = "\x01", "\x02", "\x03"
"""Control characters that set off a fault of the engine."""


class Worker:
    """One API server, by a connection to it that stays open."""

    def __init__(self, pool: Pool) -> None:
        self.http = checking_client(pool.url, limits=httpx.Limits(max_connections=1))
        self.openai = openai.OpenAI(
            base_url=pool.url + "/v1", api_key="none", max_retries=0, http_client=cast(Any, self.http), timeout=30.0
        )
        self.name = self.http.get("/live").headers["x-request-id"].split("-")[1]

    @property
    def responses(self) -> Any:
        return self.openai.responses


def valid(reply: Any) -> Any:
    """The reply, validated strictly by its own class. Raises pydantic's ValidationError."""
    model = cast(BaseModel, reply)
    type(model).model_validate(model.model_dump(warnings="error", by_alias=True), by_alias=True)
    return reply


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return response.json()["error"]
