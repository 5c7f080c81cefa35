"""Whatever a request holds: a dialect makes a job of it, or says in a 4xx why not, and never does anything else."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiserver.card import Card
from apiserver.errors import ApiError
from apiserver.protocol.chat_completions import ChatCompletion
from apiserver.protocol.chat_request import ChatFields as Chat
from apiserver.protocol.classify import Classify
from apiserver.protocol.completion_request import CompletionFields
from apiserver.protocol.completions import Completion
from apiserver.protocol.decisions import DecisionFields, Decisions
from apiserver.protocol.embeddings import EmbeddingFields, Embeddings
from apiserver.protocol.encode import Encode, EncodeFields
from apiserver.protocol.exchange import Dialect
from apiserver.protocol.forms import QuestionForms
from apiserver.protocol.generate import Generate
from apiserver.protocol.generate_fields import GenerateFields
from apiserver.protocol.label_score import LabelScore, LabelScoreFields
from apiserver.protocol.messages import Messages
from apiserver.protocol.messages_count import CountTokens
from apiserver.protocol.messages_fields import ConversationFields, MessagesFields
from apiserver.protocol.pair_score import PairScore, PairScoreFields
from apiserver.protocol.rerank import Rerank, RerankFields
from apiserver.protocol.responses import Past, Response
from apiserver.protocol.responses_request import ResponseFields, read_response
from apiserver.protocol.sglang_decisions import SGLangDecisionFields, SGLangDecisions
from apiserver.protocol.systemone import SystemOne, SystemOneFields
from apiserver.protocol.tei import Embed, EmbedFields, RankTexts, Similarity, SimilarityFields, TextsFields
from apiserver.protocol.token_generate import TokenGenerate, TokenGenerateFields
from apiserver.protocol.tokenize import Detokenize, DetokenizeFields, Tokenize, TokenizeFields
from tests.unit.protocol.cards import make_card

WORDS = [
    "",
    "a",
    "auto",
    "none",
    "user",
    "assistant",
    "function",
    "text",
    "type",
    "role",
    "content",
    "json_schema",
    "5",
]
NUMBERS = [0, 1, -1, 2, 16.0, 1.5, 2**31, 2**63, -(2**70), 1e300, 499, 500]
VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.sampled_from(WORDS) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*WORDS, "function", "name", "schema", "tool_calls", "arguments"]), inner, max_size=4
        )
    ),
    max_leaves=10,
)
CARDS = [
    make_card(),
    make_card(able={"task": "embed", "dimensions": 8, "logprobs": -1, "engine": "embeds"}),
    make_card(strict_fields=True, any_model=True, trust_request_chat_template=True),
]


class ResponseOfBytes(Response):
    """As far as one goes without a store."""

    def __init__(self, raw: bytes, card: Card) -> None:
        super().__init__(read_response(raw, card), Past(), card, stores=True)


@pytest.mark.parametrize(
    ("dialect", "names"),
    [
        (ChatCompletion, Chat.__struct_encode_fields__),
        (Completion, CompletionFields.__struct_encode_fields__),
        (ResponseOfBytes, ResponseFields.__struct_encode_fields__),
        (Embeddings, EmbeddingFields.__struct_encode_fields__),
        (Messages, MessagesFields.__struct_encode_fields__),
        (CountTokens, ConversationFields.__struct_encode_fields__),
        (Tokenize, TokenizeFields.__struct_encode_fields__),
        (Detokenize, DetokenizeFields.__struct_encode_fields__),
        (Generate, (*GenerateFields.__struct_encode_fields__, "sampling_params")),
        (TokenGenerate, TokenGenerateFields.__struct_encode_fields__),
        (Encode, EncodeFields.__struct_encode_fields__),
        (QuestionForms(SGLangDecisions, Decisions), SGLangDecisionFields.__struct_encode_fields__),
        (Decisions, DecisionFields.__struct_encode_fields__),
        (SystemOne, SystemOneFields.__struct_encode_fields__),
        (LabelScore, LabelScoreFields.__struct_encode_fields__),
        (PairScore, PairScoreFields.__struct_encode_fields__),
        (Rerank, RerankFields.__struct_encode_fields__),
        (RankTexts, TextsFields.__struct_encode_fields__),
        (Embed, EmbedFields.__struct_encode_fields__),
        (Similarity, SimilarityFields.__struct_encode_fields__),
        (Classify(), ("model", "input")),
    ],
)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_no_value_of_any_field_is_more_than_a_4xx(dialect: Dialect, names: tuple[str, ...], data: Any) -> None:
    document = data.draw(
        st.dictionaries(st.sampled_from([*names, "messages", "prompt", "input", "unknown"]), VALUES, max_size=4)
    )
    raw = json.dumps(document).encode()
    for card in CARDS:
        try:
            assert dialect(raw, card).job is not None
        except ApiError as error:
            assert 400 <= error.status < 500, error  # noqa: PT017  # either of the two is right
            assert dialect.error(error)["error"]["message"]  # noqa: PT017  # as above
