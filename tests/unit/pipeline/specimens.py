"""Small tokenizers of every decoder family, made in code. Each has one special token and a few added ones."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from apiserver.tokenizer.byte import byte_tokenizer_json
from apiserver.tokenizer.hf import HfTokenizer

SPECIAL = "<|end|>"
ADDED = ["two words", "Ünï▁🎉", "é"]
CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog did not mind; the fox did it again and again.",
    "Der schnelle Fuchs springt über den trägen Hund. Schöne Grüße aus Köln!",
    "敏捷的棕色狐狸跳过了懒狗。狗并不介意，狐狸又跳了一次。",
    "быстрая лиса прыгает через ленивую собаку",
    "👍🏽 👩‍👩‍👧 🎉🎉🎉 🇩🇪 é ñ",
    "def f(x):\n    return x + 1\n\n\nprint(f(2))\n",
] * 3


class Specimen(NamedTuple):
    """A tokenizer as we have it, and the reference behind it."""

    ours: HfTokenizer
    backend: Tokenizer

    def ids(self, *tokens: str) -> list[int]:
        """The ids of these very tokens."""
        vocabulary = self.backend.get_vocab()
        return [vocabulary[token] for token in tokens]


def _finished(backend: Tokenizer) -> Specimen:
    backend.add_special_tokens([SPECIAL])
    backend.add_tokens([AddedToken(token, special=False) for token in ADDED])
    return Specimen(HfTokenizer(backend.to_str()), backend)


def _byte_level() -> Specimen:
    """The built-in one: an id is a byte."""
    return _finished(Tokenizer.from_str(byte_tokenizer_json()))


def _merged_byte_level() -> Specimen:
    """As GPT-2, Llama 3 and Qwen have it: tokens are whole words, characters and parts of characters."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=2
    )
    backend.train_from_iterator(CORPUS, trainer)
    return _finished(backend)


def _byte_fallback(*, strip: bool) -> Specimen:
    """As Llama 2 and Mistral (`strip`) and Gemma have it: pieces with a word mark, and bytes for what has no piece."""
    backend = _pieces()
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strip:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return _finished(backend)


def _odd_byte_fallback() -> Specimen:
    """Bytes in a sequence of steps that no fast path knows."""
    backend = _pieces()
    backend.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    return _finished(backend)


def _odd_byte_level() -> Specimen:
    """Byte level, but behind a step that no fast path knows."""
    backend = Tokenizer.from_str(byte_tokenizer_json())
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("\t", "    ")])
    return _finished(backend)


def _metaspace() -> Specimen:
    """As T5 has it: the first word mark of the text means nothing."""
    pieces = [("<unk>", 0.0), *((piece, -1.0) for piece in [*_words(), "�", "�▁", "▁�"])]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return _finished(backend)


def _word_piece() -> Specimen:
    """As BERT has it: pieces that go on are marked, every other one gets a space before it."""
    pieces = ["[UNK]", *_letters(), "##ing", "##ed", "the", "dog", "don", "'", "t", ".", ",", "�", "##�", "##"]
    backend = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return _finished(backend)


def _word_ends() -> Specimen:
    """As CLIP has it: what ends a word is marked, except at the text's end."""
    pieces = ["<unk>", *_letters(), *(f"{letter}</w>" for letter in "abcdefgü界"), "low", "low</w>", "er</w>"]
    backend = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    backend.decoder = decoders.BPEDecoder()
    return _finished(backend)


def _undecoded() -> Specimen:
    """Without a decoder, tokens are joined with spaces."""
    return _finished(Tokenizer(models.WordLevel({word: n for n, word in enumerate(["[UNK]", *_words()])}, "[UNK]")))


def _pieces() -> Tokenizer:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *_words(), "", "<0x٣٤>", "<0x-5>", "<0xgg>", "�"]
    return Tokenizer(
        models.BPE(
            {token: number for number, token in enumerate(dict.fromkeys(tokens))},
            [],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )


def _words() -> Iterable[str]:
    return ["▁", "▁▁", *_letters(), "▁the", "▁dog", "▁世", "界", "ing", "▁.", "\n", " ", "▁🎉", "e\u0301"]


def _letters() -> Iterable[str]:
    return "abcdefghijklmnopqrstuvwxyzÜüé世"


SPECIMENS: dict[str, Specimen] = {
    "byte level": _byte_level(),
    "merged byte level": _merged_byte_level(),
    "byte fallback": _byte_fallback(strip=True),
    "byte fallback, nothing stripped": _byte_fallback(strip=False),
    "odd byte fallback": _odd_byte_fallback(),
    "odd byte level": _odd_byte_level(),
    "metaspace": _metaspace(),
    "word piece": _word_piece(),
    "word ends": _word_ends(),
    "undecoded": _undecoded(),
}
