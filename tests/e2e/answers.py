"""What a client has of an answer, whole or streamed, in one shape for both dialects."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.pool import Pool

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
DIALECTS = (CHAT, COMPLETIONS)


@dataclass
class Choice:
    """One choice. `deltas` are the texts as they came; of a whole answer, one."""

    deltas: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def said(self) -> tuple[str, list[int], str | None, str | int | None]:
        """What must not depend on how the answer travelled."""
        return self.text, self.token_ids, self.finish_reason, self.stop_reason


@dataclass
class Answer:
    choices: dict[int, Choice]
    usage: dict[str, Any] | None
    chunks: list[dict[str, Any]]  # of a stream, all but [DONE]

    @property
    def only(self) -> Choice:
        (choice,) = self.choices.values()
        return choice

    @property
    def counts(self) -> tuple[int, int, int]:
        assert self.usage is not None
        return self.usage["prompt_tokens"], self.usage["completion_tokens"], self.usage["total_tokens"]


def request(path: str, token_ids: list[int], **fields: Any) -> dict[str, Any]:
    """A body that makes an echoing engine say these very ids."""
    return {"model": "sim", ("input_ids" if path == CHAT else "prompt"): token_ids, **fields}


def whole(pool: Pool, path: str, body: dict[str, Any]) -> Answer:
    response = pool.post(path, body)
    assert response.status_code == 200, response.text
    document = response.json()
    choices: dict[int, Choice] = {}
    for entry in document["choices"]:
        text = entry["message"]["content"] if path == CHAT else entry["text"]
        logprobs = [] if entry["logprobs"] is None else [entry["logprobs"]]
        choices[entry["index"]] = Choice(
            [text], entry.get("token_ids", []), logprobs, entry["finish_reason"], entry["stop_reason"]
        )
    return Answer(choices, document["usage"], [])


def streamed(pool: Pool, path: str, body: dict[str, Any], *, with_usage: bool = True) -> Answer:
    """The same as a stream. Checks what every stream must keep: frames, their order, one end for each choice."""
    options = {"stream_options": {"include_usage": True}} if with_usage and "stream_options" not in body else {}
    response = pool.post(path, {**body, "stream": True, **options})
    assert response.status_code == 200, response.text
    chunks = frames(response)
    answer = Answer({}, None, chunks)
    for chunk in chunks:
        if not chunk["choices"]:
            assert answer.usage is None
            answer.usage = chunk["usage"]
            continue
        assert answer.usage is None, "the usage comes last"
        (entry,) = chunk["choices"]
        _fold(answer.choices.setdefault(entry["index"], Choice()), entry)
    assert all(choice.finish_reason is not None for choice in answer.choices.values())
    return answer


def _fold(choice: Choice, entry: dict[str, Any]) -> None:
    assert choice.finish_reason is None, "nothing comes behind the end of a choice"
    delta = entry["delta"] if "delta" in entry else {"content": entry["text"]}
    if delta.get("content"):
        choice.deltas.append(delta["content"])
    choice.token_ids += entry.get("token_ids", [])
    if entry["logprobs"] is not None:
        choice.logprobs.append(entry["logprobs"])
    if entry["finish_reason"] is not None:
        choice.finish_reason, choice.stop_reason = entry["finish_reason"], entry["stop_reason"]


def both(pool: Pool, path: str, body: dict[str, Any]) -> Answer:
    """Ask whole and streamed; returns the streamed answer after checking that they are equal."""
    first, second = whole(pool, path, body), streamed(pool, path, body)
    assert {index: choice.said for index, choice in first.choices.items()} == {
        index: choice.said for index, choice in second.choices.items()
    }
    assert first.usage == second.usage
    return second


def frames(response: httpx.Response) -> list[dict[str, Any]]:
    """The documents of an event stream, which must be whole and end with [DONE]."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, last, rest = response.content.decode().split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def detokenized(pool: Pool, lists: list[list[int]], *, skip_special_tokens: bool = True) -> list[str]:
    """The tokenizer's own decode of each list."""
    texts: list[str] = []
    for start in range(0, len(lists), 2000):
        body = {"tokens": lists[start : start + 2000], "skip_special_tokens": skip_special_tokens}
        response = pool.post("/detokenize", body)
        assert response.status_code == 200, response.text
        texts += response.json()["text"]
    return texts
