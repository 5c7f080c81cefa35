"""Rerank, pair and label scores, TEI's routes and native embeddings: what they ask for, and what they make of it."""

import array
import json
from typing import Any

import pytest

from apiserver.errors import ApiError, Internal, InvalidRequest, NotFound
from apiserver.events import Embedded, PreparedPrompt, Result, Scored, Started
from apiserver.protocol.classify import Classify
from apiserver.protocol.encode import Encode
from apiserver.protocol.exchange import Exchange
from apiserver.protocol.forms import Forms
from apiserver.protocol.label_score import LabelScore
from apiserver.protocol.pair_score import PairScore
from apiserver.protocol.rerank import CohereRerank, Rerank
from apiserver.protocol.tei import Embed, RankTexts, Similarity
from apiserver.requests import EmbedJob, ScoreJob, Text, TokenIds
from tests.bodies import read
from tests.unit.protocol.cards import make_card

EMBEDS = {"task": "embed", "dimensions": 2, "logprobs": -1, "engine": "embeds", "matryoshka": True}
EAST, NORTH, NORTH_EAST = (2.0, 0.0), (0.0, 1.0), (3.0, 3.0)


def exchange(dialect: Any, card: Any = None, **fields: Any) -> Exchange:
    return dialect(json.dumps(fields).encode(), card or make_card(able=EMBEDS))


def embed_job(dialect: Any, **fields: Any) -> EmbedJob:
    made = exchange(dialect, **fields).job
    assert isinstance(made, EmbedJob)
    return made


def answer(made: Exchange, *vectors: tuple[float, ...]) -> Any:
    result = Result()
    result.feed(Started([PreparedPrompt.of([1, 2], None) for _ in vectors]))
    for index, vector in enumerate(vectors):
        result.feed(Embedded(index, array.array("f", vector).tobytes()))
    return read(made.body(result))


def refusal(dialect: Any, **fields: Any) -> str | None:
    with pytest.raises(InvalidRequest) as raised:
        exchange(dialect, **fields)
    return raised.value.param


# ---- rerank ----


def test_documents_are_sorted_by_their_likeness_to_the_query() -> None:
    made = exchange(Rerank, query="q", documents=["a", {"text": "b"}, {"content": [{"type": "text", "text": "c"}]}])
    body = answer(made, EAST, NORTH, EAST, NORTH_EAST)
    assert [each["index"] for each in body["results"]] == [1, 2, 0]
    assert [each["relevance_score"] for each in body["results"]] == pytest.approx([1, 0.5**0.5, 0])
    assert [each["document"] for each in body["results"]] == [{"text": "b"}, {"text": "c"}, {"text": "a"}]
    assert body["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert (body["object"], body["model"]) == ("list", "first")


@pytest.mark.parametrize(("top_n", "indexes"), [(1, [1]), (2, [1, 0]), (99, [1, 0, 2]), (None, [1, 0, 2])])
def test_the_best_few_can_be_asked_for(top_n: int | None, indexes: list[int]) -> None:
    made = exchange(Rerank, query="q", documents=["a", "b", "c"], top_n=top_n, return_documents=False)
    body = answer(made, EAST, NORTH_EAST, EAST, NORTH)
    assert [each["index"] for each in body["results"]] == indexes
    assert all("document" not in each for each in body["results"])


def test_cohere_has_its_own_meta_and_its_own_errors() -> None:
    body = answer(exchange(CohereRerank, query="q", documents=["a"]), EAST, EAST)
    assert body["meta"]["api_version"] == {"version": "2"}
    assert body["meta"]["billed_units"] == {"search_units": 1}
    assert "document" not in body["results"][0]
    document = CohereRerank.error(InvalidRequest("broken"))
    assert document["message"] == "broken"
    assert set(document) == {"message", "id"}


def test_a_query_is_not_cut_like_the_documents() -> None:
    cut = embed_job(Rerank, query="q", documents=["a", "b"], max_tokens_per_doc=4096).truncations
    assert cut[0] is None
    assert [one.keep for one in cut[1:] if one is not None] == [1000, 1000]
    every = embed_job(Rerank, query="q", documents=["a"], truncate_prompt_tokens=-1).truncations
    assert [(one.keep, one.side) for one in every if one is not None] == [(-1, "right")] * 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": ["a", ""]}, "documents[1]"),
        ({"query": "q", "documents": [5]}, "documents[0]"),
        ({"query": "q", "documents": [{"content": [{"type": "image"}]}]}, "documents[0]"),
        ({"query": "q", "documents": ["a"] * 2049}, "documents"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "q", "documents": ["a"], "top_n": -1}, "top_n"),
        ({"query": "q", "documents": ["a"], "instruct": "x"}, "instruct"),
        ({"query": ["q"], "documents": ["a"]}, "query"),
    ],
)
def test_what_cannot_be_ranked_is_named(fields: dict[str, Any], param: str) -> None:
    assert refusal(Rerank, **fields) == param


