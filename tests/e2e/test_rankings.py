"""Rerank, scores and TEI's routes over real vectors and simulated ones."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.refusals import error_of
from tests.pool import Pool, running_pool

pytestmark = pytest.mark.e2e

QUERY = "What is the capital of France?"
DOCUMENTS = [
    "The mitochondrion is the powerhouse of the cell.",
    "Berlin is a large city in Germany.",
    "Paris is the capital and the largest city of France.",
    "Bread is baked from flour and water.",
]
RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank")


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    output = tmp_path_factory.mktemp("minilm") / "pool.log"
    with running_pool(output, "--api-server-count", "1", model="minilm") as pool:
        yield pool


@pytest.mark.model
@pytest.mark.parametrize("path", RERANKS)
def test_the_right_document_comes_first(minilm: Pool, path: str) -> None:
    results = minilm.post(path, {"query": QUERY, "documents": DOCUMENTS}).json()["results"]
    assert [each["index"] for each in results][:2] == [2, 1]
    assert results[0]["relevance_score"] > 0.6
    assert ("document" in results[0]) is (path != "/v2/rerank")


@pytest.mark.model
def test_the_other_ways_to_ask_agree(minilm: Pool) -> None:
    results = minilm.post("/rerank", {"query": QUERY, "documents": DOCUMENTS}).json()["results"]
    scores = {each["index"]: each["relevance_score"] for each in results}
    tei = minilm.post("/rerank", {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True}).json()
    assert {each["index"]: each["score"] for each in tei} == pytest.approx(scores, abs=1e-6)
    pairs = minilm.post("/score", {"text_1": QUERY, "text_2": DOCUMENTS}).json()["data"]
    assert {each["index"]: each["score"] for each in pairs} == pytest.approx(scores, abs=1e-6)
    asked = {"source_sentence": QUERY, "sentences": DOCUMENTS}
    likenesses = minilm.post("/similarity", {"inputs": asked}).json()
    assert dict(enumerate(likenesses)) == pytest.approx(scores, abs=1e-6)
    vectors = minilm.post("/embed", {"inputs": [QUERY, DOCUMENTS[2]]}).json()
    assert sum(map(lambda one, other: one * other, *vectors)) == pytest.approx(scores[2], abs=1e-5)
    own = minilm.post("/encode", {"text": QUERY}).json()["embedding"]
    assert own == pytest.approx(vectors[0])


@pytest.mark.model
def test_a_long_document_is_cut_where_that_is_asked_for(minilm: Pool) -> None:
    long = [DOCUMENTS[2] + " word" * 2000, DOCUMENTS[0]]
    for path in RERANKS:
        refused = minilm.post(path, {"query": QUERY, "documents": long})
        assert refused.status_code == 400
        assert "documents[0]" in refused.text
    for asked in ({"truncate_prompt_tokens": -1}, {"max_tokens_per_doc": 4096}, {"max_tokens_per_doc": 16}):
        results = minilm.post("/rerank", {"query": QUERY, "documents": long, **asked}).json()["results"]
        assert results[0]["index"] == 0
    tei = minilm.post("/rerank", {"query": QUERY, "texts": long, "truncate": True}).json()
    assert tei[0]["index"] == 0


def test_vllm_bench_and_litellm_find_what_they_read(embed_pool: Pool) -> None:
    payload = {"model": "sim", "query": "a", "documents": ["b", "c"], "truncate_prompt_tokens": -1}
    body = embed_pool.post("/v1/rerank", payload).json()
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] == 3
    assert all({"index", "relevance_score"} <= set(each) for each in body["results"])
    assert isinstance(body["results"][0]["document"], dict)


@pytest.mark.parametrize("path", RERANKS)
def test_thousands_of_documents_are_ranked_in_one_request(embed_pool: Pool, path: str) -> None:
    body: dict[str, Any] = {"query": "q", "documents": [str(number) for number in range(2047)], "top_n": 5}
    results = embed_pool.post(path, body).json()["results"]
    scores = [each["relevance_score"] for each in results]
    assert len(results) == 5
    assert scores == sorted(scores, reverse=True)


def test_two_unrelated_scores_share_a_path(echo_pool: Pool, embed_pool: Pool) -> None:
    for path in ("/score", "/v1/score"):
        pair = embed_pool.post(path, {"text_1": "a", "text_2": ["a", "b"]}).json()
        assert pair["data"][0]["score"] == pytest.approx(1)
        labels = echo_pool.post(path, {"query": "a", "items": ["b"], "label_token_ids": [97, 98]}).json()
        assert labels["scores"][0][0] > 0.9, "the echo goes on with the prompt's first token"
        error = error_of(echo_pool.post(path, {"query": "a", "items": ["b"], "label_token_ids": [259]}))
        assert error["param"] == "label_token_ids"
