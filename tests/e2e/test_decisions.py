"""Decisions by the official client and in the other two dialects, over a real tokenizer's labels."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.conftest import StartPool
from tests.e2e.refusals import error_of
from tests.pool import Pool, running_pool
from tests.real_tokenizers import tokenizer_directory

pytestmark = pytest.mark.e2e

DECISIONS = "/v1/decisions"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """The simulated engine with SmolLM2's vocabulary: its likeliest label follows from the prompt."""
    flags = ("--api-server-count", "2", "--tokenizer", str(tokenizer_directory("smollm2")), "--max-model-len", "2000")
    with running_pool(tmp_path_factory.mktemp("decisions") / "pool.log", *flags) as one:
        yield one
        assert "Traceback" not in one.log


@pytest.mark.exercises("openai-python", "/v1/decisions", "predicates, choices, scores")
def test_the_official_client_gets_its_answers(pool: Pool) -> None:
    decision = pool.openai.decisions.create(
        model="sim",
        input="The package arrived with a broken screen.",
        questions=[
            {"type": "predicate", "instructions": "The item is damaged."},
            {
                "type": "choice",
                "name": "team",
                "instructions": "Who should answer?",
                "choices": [
                    {"value": "shipping", "description": "lost and broken"},
                    {"value": "billing"},
                    {"value": True},
                ],
            },
            {"type": "score", "instructions": "How urgent?", "levels": [{"label": "low"}, {"label": "high"}]},
        ],
        safety_identifier="s",
        prompt_cache_key="k",
    )
    predicate, choice, score = decision.answers
    assert predicate.type == "predicate"
    assert 0 <= predicate.probability <= 1
    assert choice.type == "choice"
    assert choice.name == "team"
    assert [each.value for each in choice.probabilities] == ["shipping", "billing", True]
    assert sum(each.probability for each in choice.probabilities) == pytest.approx(1)
    assert choice.choice == max(choice.probabilities, key=lambda each: each.probability).value
    assert 0 <= choice.confidence <= 1
    assert score.type == "score"
    assert score.score == pytest.approx(score.probabilities[1].probability)
    usage = decision.usage
    assert (usage.output_tokens, usage.total_tokens) == (0, usage.input_tokens)
    assert decision.model == "sim"


def test_the_official_client_gets_exceptions_it_knows(pool: Pool) -> None:
    create: Any = pool.openai.decisions.create
    with pytest.raises(openai.BadRequestError) as bad:
        create(model="sim", input="x", questions=[])
    assert bad.value.param == "questions"
    with pytest.raises(openai.NotFoundError):
        create(model="other", input="x", questions=[{"type": "predicate", "instructions": "x"}])
    with pytest.raises(openai.BadRequestError) as long:
        create(model="sim", input="word " * 3000, questions=[{"type": "predicate", "instructions": "x"}])
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "questions[0]")


def test_the_dialects_agree_about_one_question(pool: Pool) -> None:
    own = {"id": "q", "type": "yes_no", "question": "Paris is in France."}
    theirs = {"type": "predicate", "instructions": "Paris is in France."}
    first = pool.post(DECISIONS, {"input": "x", "questions": [own]}).json()["answers"]["q"]
    second = pool.post(DECISIONS, {"model": "sim", "input": "x", "questions": [theirs]}).json()["answers"][0]
    noul = {"q": {"type": "noul", "instructions": "Paris is in France."}}
    third = pool.post("/v1/systemone", {"state": "x", "questions": noul}).json()["answers"]["q"]
    assert first["probabilities"]["yes"] == second["probability"] == third["noul"]


def test_a_decision_is_the_score_of_its_labels_behind_its_prompt(pool: Pool) -> None:
    question = {"id": "q", "type": "choice", "question": "?", "options": [{"name": "a"}, {"name": "b"}]}
    body = {"input": "x", "questions": [question], "return_prompt_token_ids": True}
    answer = pool.post(DECISIONS, body).json()["answers"]["q"]
    labels = pool.post("/detokenize", {"tokens": [[each] for each in answer["label_token_ids"]]}).json()["text"]
    assert labels == ["A", "B"]
    score = {"query": answer["prompt_token_ids"], "items": [[]], "label_token_ids": answer["label_token_ids"]}
    (scores,) = pool.post("/v1/score", {**score, "apply_softmax": True}).json()["scores"]
    assert scores == pytest.approx(list(answer["probabilities"].values()))
    (raw,) = pool.post("/v1/score", score).json()["scores"]
    assert sum(raw) == pytest.approx(answer["label_mass"])


def test_hundreds_of_questions_are_one_request(pool: Pool) -> None:
    questions = [{"type": "predicate", "instructions": f"It is {number}."} for number in range(400)]
    before = pool.engine()["requests"]
    answers = pool.post(DECISIONS, {"model": "sim", "input": "x", "questions": questions}).json()["answers"]
    assert len(answers) == 400
    assert pool.engine()["requests"] == before + 400
    assert error_of(pool.post(DECISIONS, {"input": "x", "questions": questions * 6}))["param"] == "questions"


def test_labels_that_are_no_tokens_are_a_400_that_names_the_question(echo_pool: Pool) -> None:
    """One token a byte: yes is three of them."""
    question = {"type": "predicate", "instructions": "x"}
    error = error_of(echo_pool.post(DECISIONS, {"model": "sim", "input": "x", "questions": [question]}))
    assert error["param"] == "questions[0]"
    assert "not one token" in error["message"]


def test_an_engine_that_makes_vectors_decides_nothing(embed_pool: Pool) -> None:
    question = {"type": "predicate", "instructions": "x"}
    error = error_of(embed_pool.post(DECISIONS, {"input": "x", "questions": [question]}))
    assert "cannot score" in error["message"]


@pytest.mark.model
def test_a_real_model_finds_what_is_true_likelier(start_pool: StartPool) -> None:
    """135 million parameters say yes to nearly everything; but more so to what is true."""
    with start_pool("--api-server-count", "1", model="smollm2") as small:

        def probability(text: str, statement: str) -> float:
            question: Any = {"type": "predicate", "instructions": statement}
            (answer,) = small.openai.decisions.create(model="smollm2", input=text, questions=[question]).answers
            assert answer.type == "predicate"
            return answer.probability

        paris = "Paris is the capital of France."
        assert probability(paris, "Paris is in France.") > probability(paris, "Paris is in Japan.")
        broken = "This is terrible. It broke after one day and I want my money back."
        assert probability(broken, "The customer is angry.") > probability(broken, "The customer is happy.")
