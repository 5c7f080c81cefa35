"""In the byte tokenizer ids are bytes, whatever the bytes are."""

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from apiserver.tokenizer.byte import CHAT_TEMPLATE, SPECIAL_TOKENS, byte_tokenizer_json
from apiserver.tokenizer.template import ChatTemplate

TOKENIZER = Tokenizer.from_str(byte_tokenizer_json())


@pytest.mark.parametrize(
    "text", ["", "Hello, world!", "  a\n\n\tb ", "naïve Ünïcode 漢字 🦙", "".join(map(chr, range(256)))]
)
def test_ids_are_bytes(text: str) -> None:
    assert TOKENIZER.encode(text).ids == list(text.encode())
    assert TOKENIZER.decode(list(text.encode())) == text


def test_every_byte_has_an_id() -> None:
    for byte in range(256):
        assert TOKENIZER.decode([byte]) == bytes([byte]).decode(errors="replace")
    assert TOKENIZER.get_vocab_size() == 256 + len(SPECIAL_TOKENS)


def test_half_characters_stream() -> None:
    stream = DecodeStream()
    pieces = [stream.step(TOKENIZER, byte) for byte in "é🦙".encode()]
    assert pieces == [None, "é", None, None, None, "🦙"]


def test_special_tokens_follow_the_bytes() -> None:
    for content, token_id in SPECIAL_TOKENS.items():
        assert TOKENIZER.encode(f"a{content}").ids == [97, token_id]
        assert TOKENIZER.decode([97, token_id]) == "a"
        assert TOKENIZER.decode([97, token_id], skip_special_tokens=False) == f"a{content}"


def test_the_template_is_chatml() -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    prompt = ChatTemplate(CHAT_TEMPLATE, {}).render(
        messages, tools=None, add_generation_prompt=True, continue_final_message=False, variables={}
    )
    assert prompt == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
