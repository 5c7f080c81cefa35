"""A tokenizer written into a GGUF file and converted back gives the same ids."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from apiserver.tokenizer.gguf_pretokenizers import PRE_TOKENIZERS
from apiserver.tokenizer.gguf_tokenizer import GGUFError, convert_gguf

CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CL100K = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def splits(*patterns: str) -> pre_tokenizers.PreTokenizer:
    """As models' own tokenizer.json files have it: each pattern isolated, then bytes."""
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL])
# What the models behind each name use; the others in the table are of the same families.
REFERENCES: dict[str, tuple[pre_tokenizers.PreTokenizer, bool]] = {
    "gpt-2": (BYTE_LEVEL, False),
    "olmo": (BYTE_LEVEL, True),
    "smollm": (DIGITS, False),
    "starcoder": (DIGITS, False),
    "command-r": (DIGITS, True),
    "llama-bpe": (splits(CL100K), False),
    "llama3": (splits(CL100K), False),
    "dbrx": (splits(CL100K), False),
    "glm4": (splits(CL100K), False),
    "qwen2": (splits(QWEN2), True),
    "gpt-4o": (splits(O200K), False),
    "llama4": (splits(O200K), False),
    "deepseek-v3": (splits(*DEEPSEEK_V3), False),
}
CORPUS = [
    "The quick brown fox jumps over the lazy dog's back, and we'll see it isn't THERE'S anything 12345 67.",
    "def main(argv: list[str]) -> int:\n    return sum(int(a) for a in argv)  # 100 %\n\n\n",
    "Größe, naïveté, señor; Привет, мир! こんにちは世界。漢字かな交じり文 안녕하세요 สวัสดี مرحبا 🦙🦙",
    '<tool_call>{"name": "x"}</tool_call> http://example.org/a/b?c=d&e=f  \t tabs\r\nand   spaces   ',
] * 4
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<tool>", "</tool>"]


