"""The cost of a token in each dialect: from the engine's output to the bytes of an event, without a socket."""

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from apiserver.card import Card
from apiserver.events import PreparedPrompt, Result, Started
from apiserver.http import sse
from apiserver.pipeline.decode import Decoder
from apiserver.protocol.chat_completions import ChatCompletion
from apiserver.protocol.completions import Completion
from apiserver.protocol.exchange import OpenExchange
from apiserver.protocol.generate import Generate
from apiserver.protocol.messages import Messages
from apiserver.protocol.responses import Past, Response
from apiserver.protocol.responses_request import read_response
from apiserver.protocol.token_generate import TokenGenerate
from apiserver.requests import GenerateJob
from apiserver.tokenizer.byte import byte_tokenizer_json
from apiserver.tokenizer.hf import HfTokenizer
from benchlib.arguments import add_outcome, positive
from benchlib.program import run
from benchlib.report import table
from engine_bridge.wire import Capabilities, FinishReason, Output, TokenLogprobs, pack_ids

_CONTEXT = 1 << 20
_CARD = Card(
    names=("m",),
    root="m",
    created=0,
    capabilities=Capabilities(
        task="generate", max_model_len=_CONTEXT, vocab_size=259, eos_token_ids=(258,), logprobs=20, engine="bench"
    ),
    max_model_len=_CONTEXT,
    vocab_size=259,
    tool_call_parser="hermes",
    reasoning_parser="qwen3",
)
_FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5000, "stream": True}
_NATIVE = {"text": "Hi", "stream": True}
_WORDS = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. "
_CALL_BEGINS = '<tool_call>\n{"name": "weather", "arguments": {"city": "'

Make = Callable[[], OpenExchange]


def _raw(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def _response(**fields: Any) -> Response:
    raw = _raw({"input": "Hi", "stream": True, **fields})
    return Response(read_response(raw, _CARD), Past(), _CARD, stores=False)


def _ids(**sampling: Any) -> TokenGenerate:
    return TokenGenerate(_raw({"token_ids": [72], "sampling_params": sampling, "stream": True}), _CARD)


_CHAT_TOOLS = _CHAT | {"tools": [{"type": "function", "function": _FUNCTION}]}
_MESSAGE_TOOLS = _CHAT | {"tools": [{"name": "weather", "input_schema": _FUNCTION["parameters"]}]}
_CASES: list[tuple[str, str, Make]] = [
    ("chat completions", "text", lambda: ChatCompletion(_raw(_CHAT), _CARD)),
    ("chat completions", "reasoning", lambda: ChatCompletion(_raw(_CHAT), _CARD)),
    ("chat completions", "tool call", lambda: ChatCompletion(_raw(_CHAT_TOOLS), _CARD)),
    ("chat completions", "logprobs", lambda: ChatCompletion(_raw(_CHAT | {"logprobs": True}), _CARD)),
    ("completions", "text", lambda: Completion(_raw({"prompt": "Hi", "stream": True}), _CARD)),
    ("completions", "logprobs", lambda: Completion(_raw({"prompt": "Hi", "logprobs": 0, "stream": True}), _CARD)),
    ("messages", "text", lambda: Messages(_raw(_CHAT), _CARD)),
    ("messages", "reasoning", lambda: Messages(_raw(_CHAT), _CARD)),
    ("messages", "tool call", lambda: Messages(_raw(_MESSAGE_TOOLS), _CARD)),
    ("responses", "text", _response),
    ("responses", "reasoning", _response),
    ("responses", "tool call", lambda: _response(tools=[{"type": "function", **_FUNCTION}])),
    ("/generate", "text", lambda: Generate(_raw(_NATIVE), _CARD)),
    ("/generate", "logprobs", lambda: Generate(_raw(_NATIVE | {"return_logprob": True}), _CARD)),
    ("/generate, incremental", "text", lambda: Generate(_raw(_NATIVE | {"incremental_streaming_output": True}), _CARD)),
    ("/inference/v1/generate", "ids", _ids),
    ("/inference/v1/generate", "logprobs", lambda: _ids(logprobs=0)),
]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench_dialects", description=__doc__)
    parser.add_argument("--tokens", type=positive, default=256, help="tokens of an answer (%(default)s)")
    add_outcome(parser, repeat=5, plots=False)
    return run("bench_dialects", parser.parse_args(arguments), _measure, render=_render)


def _render(document: dict[str, Any]) -> str:
    rows = [[row["dialect"], row["answer"], f"{row['us']:.1f}", f"{row['bytes']:.0f}"] for row in document["rows"]]
    return table(["dialect", "answer", "CPU µs per token", "bytes per token"], rows)


async def _measure(options: argparse.Namespace) -> dict[str, Any]:
    tokenizer = HfTokenizer(byte_tokenizer_json())
    times: list[list[float]] = [[] for _ in _CASES]
    sizes = [0.0] * len(_CASES)
    for _ in range(options.repeat):
        for number, (_, answer, make) in enumerate(_CASES):
            seconds, size = _stream(make(), _outputs(answer, options.tokens), tokenizer)
            times[number].append(seconds / options.tokens)
            sizes[number] = size / options.tokens
    rows = [
        {"dialect": dialect, "answer": answer, "us": 1e6 * median(taken), "bytes": size}
        for (dialect, answer, _), taken, size in zip(_CASES, times, sizes, strict=True)
    ]
    return {"rows": rows}


def _outputs(answer: str, count: int) -> list[Output]:
    """One token a step, all of the kind that is measured; what only opens it comes first, and is measured with it."""
    begins = {"reasoning": "<think>\n", "tool call": _CALL_BEGINS}.get(answer, "")
    token_ids = [*begins.encode(), *(_WORDS * (count // len(_WORDS) + 1)).encode()][:count]
    logprobs = (TokenLogprobs(-0.5),) if answer == "logprobs" else None
    outputs = [Output(1, pack_ids([token_id]), None, None, logprobs) for token_id in token_ids[:-1]]
    return [*outputs, Output(1, pack_ids(token_ids[-1:]), FinishReason.LENGTH, None, logprobs)]


def _stream(exchange: OpenExchange, outputs: Sequence[Output], tokenizer: HfTokenizer) -> tuple[float, int]:
    """CPU seconds and bytes from the first output to the stream's end, as the endpoint makes it."""
    job = exchange.job
    assert isinstance(job, GenerateJob)
    prompt = PreparedPrompt.of([72], "Hi")
    decoder = Decoder(0, job, tokenizer, prompt, (258,))
    result = Result()
    started = Started([prompt])
    result.feed(started)
    size = sum(len(sse.encode(chunk)) for chunk in exchange.chunks(started))
    gc.collect()
    began = time.process_time()
    for output in outputs:
        for event in decoder.feed(output):
            result.feed(event)
            for chunk in exchange.chunks(event):
                size += len(sse.encode(chunk))
    seconds = time.process_time() - began
    size += sum(len(sse.encode(chunk)) for chunk in exchange.last_chunks(result))
    return seconds, size
