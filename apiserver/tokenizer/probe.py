"""`python -m apiserver.tokenizer.probe TOKENIZER_JSON`: does fastokens give the ids that `tokenizers` gives?

Run in a child process at the start, since the first encode of either may start threads and the parent forks. Prints one
line: "agree", or why not. The strings are those where pre-tokenizers, normalizers and merges go wrong: white space in
runs, numbers, contractions, CJK without spaces, combining and compatibility characters, emoji with joiners, controls,
code, long runs, and every special token in text.
"""

import random
import subprocess
import sys
from pathlib import Path

from apiserver.tokenizer.fast import FastEncoder
from apiserver.tokenizer.hf import HfTokenizer

AGREE = "agree"
PROBE_VERSION = 1  # raise it when the strings change: old verdicts are then asked again
_CHILD_SECONDS = 120

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


def disagreement(tokenizer_json: str) -> str | None:
    """None if they agree on every string, with and without special tokens; else what differs."""
    try:
        fast = FastEncoder(tokenizer_json)
    except Exception as error:
        return f"fastokens cannot load it: {str(error).splitlines()[0][:200] if str(error) else type(error).__name__}"
    reference = HfTokenizer(tokenizer_json)
    for text in _strings(reference):
        for add_special_tokens in (False, True):
            expected = reference.encode(text, add_special_tokens=add_special_tokens)
            if fast.encode(text, add_special_tokens=add_special_tokens) != expected:
                return f"the ids differ for {text[:60]!r} (add_special_tokens={add_special_tokens})"
    return None


def _strings(reference: HfTokenizer) -> list[str]:
    source = random.Random(20)
    special = [reference.decode([token_id], skip_special_tokens=False) for token_id in sorted(reference.special_ids)]
    around = [f"before{token}after {token} \n{token}" for token in special[:64]]
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
    return [*_TEXTS, *special, *around, *mixed, *anything]


def probe(tokenizer_json: Path) -> str | None:
    """`disagreement` in a child process: None if fastokens may be used for this file."""
    command = [sys.executable, "-m", "apiserver.tokenizer.probe", str(tokenizer_json)]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"the comparison took more than {_CHILD_SECONDS} s"
    lines = child.stdout.strip().splitlines() or [f"the comparison ended with status {child.returncode}"]
    return None if child.returncode == 0 and lines[-1] == AGREE else lines[-1]


def main() -> int:
    reason = disagreement(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write(f"{reason or AGREE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