def test_a_vector_of_no_numbers_is_the_engines_fault_and_names_its_text() -> None:
    with pytest.raises(Internal, match=r"documents\[0\]"):
        answer(exchange(Rerank, query="q", documents=["a"]), EAST, (float("nan"), 0.0))


def test_the_same_text_again_is_as_good_and_comes_later() -> None:
    body = answer(exchange(RankTexts, query="q", texts=["a", "a"], return_text=True), EAST, EAST, EAST)
    assert [each["index"] for each in body] == [0, 1]
    assert body[0]["text"] == "a"


# ---- TEI ----


def test_tei_gives_bare_lists() -> None:
    assert answer(exchange(Embed, inputs=["a", "b"]), EAST, NORTH) == [[2, 0], [0, 1]]
    asked = {"source_sentence": "a", "sentences": ["b", "c"]}
    assert answer(exchange(Similarity, inputs=asked), EAST, NORTH, NORTH_EAST) == pytest.approx([0, 0.5**0.5])
    raw = answer(exchange(RankTexts, query="q", texts=["a"], raw_scores=True), EAST, EAST)
    tame = answer(exchange(RankTexts, query="q", texts=["a"]), EAST, EAST)
    assert (raw[0]["score"], tame[0]["score"]) == (pytest.approx(1), pytest.approx(0.731, abs=1e-3))


@pytest.mark.parametrize(("direction", "side"), [(None, "right"), ("Right", "right"), ("left", "left")])
def test_tei_cuts_at_the_side_that_it_names(direction: str | None, side: str) -> None:
    cut = embed_job(Embed, inputs="a", truncate=True, truncation_direction=direction).truncation
    assert cut is not None
    assert (cut.keep, cut.side) == (-1, side)
    assert embed_job(Embed, inputs="a", truncation_direction=direction).truncation is None


@pytest.mark.parametrize(
    ("dialect", "fields", "param"),
    [
        (Embed, {}, "inputs"),
        (Embed, {"inputs": "a", "normalize": False}, "normalize"),
        (Embed, {"inputs": "a", "truncation_direction": "up"}, "truncation_direction"),
        (Similarity, {}, "inputs"),
        (Similarity, {"inputs": {"source_sentence": "a", "sentences": []}}, "inputs.sentences"),
        (RankTexts, {"query": "q"}, "texts"),
    ],
)
def test_tei_names_what_is_wrong(dialect: Any, fields: dict[str, Any], param: str) -> None:
    assert refusal(dialect, **fields) == param


# ---- scores ----


@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"), ("queries", "items")]
)
def test_one_text_is_compared_with_many_however_it_is_spelled(names: tuple[str, str]) -> None:
    made = exchange(PairScore, **{names[0]: "a", names[1]: ["b", "c"]})
    body = answer(made, EAST, NORTH, EAST)
    assert [(each["index"], each["object"]) for each in body["data"]] == [(0, "score"), (1, "score")]
    assert [each["score"] for each in body["data"]] == pytest.approx([0, 1])


def test_as_many_texts_are_compared_one_by_one() -> None:
    body = answer(exchange(PairScore, text_1=["a", "b"], text_2=["c", "d"]), EAST, NORTH, EAST, EAST)
    assert [each["score"] for each in body["data"]] == pytest.approx([1, 0])
    assert refusal(PairScore, text_1=["a", "b"], text_2=["c"]) == "text_1"
    assert refusal(PairScore, text_1="a") == "text_1"
    assert refusal(PairScore, text_1="a", text_2=["b"], max_tokens_per_doc=3) == "max_tokens_per_doc"


def scored(made: Exchange, *logprobs: tuple[float, ...]) -> Any:
    result = Result()
    result.feed(Started([PreparedPrompt.of([1, 2], None) for _ in logprobs]))
    for index, each in enumerate(logprobs):
        result.feed(Scored(index, each))
    return json.loads(json.dumps(made.body(result).document))


def test_labels_are_scored_behind_the_query_and_each_item() -> None:
    made = exchange(LabelScore, make_card(), query="Is it ", items=["a", "b"], label_token_ids=[5, 6])
    job = made.job
    assert isinstance(job, ScoreJob)
    assert job.prompts == [Text("Is it a", "items[0]"), Text("Is it b", "items[1]")]
    assert job.labels == [[5, 6]]
    body = scored(made, (-0.1, -3.0), (-2.0, -2.0))
    assert body["scores"][0] == pytest.approx([0.9048, 0.0498], abs=1e-4)
    assert (body["object"], body["usage"]["prompt_tokens"]) == ("scoring", 4)


