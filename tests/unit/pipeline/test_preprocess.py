"""From a prompt to token ids that fit: what is refused, what is cut, and what is not even encoded."""

from pathlib import Path
from typing import Any, Literal

import pytest

import apiserver
from apiserver.errors import ContextLengthExceeded, InvalidRequest
from apiserver.events import PreparedPrompt
from apiserver.pipeline.preprocess import Preprocessor, Room, fill_max_tokens
from apiserver.requests import Chat, GenerateJob, Prompt, Text, TokenIds, Truncation
from apiserver.timings import Timings
from apiserver.tokenizer.byte import byte_tokenizer_json
from apiserver.tokenizer.hf import HfTokenizer
from apiserver.tokenizer.template import RESERVED_VARIABLES, ChatTemplate
from engine_bridge.wire import SamplingParams
from tests.unit.protocol.cards import make_card

CARD = make_card(max_model_len=100, vocab_size=259)
ROOM = Room(100, reserved=1)
HI = [{"role": "user", "content": "Hi"}]
TEMPLATE = "{{ messages[0].content }}{{ more }}"


class Counting(HfTokenizer):
    """Knows how much text it was given."""

    def __init__(self, tokenizer_json: str) -> None:
        super().__init__(tokenizer_json)
        self.characters = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.characters += len(text)
        return super().encode(text, add_special_tokens=add_special_tokens)

    def encode_truncated(
        self, text: str, *, add_special_tokens: bool, most: int, side: Literal["left", "right"]
    ) -> list[int]:
        self.characters += len(text)
        return super().encode_truncated(text, add_special_tokens=add_special_tokens, most=most, side=side)


@pytest.fixture
def tokenizer() -> Counting:
    return Counting(byte_tokenizer_json())


@pytest.fixture
def minilm() -> Counting:
    """WordPiece: it brackets a text, drops white space, and writes one [UNK] for a word of any length."""
    return Counting((Path(apiserver.__path__[0]) / "data" / "minilm" / "tokenizer.json").read_text(encoding="utf-8"))


def prepare(
    tokenizer: HfTokenizer, prompt: Prompt, *, room: Room | None = ROOM, truncation: Truncation | None = None
) -> PreparedPrompt:
    preprocessor = Preprocessor(tokenizer, tokenizer, ChatTemplate(TEMPLATE, {}), {})
    card = make_card(max_model_len=100, vocab_size=tokenizer.vocab_size)
    return preprocessor.prepare(prompt, card, room, truncation, Timings())


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (Text("x" * 100, "prompt[3]"), "prompt[3]"),
        (TokenIds([1] * 100, "input"), "input"),
        (Chat([{"role": "user", "content": "x" * 100}]), "messages"),
    ],
)
def test_a_prompt_that_leaves_no_room_is_refused_under_its_own_name(
    tokenizer: Counting, prompt: Prompt, param: str
) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        prepare(tokenizer, prompt)
    assert caught.value.param == param
    assert "100 tokens" in caught.value.message
    assert prepare(tokenizer, prompt, room=Room(100, reserved=0)).token_ids
    assert prepare(tokenizer, prompt, room=None).token_ids


def test_text_that_cannot_fit_is_not_encoded_at_all(tokenizer: Counting) -> None:
    with pytest.raises(ContextLengthExceeded):
        prepare(tokenizer, Text("x" * 1_000_000, "prompt"))
    assert tokenizer.characters == 0


@pytest.mark.parametrize(("side", "kept"), [("left", "end"), ("right", "beg")])
def test_of_text_that_is_cut_only_about_what_stays_is_encoded(
    tokenizer: Counting, side: Literal["left", "right"], kept: str
) -> None:
    text = "beg" + "x" * 1_000_000 + "end"
    prepared = prepare(tokenizer, Text(text, "prompt"), truncation=Truncation(3, side))
    assert bytes(prepared.token_ids).decode() == kept
    assert tokenizer.characters < 10_000


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "text",
    [
        "one two three four five six " * 10_000,
        " " * 100_000 + "one two three four five six" + " " * 100_000,
        "w" * 100_000 + " one two three four " + "w" * 100_000,
        "one",
    ],
)
def test_cutting_the_text_first_changes_no_id(minilm: Counting, side: Literal["left", "right"], text: str) -> None:
    whole = minilm.encode_truncated(text, add_special_tokens=True, most=6, side=side)
    assert prepare(minilm, Text(text, "prompt"), truncation=Truncation(6, side)).token_ids == whole


