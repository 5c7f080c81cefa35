"""What clients ask of a pool that generates: every dialect, whole and streamed, with what its answer must be."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from chaoslib import reading
from chaoslib.ask import NOT_NOW, Ask, Expected, Reader, Said
from chaoslib.connection import Reply
from chaoslib.words import TROUBLES, Texts

_READERS: dict[str, tuple[Any, Any]] = {
    "chat": (reading.chat, reading.chat_events),
    "completions": (reading.completion, reading.completion_events),
    "messages": (reading.message, reading.message_events),
    "responses": (reading.response, reading.response_events),
    "generate": (reading.generated, reading.generated_events),
}
_PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "generate": "/generate",
}
_ENOUGH = 30_000  # tokens, for any text of ours
_LOST_RESPONSE = NOT_NOW | {404}


def _reader(dialect: str, stream: bool) -> Reader:
    return reading.by(*_READERS[dialect], stream)


def simple(dialect: str, prompt: str, *, stream: bool, most: int = _ENOUGH, **more: Any) -> Ask:
    """The prompt comes back, or so many bytes of it; `more` are an Ask's own fields, or in `fields` the body's."""
    fields: dict[str, Any] = more.pop("fields", {})
    expected = more.pop("expected", None) or Expected({0: prompt.encode()[:most].decode()})
    body: dict[str, Any]
    if dialect == "generate":
        body = {"text": prompt, "sampling_params": {"max_new_tokens": most, **fields}}
    elif dialect == "completions":
        body = {"prompt": prompt, "max_tokens": most, **fields}
    elif dialect == "responses":
        body = {"input": prompt, "max_output_tokens": most, "store": False, **fields}
    else:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": most, **fields}
    path = _PATHS[dialect]
    read = _reader(dialect, stream)
    return Ask(
        dialect=dialect, path=path, read=read, expected=expected, body={**body, "stream": stream}, stream=stream, **more
    )


class Generating:
    """A client's choice of what to ask next; seeded."""

    def __init__(self, rng: Random, texts: Texts) -> None:
        self._rng = rng
        self._texts = texts
        self._kinds: list[tuple[int, Callable[[], Ask]]] = [
            (30, self.plain),
            (8, self.several),
            (8, self.stopped),
            (6, self.tools),
            (4, self.long),
            (3, self.slow_reader),
            (8, self.leaver),
            (6, self.batch),
            (4, self.ids),
            (5, self.stored),
            (5, self.background),
            (3, self.cancelled),
            (3, self.hurried),
            (5, self.troubled),
        ]

    def next(self) -> Ask:
        kinds = [kind for _, kind in self._kinds]
        (kind,) = self._rng.choices(kinds, [weight for weight, _ in self._kinds])
        return kind()

    def _dialect(self) -> str:
        return self._rng.choice(list(_PATHS))

    def _stream(self) -> bool:
        return self._rng.random() < 0.6

    def plain(self) -> Ask:
        return simple(self._dialect(), self._texts.short(), stream=self._stream(), pipelined=self._rng.random() < 0.1)

    def several(self) -> Ask:
        """n > 1."""
        n, text = self._rng.randrange(2, 5), self._texts.short()
        dialect = self._rng.choice(["chat", "completions"])
        expected = Expected(dict.fromkeys(range(n), text))
        return simple(dialect, text, stream=self._stream(), fields={"n": n}, expected=expected)

    def stopped(self) -> Ask:
        """By a stop string, which tokens cut anywhere."""
        before, dialect = self._texts.short(), self._rng.choice(["chat", "completions", "messages", "generate"])
        name = "stop_sequences" if dialect == "messages" else "stop"
        return simple(
            dialect,
            f"{before}HALT!{self._texts.short()}",
            stream=self._stream(),
            fields={name: ["HALT!"]},
            expected=Expected({0: before}),
        )

    def tools(self) -> Ask:
        """The text of a tool call, which must come back as one."""
        mark, dialect = self._texts.mark(), self._rng.choice(["chat", "messages"])
        text = '<tool_call>\n{"name": "look", "arguments": {"at": "MARK"}}\n</tool_call>'.replace("MARK", mark)
        schema = {"type": "object", "properties": {"at": {"type": "string"}}}
        tool: dict[str, Any] = {"name": "look", "input_schema": schema}
        if dialect == "chat":
            tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
        expected = Expected({0: ""}, (("look", {"at": mark}),))
        return simple(dialect, text, stream=self._stream(), fields={"tools": [tool]}, expected=expected)

    def long(self) -> Ask:
        return simple(self._dialect(), self._texts.long(), stream=self._stream(), most=40)

    def slow_reader(self) -> Ask:
        dialect = self._rng.choice(["chat", "completions", "messages"])
        text = self._texts.plain(self._rng.randrange(1_000, 3_000))
        return simple(dialect, text, stream=True, pause_seconds=self._rng.uniform(0.02, 0.1))

    def leaver(self) -> Ask:
        text = self._texts.plain(400)
        return simple(self._dialect(), text, stream=True, leave_after=self._rng.randrange(1, 8_000))

    def batch(self) -> Ask:
        prompts = [self._texts.short() for _ in range(self._rng.randrange(2, 5))]
        expected = Expected(dict(enumerate(prompts)))
        return simple("completions", "", stream=self._stream(), fields={"prompt": prompts}, expected=expected)

    def ids(self) -> Ask:
        """vLLM's API of token ids; an id is a byte."""
        text = self._texts.short()
        body = {"token_ids": list(text.encode()), "sampling_params": {"max_tokens": _ENOUGH}}
        read = reading.by(reading.token_ids, None, stream=False)
        return Ask(
            dialect="token ids", path="/inference/v1/generate", read=read, expected=Expected({0: text}), body=body
        )

    def stored(self) -> Ask:
        """A response, and one that continues it: the prompt is both turns."""
        first, second = self._texts.short(), self._texts.short()

        def then(reply: Reply, said: Said) -> Ask | None:
            if not said.finished:
                return None
            expected = Expected({0: first + first + second})
            previous = _response_id(reply)
            fields = {"store": True, "previous_response_id": previous}
            return simple("responses", second, stream=self._stream(), fields=fields, expected=expected)

        return simple("responses", first, stream=False, fields={"store": True}, then=then)

    def background(self) -> Ask:
        """It is asked for until it has ended, from any API server."""
        text = self._texts.text(self._rng.randrange(10, 60))
        fields = {"store": True, "background": True}
        return simple("responses", text, stream=False, fields=fields, then=lambda reply, said: _look(reply, said, text))

    def cancelled(self) -> Ask:
        text = self._texts.plain(2_000)
        fields = {"store": True, "background": True}

        def cancel(reply: Reply, said: Said) -> Ask | None:
            if not said.pending:
                return None
            return Ask(
                dialect="responses",
                path=f"/v1/responses/{_response_id(reply)}/cancel",
                read=_reader("responses", stream=False),
                expected=Expected({0: text}),
                body={},
                generates=False,
                then=lambda reply, said: _look(reply, said, text),
                allowed=_LOST_RESPONSE,
            )

        return simple("responses", text, stream=False, fields=fields, then=cancel)

    def hurried(self) -> Ask:
        """With less time than it may take."""
        return simple(
            self._dialect(), self._texts.plain(300), stream=self._stream(), timeout_ms=self._rng.randrange(20, 600)
        )

    def troubled(self) -> Ask:
        trouble = self._rng.choices(["error", "refuse", "slow"], [6, 3, 2])[0]
        text = TROUBLES[trouble][0] + self._texts.plain(20)
        return simple(self._dialect(), text, stream=self._stream(), trouble=trouble)


def fatal(trouble: str, mark: str) -> Ask:
    """A chat that stalls, hangs or crashes the engine."""
    return simple("chat", f"{TROUBLES[trouble][0]}{mark} and more", stream=True, trouble=trouble)


def calm(dialect: str, text: str, *, stream: bool) -> Ask:
    """A normal request, which must succeed when nothing is broken."""
    return simple(dialect, text, stream=stream)


DIALECTS = tuple(_PATHS)


def _response_id(reply: Reply) -> str:
    return str(json.loads(reply.body)["id"])


def _look(reply: Reply, said: Said, text: str) -> Ask | None:
    """Ask for the response once more."""
    if not said.pending:
        return None
    return Ask(
        dialect="responses",
        method="GET",
        path=f"/v1/responses/{_response_id(reply)}",
        read=_reader("responses", stream=False),
        expected=Expected({0: text}),
        generates=False,
        then=lambda reply, said: _look(reply, said, text),
        allowed=_LOST_RESPONSE,
    )
