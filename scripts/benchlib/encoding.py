"""What encoding a text costs: `tokenizers` in its two ways and fastokens, on any `tokenizer.json`.

Every prompt is new to every backend (they remember words, so a text seen before is cheap), and the backends take turns
within each repetition. Times are of one call at a time on this thread; CPU is this whole process's, since fastokens
works with threads of its own. Ids are compared with what `Tokenizer.encode` gives, for every prompt and for strings
made of what goes wrong: white space in runs, numbers, scripts without spaces, combining characters, emoji.
"""

import argparse
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchlib import program, texts
from benchlib.arguments import add_outcome, list_of, one_of, positive
from benchlib.encoding_backends import BACKENDS, Encode, load, load_reference
from benchlib.encoding_report import panels, render
from benchlib.report import Progress
from benchlib.tokenizer_files import TOKENIZER_JSON, find_tokenizer

_CALLS = {1_000: 200, 10_000: 40}  # of prompts below so many tokens; of longer ones:
_CALLS_FOR_LONG = 6
_AWKWARD_STRINGS = 400
_ALPHABETS = (
    *("abcdefgh ", " \n\t\r", "0123456789.,", "\u00a0\u3000\u2028\ufeff", "'\"()[]{}<>|_-/\\", "äöüßéèñ"),
    *("中文字符。日本語", "한국어ไทย", "مرحبا\u200f", "e\u0301\u0306ﬁﬀ\u212b", "🎉👍🏽\u200d\ufe0f🇩🇪"),
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="bench_tokenize", description="What encoding a text costs, by backend.")
    parser.add_argument(
        "tokenizers",
        nargs="*",
        default=["qwen3", "minilm"],
        metavar="TOKENIZER",
        help=f"qwen3, minilm, a {TOKENIZER_JSON} or a directory with one (default: qwen3 minilm)",
    )
    parser.add_argument(
        "--backends",
        type=list_of(one_of(*BACKENDS)),
        default=[*BACKENDS],
        metavar="NAME,…",
        help=f"default {','.join(BACKENDS)}",
    )
    parser.add_argument(
        "--tokens", type=list_of(positive), default=[16, 256, 36_000], metavar="N,…", help="default 16,256,36000"
    )
    parser.add_argument("--calls", type=positive, metavar="N", help="per run (default: 200, of long prompts fewer)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    add_outcome(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a backend gave other ids than `tokenizers`."""

    def has_failed(document: program.Document) -> bool:
        return any(entry["mismatches"] for entry in document["results"])

    return program.run("bench_tokenize", parse(arguments), bench, render=render, panels=panels, has_failed=has_failed)


async def bench(options: argparse.Namespace) -> program.Document:
    """Every tokenizer; each result is one backend at one length."""
    results: list[dict[str, Any]] = []
    notes: list[str] = []
    for source in options.tokenizers:
        directory = find_tokenizer(source)
        if directory is None:
            raise ValueError("a token a byte is no tokenizer to measure")
        name = source if "/" not in source else directory.resolve().name
        found, said = _measure(options, name, directory / TOKENIZER_JSON)
        results += found
        notes += said
    return {"results": results, "notes": notes}


def _measure(options: argparse.Namespace, name: str, path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    backends, notes = load(path, options.backends)
    reference = load_reference(path)
    rng = random.Random(options.seed)
    awkward = awkward_strings(rng, _AWKWARD_STRINGS)
    always = {backend: _mismatches(encode, reference.ids, awkward) for backend, encode in backends.items()}
    results: list[dict[str, Any]] = []
    for tokens in options.tokens:
        runs: dict[str, list[_Run]] = {backend: [] for backend in backends}
        mismatches = dict(always)
        calls = options.calls or next((calls for below, calls in _CALLS.items() if tokens < below), _CALLS_FOR_LONG)
        with Progress(f"{name}, {tokens} tokens", total=options.repeat * len(backends)) as progress:
            for _ in range(options.repeat):
                prompts = [texts.shuffled(rng, tokens, reference.offsets) for _ in range(calls)]
                for backend, encode in backends.items():
                    runs[backend].append(_time(encode, prompts))
                    progress.advance()
                    mismatches[backend] += _mismatches(encode, reference.ids, prompts)
        results += [
            {
                "tokenizer": name,
                "backend": backend,
                "tokens": tokens,
                "median": {
                    "median_seconds": statistics.median(run.median_seconds for run in of),
                    "min_seconds": min(run.min_seconds for run in of),
                    "cpu_seconds": statistics.median(run.cpu_seconds for run in of),
                },
                "calls": calls,
                "mismatches": mismatches[backend],
                "compared": len(awkward) + options.repeat * calls,
            }
            for backend, of in runs.items()
        ]
    return results, [f"{name}: {note}" for note in notes]


class _Run:
    """One pass over the prompts: seconds per call."""

    def __init__(self, seconds: Sequence[float], cpu_seconds: float) -> None:
        self.median_seconds = statistics.median(seconds)
        self.min_seconds = min(seconds)
        self.cpu_seconds = cpu_seconds / len(seconds)


def _time(encode: Encode, prompts: Sequence[str]) -> _Run:
    seconds: list[float] = []
    cpu_began = process_time()
    for prompt in prompts:
        began = perf_counter()
        encode(prompt)
        seconds.append(perf_counter() - began)
    return _Run(seconds, process_time() - cpu_began)


def _mismatches(encode: Encode, reference: Callable[[str], list[int]], strings: Sequence[str]) -> int:
    return sum(encode(string) != reference(string) for string in strings)


def awkward_strings(rng: random.Random, count: int) -> list[str]:
    """Short strings that mix what tokenizers treat differently."""
    return ["".join(rng.choice(rng.choice(_ALPHABETS)) for _ in range(rng.randrange(1, 80))) for _ in range(count)]
