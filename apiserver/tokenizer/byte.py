"""A tokenizer in code: token id b is byte b, for b below 256, and three ChatML control tokens follow.

Any byte sequence can be written down as ids, half characters and invalid UTF-8 included, so the `sim` engine can say
whatever a test wants it to say, and nothing has to be downloaded to start a pool.
"""

import json
from collections.abc import Iterator

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
SPECIAL_TOKENS = {END_OF_TEXT: 256, IM_START: 257, IM_END: 258}

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def byte_tokenizer_json() -> str:
    """The tokenizer as the text of a `tokenizer.json`: byte-level BPE without a single merge."""
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [_special(content, token_id) for content, token_id in SPECIAL_TOKENS.items()],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": False,
                "use_regex": True,  # words bound the cost of a lookup; without merges they change no id
            },
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": dict(zip(_byte_characters(), range(256), strict=True)),
                "merges": [],
            },
        },
        ensure_ascii=False,
    )


def _special(content: str, token_id: int) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": content, **flags}


def _byte_characters() -> Iterator[str]:
    """How byte-level BPE spells each byte in its vocabulary: itself where printable, else the next free character."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    for byte in range(256):
        yield chr(byte if byte in printable else next(spare))
