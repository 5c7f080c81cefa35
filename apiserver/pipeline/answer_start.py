"""How a prompt ends, as the parsers of its answer want to know it."""

from apiserver.events import PreparedPrompt
from apiserver.requests import Structure
from apiserver.tokenizer import Tokenizer

_TOKENS = 16
_CHARACTERS = 64  # more than a tag and the white space around it have


def prompt_end(structure: Structure, tokenizer: Tokenizer, prompt: PreparedPrompt) -> str:
    """Special tokens included; nothing where no reasoning is looked for."""
    if structure.reasoning is None:
        return ""
    if prompt.text is not None:
        return prompt.text[-_CHARACTERS:]
    return tokenizer.decode(prompt.token_ids[-_TOKENS:], skip_special_tokens=False)