def train(pre_tokenizer: pre_tokenizers.PreTokenizer, *, nfc: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(USER_DEFINED)
    return tokenizer


def write_gguf(path: Path, tokenizer: Tokenizer, pre: str | None, *, model: str = "gpt2", **values: Any) -> Path:
    document = json.loads(tokenizer.to_str())
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    special = {entry["id"]: entry["special"] for entry in document["added_tokens"]}
    kinds = {True: gguf.TokenType.CONTROL, False: gguf.TokenType.USER_DEFINED, None: gguf.TokenType.NORMAL}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([kinds[special.get(token_id)] for token_id in range(len(tokens))])
    writer.add_token_merges([" ".join(merge) for merge in document["model"]["merges"]])
    for name, value in values.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def strings() -> Iterator[str]:
    yield from CORPUS[:4]
    yield from [
        "",
        " ",
        "\n",
        "é",
        "e\u0301",
        "½ ٣٤ ⅷ x²",
        "don't DON'T Don\u2019t",
        "a" * 50,
        " " * 33 + "x",
        "\u00a0\u3000",
    ]
    generator = random.Random(7)
    words = [
        *"".join(CORPUS[:4]).split(),
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "1",
        "12",
        "'s",
        "é",
        "漢",
        "🦙",
        *SPECIALS,
        "<tool>",
    ]
    for _ in range(150):
        yield "".join(generator.choice(words) for _ in range(generator.randint(1, 12)))
    for _ in range(100):
        yield "".join(
            chr(generator.choice((generator.randrange(32, 0xD800), generator.randrange(32, 256)))) for _ in "12345678"
        )


@pytest.mark.parametrize("pre", REFERENCES)
def test_ids_survive_the_conversion(pre: str, tmp_path: Path) -> None:
    pre_tokenizer, nfc = REFERENCES[pre]
    original = train(pre_tokenizer, nfc=nfc)
    converted = convert_gguf(write_gguf(tmp_path / "x.gguf", original, pre, add_bos_token=False))
    tokenizer = Tokenizer.from_str(converted.tokenizer_json)
    for text in strings():
        ids = original.encode(text).ids
        assert tokenizer.encode(text).ids == ids
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == original.decode(ids, skip_special_tokens=skip)
    assert converted.vocab_size == original.get_vocab_size()


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_known_pre_tokenizer_loses_nothing(pre: str, tmp_path: Path) -> None:
    converted = convert_gguf(write_gguf(tmp_path / "x.gguf", train(BYTE_LEVEL, nfc=False), pre, add_bos_token=False))
    tokenizer = Tokenizer.from_str(converted.tokenizer_json)
    for text in CORPUS[:4]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    return train(DIGITS, nfc=False)


def test_the_facts_come_along(smollm: Tokenizer, tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "x.gguf",
        smollm,
        "smollm",
        chat_template="{{ messages }}",
        bos_token_id=1,
        eos_token_id=2,
        unk_token_id=0,
        pad_token_id=2,
        add_bos_token=False,
    )
    converted = convert_gguf(path)
    assert converted.chat_template == "{{ messages }}"
    assert converted.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert converted.eos_token_ids == (2, 0)  # its own, and one that llama.cpp knows by its text
    assert converted.model_max_length == 2048
    assert not converted.add_bos


def test_the_facts_may_be_absent(smollm: Tokenizer, tmp_path: Path) -> None:
    converted = convert_gguf(write_gguf(tmp_path / "x.gguf", smollm, "smollm"))
    assert converted.chat_template is None
    assert converted.special_tokens == {}
    assert not converted.add_bos


@pytest.mark.parametrize(
    ("pre", "flags", "before", "after"),
    [
        ("smollm", {"add_bos_token": True}, [1], []),
        ("smollm", {"add_bos_token": False}, [], []),
        ("smollm", {}, [], []),
        ("llama-bpe", {}, [1], []),
        ("llama-bpe", {"add_bos_token": False}, [], []),
        ("smollm", {"add_bos_token": True, "add_eos_token": True}, [1], [2]),
    ],
)
def test_bos_and_eos_are_added_where_the_file_says_so(
    smollm: Tokenizer, tmp_path: Path, pre: str, flags: dict[str, Any], before: list[int], after: list[int]
) -> None:
    converted = convert_gguf(write_gguf(tmp_path / "x.gguf", smollm, pre, bos_token_id=1, eos_token_id=2, **flags))
    tokenizer = Tokenizer.from_str(converted.tokenizer_json)
    plain = tokenizer.encode("hello", add_special_tokens=False).ids
    assert tokenizer.encode("hello").ids == [*before, *plain, *after]
    assert converted.add_bos == (before != [])


def test_in_harmony_end_ends_a_channel_only(tmp_path: Path) -> None:
    tokenizer = train(splits(O200K), nfc=False)
    tokenizer.add_special_tokens(["<|return|>", "<|call|>", "<|end|>"])
    converted = convert_gguf(write_gguf(tmp_path / "x.gguf", tokenizer, "gpt-4o", eos_token_id=0))
    ends = [tokenizer.token_to_id(text) for text in ("<|endoftext|>", "<|im_end|>", "<|return|>", "<|call|>")]
    assert converted.eos_token_ids == tuple(ends)


@pytest.mark.parametrize(
    ("pre", "model", "match"),
    [
        ("smollm", "llama", "model 'llama' cannot be converted, only byte-level BPE; pass --tokenizer"),
        ("smollm", "bert", "model 'bert' cannot be converted"),
        ("kimi-k2", "gpt2", "the GGUF pre-tokenizer 'kimi-k2' is not known; pass --tokenizer"),
        (None, "gpt2", r"has no tokenizer\.ggml\.pre; pass --tokenizer"),
    ],
)
def test_others_are_refused_with_the_remedy(
    smollm: Tokenizer, tmp_path: Path, pre: str | None, model: str, match: str
) -> None:
    with pytest.raises(GGUFError, match=match):
        convert_gguf(write_gguf(tmp_path / "x.gguf", smollm, pre, model=model))


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a GGUF file, but long enough to look at" * 9])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(GGUFError, match="cannot be read as a GGUF file"):
        convert_gguf(tmp_path / "x.gguf")