def test_labels_may_be_ids_behind_ids_and_others_for_each_item() -> None:
    fields: dict[str, Any] = {"query": [1], "items": [[2], [3]], "label_token_ids": [[5], [6]], "item_first": True}
    made = exchange(LabelScore, make_card(), **fields, apply_softmax=True, temperature=2.0, return_token_logprobs=True)
    job = made.job
    assert isinstance(job, ScoreJob)
    assert job.prompts == [TokenIds([2, 1], "items[0]"), TokenIds([3, 1], "items[1]")]
    assert job.labels == [[5], [6]]
    body = scored(made, (-0.1,), (-2.0,))
    assert body["scores"] == [[1.0], [1.0]]
    assert body["token_logprobs"] == [[-0.1], [-2.0]]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"items": ["a"], "label_token_ids": [1]}, "query"),
        ({"query": "q", "label_token_ids": [1]}, "items"),
        ({"query": "q", "items": ["a"]}, "label_token_ids"),
        ({"query": "q", "items": [[1]], "label_token_ids": [1]}, "items"),
        ({"query": [1], "items": ["a"], "label_token_ids": [1]}, "items"),
        ({"query": "q", "items": ["a"], "label_token_ids": [[1], [2]]}, "label_token_ids"),
        ({"query": "q", "items": ["a"], "label_token_ids": [1] * 65_537}, "label_token_ids"),
        ({"query": "q", "items": ["a"], "label_token_ids": ["x"]}, "label_token_ids"),
        ({"query": "q", "items": ["a"], "label_token_ids": [1], "temperature": 0}, "temperature"),
        (
            {"query": "q", "items": ["a"], "label_token_ids": [1], "score_extraction_token": "x"},
            "score_extraction_token",
        ),
    ],
)
def test_what_cannot_be_scored_is_named(fields: dict[str, Any], param: str) -> None:
    assert refusal(LabelScore, **fields) == param


# ---- encode, classify, forms ----


def test_native_embeddings_are_one_object_or_a_list() -> None:
    one = answer(exchange(Encode, text="a", rid="mine", return_prompt_token_ids=True), EAST)
    assert one["embedding"] == [2, 0]
    assert (one["meta_info"]["id"], one["meta_info"]["prompt_tokens"], one["prompt_token_ids"]) == ("mine", 2, [1, 2])
    many = answer(exchange(Encode, input_ids=[[1], [2]], rid="mine", dimensions=2), EAST, NORTH)
    assert [each["meta_info"]["id"] for each in many] == ["mine_0", "mine_1"]
    assert refusal(Encode, text=["a"], input_ids=[1]) == "text"
    assert refusal(Encode, text=[[1]]) == "text[0]"
    assert refusal(Encode, text="a", is_cross_encoder_request=True) == "is_cross_encoder_request"


def test_nobody_classifies_and_says_so() -> None:
    with pytest.raises(InvalidRequest, match="no classifier"):
        exchange(Classify(), input="a")
    with pytest.raises(NotFound):
        exchange(Classify(), input="a", model="other")


def test_a_field_that_is_null_chooses_no_dialect() -> None:
    """Clients made of models send every field that they know."""
    forms = Forms({"texts": RankTexts}, Rerank)
    assert isinstance(forms(b'{"texts": null, "query": "q", "documents": ["a"]}', make_card(able=EMBEDS)), Rerank)
    assert isinstance(forms(b'{"texts": ["a"], "query": "q", "documents": null}', make_card(able=EMBEDS)), RankTexts)


def test_a_body_says_by_its_fields_which_api_it_means() -> None:
    forms = Forms({"texts": RankTexts}, Rerank)
    assert isinstance(exchange(forms, query="q", texts=["a"]), RankTexts)
    assert isinstance(exchange(forms, query="q", documents=["a"]), Rerank)
    for raw in (b"", b"[]", b"{" * 5000):
        with pytest.raises(ApiError) as raised:
            forms(raw, make_card())
        assert forms.error(raised.value)["error"]["message"] == raised.value.message


@pytest.mark.parametrize("dialect", [Rerank, PairScore, LabelScore, Encode, Embed, Similarity, RankTexts])
def test_strict_servers_refuse_unknown_fields(dialect: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        exchange(dialect, make_card(strict_fields=True), nonsense=1)
    assert raised.value.param == "nonsense"