def test_special_tokens_count_among_what_is_kept(minilm: Counting) -> None:
    ids = prepare(
        minilm, Text("one two three four", "input"), truncation=Truncation(-1, "right"), room=Room(4, 0)
    ).token_ids
    assert (len(ids), ids[0], ids[-1]) == (4, 101, 102)


def test_a_prompt_that_was_cut_has_no_text_that_would_not_be_its_ids(tokenizer: Counting) -> None:
    assert prepare(tokenizer, Text("abcdef", "prompt"), truncation=Truncation(3, "left")).text is None
    assert prepare(tokenizer, Text("ab", "prompt"), truncation=Truncation(3, "left")).text == "ab"
    assert prepare(tokenizer, Text("abcdef", "prompt")).text == "abcdef"


@pytest.mark.parametrize(
    "prompt", [Text("", "prompt"), TokenIds([], "prompt"), Chat([{"role": "user", "content": ""}])]
)
def test_nothing_is_no_prompt_for_a_model(tokenizer: Counting, prompt: Prompt) -> None:
    with pytest.raises(InvalidRequest, match="at least one token"):
        prepare(tokenizer, prompt)
    assert prepare(tokenizer, prompt, room=None).token_ids == []


@pytest.mark.parametrize("wrong", [-1, 259, 10**7, 2**63, -(2**63), 10**100])
def test_an_id_of_another_model_never_gets_to_the_engine(tokenizer: Counting, wrong: int) -> None:
    with pytest.raises(InvalidRequest, match="this model's ids are 0 to 258") as caught:
        prepare(tokenizer, TokenIds([0, wrong, 258], "prompt[2]"))
    assert caught.value.param == "prompt[2]"
    assert len(caught.value.message) < 150
    assert prepare(tokenizer, TokenIds([0, 258], "prompt")).token_ids == [0, 258]


@pytest.mark.parametrize("name", sorted(RESERVED_VARIABLES))
def test_no_variable_takes_over_the_rendering(tokenizer: Counting, name: str) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        prepare(tokenizer, Chat(HI, variables={name: True}))
    assert caught.value.param == "chat_template_kwargs"
    assert prepare(tokenizer, Chat(HI, variables={"more": "!"})).text == "Hi!"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0]"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 100_000}}]}, "messages"),
        ({"role": "user", "content": "\ud83d"}, "messages"),
    ],
)
def test_what_a_template_cannot_show_is_refused_with_its_path(
    tokenizer: Counting, message: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prepare(tokenizer, Chat([message]))
    assert caught.value.param == param
    assert caught.value.message.encode()


def test_without_a_template_the_option_is_named(tokenizer: Counting) -> None:
    preprocessor = Preprocessor(tokenizer, tokenizer, None, {})
    with pytest.raises(InvalidRequest, match="--chat-template"):
        preprocessor.prepare(Chat(HI), CARD, ROOM, None, Timings())
    with_own = Chat(HI, template="{{ messages[0].content }}?")
    assert preprocessor.prepare(with_own, CARD, ROOM, None, Timings()).text == "Hi?"
    with pytest.raises(InvalidRequest, match="not valid in line 1") as caught:
        preprocessor.prepare(Chat(HI, template="{% if %}"), CARD, ROOM, None, Timings())
    assert caught.value.param == "chat_template"


def filled(prompt_tokens: int, **fields: Any) -> SamplingParams:
    job = GenerateJob([], SamplingParams(min_tokens=fields.pop("min_tokens", 0)), **fields)
    return fill_max_tokens(job, prompt_tokens, CARD)


def test_max_tokens_are_what_was_asked_for_or_the_rest_of_the_context() -> None:
    assert filled(40, max_tokens=None).max_tokens == 60
    assert filled(40, max_tokens=60).max_tokens == 60
    assert filled(40, max_tokens=5).max_tokens == 5
    assert filled(40, max_tokens=65_535, clamp_max_tokens=True).max_tokens == 60


def test_more_than_the_rest_is_refused_with_the_number_that_fits() -> None:
    with pytest.raises(ContextLengthExceeded, match="Send max_completion_tokens <= 60") as caught:
        filled(40, max_tokens=61, max_tokens_param="max_completion_tokens")
    assert caught.value.param == "max_completion_tokens"


def test_at_least_as_many_as_at_most_can_be_had() -> None:
    assert filled(40, max_tokens=5, min_tokens=5).min_tokens == 5
    with pytest.raises(InvalidRequest, match="min_tokens is 6") as caught:
        filled(40, max_tokens=5, min_tokens=6)
    assert caught.value.param == "min_tokens"
