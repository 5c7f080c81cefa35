"""Every stream that a test reads is held to its grammar, whatever the test itself looks at."""

from collections.abc import Iterator

import httpx

from tests import openai_grammar

EVENT_STREAM = "text/event-stream"


def check(data: bytes, *, whole: bool = True) -> None:
    """An AssertionError if these bytes are no stream of their dialect. `whole=False`: the client left.

    The other two grammars want their official clients, which SGLang's venv has not got, and where nobody streams so.
    """
    if not data.startswith(b"event: "):
        openai_grammar.check(openai_grammar.frames(data, whole=whole), whole=whole)
    elif not whole:
        return
    elif b'"sequence_number":' in data[: data.index(b"\n\n")]:
        from tests import responses_grammar

        events = responses_grammar.parsed(data)
        responses_grammar.check(events, first=events[0]["sequence_number"])
    else:
        from tests import anthropic_grammar

        anthropic_grammar.check(anthropic_grammar.frames(data))


class _Checked(httpx.SyncByteStream):
    """A response's bytes; at their end they are checked."""

    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        data: list[bytes] = []
        has_ended = False
        try:
            for part in self._stream:
                data.append(part)
                yield part
            has_ended = True
        finally:
            check(b"".join(data), whole=has_ended)

    def close(self) -> None:
        self._stream.close()


class CheckingTransport(httpx.HTTPTransport):
    """An HTTP client's way to a pool."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if response.headers.get("content-type", "").startswith(EVENT_STREAM):
            assert isinstance(response.stream, httpx.SyncByteStream)
            response.stream = _Checked(response.stream)
        return response


def checking_client(url: str, seconds: float = 30.0, limits: httpx.Limits | None = None) -> httpx.Client:
    """A client of the pool at `url` that checks every stream that it reads."""
    transport = CheckingTransport(limits=limits or httpx.Limits())
    return httpx.Client(base_url=url, timeout=seconds, transport=transport)
