"""How a prompt ends, as the parsers of its answer want to know it."""

from apiserver.events import PreparedPrompt
from apiserver.requests import Structure
from apiserver.tokenizer import Tokenizer
from engine_bridge.wire import ID_BYTES, unpack_ids

_TOKENS = 16
_CHARACTERS = 64  # more than a tag and the white space around it have


def prompt_end(structure: Structure, tokenizer: Tokenizer, prompt: PreparedPrompt) -> str:
    """Special tokens included; nothing where no reasoning is looked for."""
    if structure.reasoning is None:
        return ""
    if prompt.text is not None:
        return prompt.text[-_CHARACTERS:]
    last = unpack_ids(prompt.packed[-_TOKENS * ID_BYTES :])
    return tokenizer.decode(last, skip_special_tokens=False)
