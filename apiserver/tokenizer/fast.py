"""The `fastokens` encoder: byte-level and byte-fallback BPE at ten times the speed, with equal ids.

It only encodes; decoding stays with `tokenizers`. Equality is never assumed: `apiserver.tokenizer.probe` compares the
two on the very tokenizer.json before this is used. Its first call builds tables (0.1 to 0.4 s, 40 MB), so it is made
and warmed before the fork; FASTOKENS_BPE_THREADS=1, which launch sets, keeps it from starting a thread there.
"""

from importlib.metadata import version
from typing import Literal

from fastokens import Tokenizer as Backend  # pyright: ignore[reportMissingTypeStubs]  # its stubs cover _native

FASTOKENS_VERSION = version("fastokens")


class FastEncoder:
    """See `apiserver.tokenizer.Encoder`. Raises ValueError for a tokenizer that fastokens cannot do (WordPiece, …)."""

    name = "fastokens"

    def __init__(self, tokenizer_json: str) -> None:
        backend = Backend.from_json_str(tokenizer_json)
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # Said each time: its default leaves BOS out, tokenizers' default puts it in.
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_packed(self, text: str, *, add_special_tokens: bool) -> bytes:
        return self._backend.encode_batch_flat([text], add_special_tokens=add_special_tokens)[0]

    def encode_truncated(
        self, text: str, *, add_special_tokens: bool, most: int, side: Literal["left", "right"]
    ) -> list[int]:
        encoding = self._backend.encode(text, add_special_tokens=False)
        special = self._backend.num_special_tokens_to_add(is_pair=False) if add_special_tokens else 0
        ids = encoding.ids
        room = max(0, most - special)
        ids = ids[max(0, len(ids) - room) :] if side == "left" else ids[:room]
        if not add_special_tokens:
            return ids
        return self._backend.post_process(type(encoding)(ids), add_special_tokens=True).ids
