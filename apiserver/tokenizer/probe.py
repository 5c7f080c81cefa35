"""`python -m apiserver.tokenizer.probe TOKENIZER_JSON`: does fastokens give the ids that `tokenizers` gives?

Run in a child process at the start, since the first encode of either may start threads and the parent forks. Prints one
line: "agree", or why not. The strings are those where pre-tokenizers, normalizers and merges go wrong: white space in
runs, numbers, contractions, CJK without spaces, combining and compatibility characters, emoji with joiners, controls,
code, long runs, and every added token in text. Truncated too, which goes other ways in both.
"""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Literal

from apiserver.tokenizer.fast import FastEncoder
from apiserver.tokenizer.hf import HfTokenizer
from engine_bridge.wire import unpack_ids

AGREE = "agree"
PROBE_VERSION = 3  # raise it when the strings change: old verdicts are then asked again
_CHILD_SECONDS = 120
_MOST_IN_CONTEXT = 128  # added tokens; some models have a thousand, all alike

Cut = tuple[int, Literal["left", "right"]]
_CUTS: tuple[Cut, ...] = ((1, "left"), (1, "right"), (7, "left"), (7, "right"), (4096, "right"))

_TEXTS = (
    "Hello, world! It's 12,345.678 o'clock; they'LL go won't they?",
    "  leading, trailing  ",
    "\n\n\r\n\t tabs\tand\u00a0no-break\u3000ideographic  spaces \n \n",
    "def f(x: int) -> list[str]:\n    return [str(i) for i in range(x)]  # comment\n\n\nclass A:\n\tpass\n",
    "0 1 12 123 1234 12345 0x1F 1e-9 ３４５ ٣٤٥ Ⅷ ½",
    "你好，世界。これはテストです。한국어 문장입니다 ภาษาไทยไม่มีช่องว่าง",
    "Grüße ça и\u0306 й e\u0301 é Å Å ﬁ ﬀ Ω Ω ℌ ḍ̇ ḍ̇",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇫🇷 ☺️ 🎉🎉🎉",
    "مرحبا بالعالم \u200f שלום עולם \u202eabc\u202c",
    "a\u0000b\u0001c\u007fd\u0085e\u2028f\u2029g\ufeffh\ufffdi",
    "https://example.com/a/b?c=d&e=%20#f user@example.com C:\\path\\to\\file",
    '{"key": [1, 2.5, null, true], "text": "a \\"quoted\\" \\u00e9"}',
    "a" * 300,
    " " * 120,
    "\n" * 60,
    "=" * 80 + "-" * 80 + "_" * 40,
    "aaaaabbbbbaaaaabbbbb" * 20,
    "The quick brown fox jumps over the lazy dog. " * 30,
)


class NoVerdict(Exception):
    """The comparison could not be made; another time it may be. The message is one line."""


def disagreement(tokenizer_json: str) -> str | None:
    """None if they agree on every string, with and without special tokens, whole and truncated; else what differs."""
    try:
        fast = FastEncoder(tokenizer_json)
    except Exception as error:
        return f"fastokens cannot load it: {_first_line(error)}"
    reference = HfTokenizer(tokenizer_json)
    for text in _strings(_added_tokens(tokenizer_json)):
        for add_special_tokens in (False, True):
            if not _is_equal(fast, reference, text, add_special_tokens):
                return f"the ids differ for {text[:60]!r} (add_special_tokens={add_special_tokens})"
    for text in _TEXTS:
        for most, side in _CUTS:
            cut = [
                encoder.encode_truncated(text, add_special_tokens=True, most=most, side=side)
                for encoder in (fast, reference)
            ]
            if cut[0] != cut[1]:
                return f"the ids differ for {text[:60]!r} (truncated to {most}, {side})"
    return None


def _is_equal(fast: FastEncoder, reference: HfTokenizer, text: str, add_special_tokens: bool) -> bool:
    try:
        token_ids = fast.encode(text, add_special_tokens=add_special_tokens)
        packed = fast.encode_packed(text, add_special_tokens=add_special_tokens)
    except Exception:  # whatever stops fastokens here would fail a client's request
        return False
    return token_ids == unpack_ids(packed) == reference.encode(text, add_special_tokens=add_special_tokens)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _added_tokens(tokenizer_json: str) -> list[str]:
    """Special or not: those that are found in the text before anything else happens to it."""
    return [token["content"] for token in json.loads(tokenizer_json).get("added_tokens") or ()]


def _strings(added: list[str]) -> list[str]:
    source = random.Random(20)
    in_context = added if len(added) <= _MOST_IN_CONTEXT else source.sample(added, _MOST_IN_CONTEXT)
    around = [f"before{token}after {token} \n{token}, {token.upper()} {token.lower()}." for token in in_context]
    alphabets = (
        "abcdefgh ",
        " \n\t\r",
        "0123456789.,",
        "äöüßéèñ",
        "中文字符。，",
        "🎉👍🏽\u200d\ufe0f",
        "'\"()[]{}<>|_-",
    )
    mixed = [
        "".join(source.choice(source.choice(alphabets)) for _ in range(source.randrange(1, 80))) for _ in range(400)
    ]
    anything = [
        "".join(
            chr(source.choice((source.randrange(32, 0xD800), source.randrange(0xE000, 0x1FFFF)))) for _ in range(20)
        )
        for _ in range(100)
    ]
    return [*_TEXTS, *added, *around, *mixed, *anything]


def probe(tokenizer_json: Path) -> str | None:
    """`disagreement` in a child process: None if fastokens may be used for this file. Raises NoVerdict."""
    command = [sys.executable, "-m", "apiserver.tokenizer.probe", str(tokenizer_json)]
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_CHILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NoVerdict(f"comparing fastokens with tokenizers took more than {_CHILD_SECONDS} s") from error
    lines = child.stdout.strip().splitlines()
    if child.returncode != 0 or not lines:
        raise NoVerdict(f"comparing fastokens with tokenizers ended with status {child.returncode}")
    return None if lines[-1] == AGREE else lines[-1]


def main() -> int:
    reason = disagreement(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write(f"{reason or AGREE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
