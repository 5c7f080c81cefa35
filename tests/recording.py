"""Recorded conversations: what a client sent, what an engine gave, and the bytes that came of it.

    python -m tests.recording [DIALECT/NAME …]    makes the expected bytes of these, or of all, anew

`tests/recorded/DIALECT/NAME/` has `request.json`, the body without `stream`; `outputs.json`, the engine's steps; and
`expected.sse` and `expected.json`, the stream and the whole answer (its error document, if the engine failed). A step
is `{"text" or "token_ids", "choice", "logprobs": [[logprob, [[id, logprob], …]], …], "finish_reason",
"stop_token_id"}`, all but the tokens optional, or `{"error": KIND, "message"}`. The model's tokens are bytes; 256 to
258 are control tokens. Ids are numbered in the order in which they appear; times and latencies are 0.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from apiserver.card import Card, Limits
from apiserver.errors import ApiError, Internal, Unavailable
from apiserver.events import Event, Result, Started
from apiserver.http import sse
from apiserver.pipeline.decode import Decoder
from apiserver.pipeline.prepare import prepare_generate
from apiserver.pipeline.preprocess import Preprocessor
from apiserver.protocol.chat_completions import ChatCompletion
from apiserver.protocol.completions import Completion
from apiserver.protocol.exchange import OpenExchange
from apiserver.protocol.generate import Generate
from apiserver.protocol.messages import Messages
from apiserver.protocol.responses import Past, Response
from apiserver.protocol.responses_request import read_response
from apiserver.protocol.token_generate import TokenGenerate
from apiserver.requests import GenerateJob
from apiserver.timings import Timings
from apiserver.tokenizer.byte import CHAT_TEMPLATE, SPECIAL_TOKENS, byte_tokenizer_json
from apiserver.tokenizer.hf import HfTokenizer
from apiserver.tokenizer.template import ChatTemplate
from engine_bridge.wire import Capabilities, FinishReason, Output, TokenLogprobs, pack_ids
from tests.bodies import bytes_of

DIRECTORY = Path(__file__).parent / "recorded"
_END = SPECIAL_TOKENS["<|im_end|>"]
_CARD = Card(
    names=("recorded",),
    root="recorded",
    created=0,
    capabilities=Capabilities(
        task="generate",
        max_model_len=4096,
        vocab_size=259,
        eos_token_ids=(_END,),
        logprobs=20,
        prompt_logprobs=True,
        json_schema=True,
        engine="recorded",
    ),
    max_model_len=4096,
    vocab_size=259,
    limits=Limits(),
    tool_call_parser="hermes",
    reasoning_parser="qwen3",
)
_FAILURES: dict[str, type[ApiError]] = {"internal": Internal, "unavailable": Unavailable}
_ID = re.compile(r"\b(chatcmpl|cmpl|generate|call|toolu|msg|resp|rs|fc)([-_])[0-9a-f]{24,32}\b")
_NATIVE_ID = re.compile(r'"id":"([0-9a-f]{32})(_\d+)?"')
_TIME = re.compile(r'"(created|created_at|completed_at|e2e_latency)":[\d.e-]+')

Make = Callable[[bytes], OpenExchange]


def _response(raw: bytes) -> OpenExchange:
    return Response(read_response(raw, _CARD), Past(), _CARD, stores=False)


DIALECTS: dict[str, Make] = {
    "chat_completions": lambda raw: ChatCompletion(raw, _CARD),
    "completions": lambda raw: Completion(raw, _CARD),
    "messages": lambda raw: Messages(raw, _CARD),
    "responses": _response,
    "generate": lambda raw: Generate(raw, _CARD),
    "token_generate": lambda raw: TokenGenerate(raw, _CARD),
}


@dataclass(frozen=True)
class Recording:
    """One directory."""

    path: Path

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    def streamed(self) -> bytes:
        """What the stream is now."""
        exchange = self._exchange(stream=True)
        result = Result()
        frames: list[bytes] = []
        try:
            for event in _events(exchange, self._steps):
                result.feed(event)
                frames += [sse.encode(chunk) for chunk in exchange.chunks(event)]
            last = list(exchange.last_chunks(result))
        except ApiError as error:
            last = list(exchange.error_chunks(error))
        return stable(b"".join([*frames, *(sse.encode(chunk) for chunk in last)]))

    def whole(self) -> bytes:
        """What the whole answer is now."""
        exchange = self._exchange(stream=False)
        result = Result()
        try:
            for event in _events(exchange, self._steps):
                result.feed(event)
        except ApiError as error:
            return stable(msgspec.json.encode(type(exchange).error(error)))  # pyright: ignore[reportAttributeAccessIssue]  # the dialect: it makes exchanges
        return stable(bytes_of(exchange.body(result)))

    @property
    def expected_stream(self) -> Path:
        return self.path / "expected.sse"

    @property
    def expected_whole(self) -> Path:
        return self.path / "expected.json"

    def record(self) -> None:
        self.expected_stream.write_bytes(self.streamed())
        self.expected_whole.write_bytes(self.whole() + b"\n")

    @property
    def _steps(self) -> list[dict[str, Any]]:
        return json.loads((self.path / "outputs.json").read_text(encoding="utf-8"))

    def _exchange(self, *, stream: bool) -> OpenExchange:
        body = json.loads((self.path / "request.json").read_text(encoding="utf-8"))
        if not stream:
            body.pop("stream_options", None)
        return DIALECTS[self.path.parent.name](json.dumps(body | {"stream": stream}).encode())


def recordings() -> list[Recording]:
    return [Recording(path.parent) for path in sorted(DIRECTORY.glob("*/*/request.json"))]


def _events(exchange: OpenExchange, steps: list[dict[str, Any]]) -> Iterator[Event]:
    """As the pipeline makes them. Raises the ApiError that a step is."""
    job = exchange.job
    assert isinstance(job, GenerateJob)
    tokenizer = HfTokenizer(byte_tokenizer_json())
    template = ChatTemplate(CHAT_TEMPLATE, {})
    preprocessor = Preprocessor(tokenizer, tokenizer, template, {})
    prompts = prepare_generate(preprocessor, job, _CARD, Timings()).prompts
    each = [(number, prompt) for number, prompt in enumerate(prompts) for _ in range(job.n)]
    decoders = [
        Decoder(index, job.of(number), tokenizer, prompt, (_END,)) for index, (number, prompt) in enumerate(each)
    ]
    yield Started(prompts)
    for decoder in decoders:
        yield from decoder.start()
    for step in steps:
        if "error" in step:
            raise _FAILURES[step["error"]](step["message"])
        decoder = decoders[step.get("choice", 0)]
        if not decoder.finished:
            yield from decoder.feed(_output(step))
    assert all(decoder.finished for decoder in decoders), "the engine ends every choice"


def _output(step: dict[str, Any]) -> Output:
    reason = step.get("finish_reason")
    logprobs = step.get("logprobs")
    token_ids = step["token_ids"] if "token_ids" in step else list(step["text"].encode())
    return Output(
        1,
        pack_ids(token_ids),
        None if reason is None else FinishReason[reason.upper()],
        step.get("stop_token_id"),
        None if logprobs is None else tuple(TokenLogprobs(own, tuple(map(tuple, top))) for own, top in logprobs),
    )


def stable(data: bytes) -> bytes:
    """The same bytes with ids by the order of their appearance, and times as 0."""
    names: dict[str, int] = {}
    text = _ID.sub(lambda found: f"{found[1]}{found[2]}{names.setdefault(found[0], len(names))}", data.decode())
    text = _NATIVE_ID.sub(lambda found: f'"id":"{names.setdefault(found[1], len(names))}{found[2] or ""}"', text)
    return _TIME.sub(r'"\1":0', text).encode()


def main(asked: list[str]) -> None:
    for recording in recordings():
        if not asked or recording.name in asked:
            recording.record()
            print(f"recorded {recording.name}")  # noqa: T201  # for whoever called it


if __name__ == "__main__":
    main(sys.argv[1:])
