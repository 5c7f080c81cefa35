"""Label texts become the tokens that they would be behind the prompt, and nothing else."""

import pytest

from apiserver.errors import InvalidRequest
from apiserver.events import PreparedPrompt
from apiserver.pipeline.labels import LabelFinder
from apiserver.pipeline.preprocess import Preprocessor
from apiserver.tokenizer.hf import HfTokenizer
from tests.real_tokenizers import tokenizer_json

LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Counting(HfTokenizer):
    """Remembers how many characters it has encoded."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.characters = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.characters += len(text)
        return super().encode(text, add_special_tokens=add_special_tokens)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Counting]:
    return {name: Counting(tokenizer_json(name)) for name in ("smollm2", "mistral", "minilm")}


def prepared(tokenizer: Counting, text: str) -> PreparedPrompt:
    return PreparedPrompt.of(tokenizer.encode(text, add_special_tokens=False), text)


PROMPTS = {
    "smollm2": "<|im_start|>user\nIs it?<|im_end|>\n<|im_start|>assistant\n",
    "mistral": "<s>[INST] Is it? [/INST]",
    "minilm": "is it ? answer :",
}


@pytest.mark.parametrize("name", ["smollm2", "minilm"])
@pytest.mark.parametrize("labels", [LETTERS, tuple("0123456789"), ("yes", "no")])
def test_a_label_is_what_it_becomes_behind_the_whole_prompt(
    tokenizers: dict[str, Counting], name: str, labels: tuple[str, ...]
) -> None:
    tokenizer = tokenizers[name]
    labels = tuple(label.lower() for label in labels) if name == "minilm" else labels
    prompt = prepared(tokenizer, PROMPTS[name])
    found = LabelFinder(Preprocessor(tokenizer, tokenizer, None, {})).find(prompt, "q", labels)
    for label, token_id in zip(labels, found, strict=True):
        whole = tokenizer.encode(PROMPTS[name] + " " * (name == "minilm") + label, add_special_tokens=False)
        assert whole == [*prompt.token_ids, token_id]


def test_many_prompts_that_end_alike_cost_little_more_than_one(tokenizers: dict[str, Counting]) -> None:
    tokenizer = tokenizers["smollm2"]
    prompts = [prepared(tokenizer, f"{'word ' * 500}{number} {PROMPTS['smollm2']}") for number in range(20)]
    finder = LabelFinder(Preprocessor(tokenizer, tokenizer, None, {}))
    before = tokenizer.characters
    assert len({finder.find(prompt, "q", LETTERS) for prompt in prompts}) == 1
    assert tokenizer.characters - before < 26 * 200, "the tail alone, and once for all of them"


def test_a_prompt_whose_end_does_not_stand_alone_is_looked_at_as_a_whole(tokenizers: dict[str, Counting]) -> None:
    """sentencepiece puts a space before what it takes for a text's beginning."""
    tokenizer = tokenizers["mistral"]
    prompt = prepared(tokenizer, "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fif")
    finder = LabelFinder(Preprocessor(tokenizer, tokenizer, None, {}))
    with pytest.raises(InvalidRequest):
        finder.find(prompt, "q", ("teen sixteen",))
    (token_id,) = finder.find(prompt, "q", (":",))
    assert tokenizer.encode(f"{prompt.text}:", add_special_tokens=False) == [*prompt.token_ids, token_id]


@pytest.mark.parametrize("labels", [("yes", "yes"), ("antidisestablishmentarianism",), ("",)])
def test_labels_must_be_one_token_and_different(tokenizers: dict[str, Counting], labels: tuple[str, ...]) -> None:
    tokenizer = tokenizers["smollm2"]
    finder = LabelFinder(Preprocessor(tokenizer, tokenizer, None, {}))
    with pytest.raises(InvalidRequest, match="not one token") as raised:
        finder.find(prepared(tokenizer, PROMPTS["smollm2"]), "questions[3]", labels)
    assert raised.value.param == "questions[3]"
