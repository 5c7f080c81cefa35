"""What is asked of an OpenAI-compatible endpoint, and whether the reply is what was asked for."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import msgspec

from benchlib.client import JsonClient, Reply
from benchlib.parsing import ReplyError
from benchlib.prompts import Counter

EndpointName = Literal["chat", "completions", "embeddings"]

PATHS: dict[str, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
}
_DETAIL_LENGTH = 300


@dataclass(slots=True)
class Sample:
    """One request's times (perf_counter's clock) and counts. With a failure, only it and the times mean anything."""

    due: float
    sent: float
    ended: float
    token_times: list[float] = field(default_factory=list[float])
    prompt_tokens: int = 0
    output_tokens: int = 0
    failure: str | None = None
    detail: str = ""

    @property
    def e2e(self) -> float:
        """From when the request was due to the last byte."""
        return self.ended - self.due

    @property
    def ttft(self) -> float | None:
        """From when the request was due to its first token event; None if it is not a stream."""
        return self.token_times[0] - self.due if self.token_times else None

    @property
    def itl(self) -> list[float]:
        """Each gap after the first token event. Tokens that came in one event, or one buffer, have none or 0."""
        return [later - earlier for earlier, later in pairwise(self.token_times)]

    @property
    def tpot(self) -> float | None:
        """Mean time per output token, the first excluded; None if there is no second."""
        if not self.token_times or self.output_tokens < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.output_tokens - 1)


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None


class _Document(msgspec.Struct):
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    data: list[msgspec.Raw] | None = None


_decoder = msgspec.json.Decoder(_Document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The same request over and over, but for its prompt."""

    endpoint: EndpointName
    model: str
    output_tokens: int
    is_stream: bool
    encoding_format: str | None = None
    """Of vectors; None leaves it to the server."""

    @property
    def path(self) -> str:
        return PATHS[self.endpoint]

    def body(self, prompt: str | list[int]) -> bytes:
        """The JSON for one prompt: exactly `output_tokens` tokens, whatever the model would like to say."""
        document: dict[str, Any] = {"model": self.model}
        if self.endpoint == "embeddings":
            document["input"] = prompt
            if self.encoding_format is not None:
                document["encoding_format"] = self.encoding_format
            return msgspec.json.encode(document)
        if self.endpoint == "chat":
            document["messages"] = [{"role": "user", "content": prompt}]
        else:
            document["prompt"] = prompt
        document |= {"max_tokens": self.output_tokens, "temperature": 0, "ignore_eos": True, "stream": self.is_stream}
        if self.is_stream:
            document["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(document)

    def judge(self, due: float, reply: Reply) -> Sample:
        """Measure one reply; anything short of a whole, right answer is a failure with its kind."""
        sample = Sample(due=due, sent=reply.sent_at, ended=reply.ended_at, token_times=reply.token_times)
        failure, detail = self._judge_transport(reply)
        if failure is None:
            failure, detail = self._judge_document(reply, sample)
        sample.failure = failure
        sample.detail = detail[:_DETAIL_LENGTH]
        return sample

    def _judge_transport(self, reply: Reply) -> tuple[str | None, str]:
        text = reply.document.decode(errors="replace")
        if reply.failure is not None:
            return reply.failure, ""
        if reply.status != 200:
            return f"HTTP {reply.status}", text
        if reply.is_event_stream != self.is_stream:
            return "not a stream" if self.is_stream else "a stream", text
        return None, ""

    def _judge_document(self, reply: Reply, sample: Sample) -> tuple[str | None, str]:
        text = reply.document[: _DETAIL_LENGTH * 4].decode(errors="replace")
        try:
            document = _decoder.decode(reply.document)
        except msgspec.DecodeError as error:
            return "bad JSON", f"{error}: {text}"
        if bytes(document.error) != b"null":
            return "error in the stream" if self.is_stream else "error in the body", text
        if self.is_stream and not reply.has_done_event:
            return "stream without [DONE]", text
        if document.usage is None:
            return "no usage", text
        sample.prompt_tokens = document.usage.prompt_tokens
        if self.endpoint == "embeddings":
            return (None, "") if len(document.data or ()) == 1 else ("not one embedding", text)
        return self._judge_output(document.usage.completion_tokens or 0, sample)

    def _judge_output(self, output_tokens: int, sample: Sample) -> tuple[str | None, str]:
        sample.output_tokens = output_tokens
        if output_tokens != self.output_tokens:
            return "wrong number of output_tokens", f"{output_tokens} instead of {self.output_tokens}"
        if self.is_stream and not sample.token_times:
            return "no token event", ""
        return None, ""


async def find_model(http: JsonClient) -> str:
    """The first model that the server has; raises ReplyError if it does not say."""
    status, document = await http.get("/v1/models")
    try:
        return str(document["data"][0]["id"])
    except (TypeError, KeyError, IndexError) as error:
        raise ReplyError(f"no model in /v1/models (status {status})") from error


async def find_counter(http: JsonClient, endpoint: EndpointName, model: str) -> Counter | None:
    """A counter by `POST /tokenize`, in the form that fits the endpoint; None if the server has no such thing."""

    async def ask(text: str) -> int | None:
        prompt = [{"role": "user", "content": text}] if endpoint == "chat" else text
        key = "messages" if endpoint == "chat" else "prompt"
        status, document = await http.post("/tokenize", {"model": model, key: prompt})
        if status != 200 or not isinstance(document, dict):
            return None
        count = document.get("count")
        return count if isinstance(count, int) else None

    async def count(text: str) -> int:
        answer = await ask(text)
        if answer is None:
            raise ReplyError("/tokenize does not answer any more")
        return answer

    return None if await ask("the") is None else count
