"""What would be sent, without sending it."""

import pytest

from tests.pool import Pool

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def test_a_chat_renders_to_the_ids_that_tokenize_gives(seeded_pool: Pool) -> None:
    messages = [{"role": "user", "content": "Grüße 🎉"}]
    rendered = seeded_pool.post(CHAT + "/render", {"messages": messages, "max_tokens": 20, "seed": 7}).json()
    prompt = rendered["prompts"][0]
    tokens = seeded_pool.post("/tokenize", {"messages": messages}).json()["tokens"]
    assert prompt["prompt_token_ids"] == tokens
    assert prompt["prompt_tokens"] == len(tokens)
    assert "Grüße 🎉" in prompt["prompt"]
    assert prompt["room"] == 4096 - len(tokens)
    assert prompt["max_tokens"] == 20
    assert prompt["sampling_params"]["seed"] == 7


def test_unset_max_tokens_shows_as_what_it_will_be(seeded_pool: Pool) -> None:
    rendered = seeded_pool.post(CHAT + "/render", {"messages": [{"role": "user", "content": "a"}]}).json()
    assert rendered["prompts"][0]["max_tokens"] == rendered["prompts"][0]["room"]
    rendered = seeded_pool.post(COMPLETIONS + "/render", {"prompt": ["a", "bc"]}).json()
    assert [prompt["max_tokens"] for prompt in rendered["prompts"]] == [16, 16]
    assert [prompt["prompt"] for prompt in rendered["prompts"]] == ["a", "bc"]


def test_prompts_as_ids_are_shown_as_text_too(seeded_pool: Pool) -> None:
    rendered = seeded_pool.post(COMPLETIONS + "/render", {"prompt": [72, 105]}).json()
    assert rendered["prompts"][0]["prompt"] == "Hi"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x" * 5000}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5000}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "n": 0}),
        (COMPLETIONS, {"prompt": [10**7]}),
        (COMPLETIONS, {"prompt": "a", "regex": "a+"}),
    ],
)
def test_what_is_a_400_there_is_the_same_400_here(seeded_pool: Pool, path: str, body: dict[str, object]) -> None:
    refused = seeded_pool.post(path, body)
    rendered = seeded_pool.post(path + "/render", body)
    assert (refused.status_code, rendered.status_code) == (400, 400)
    assert rendered.json() == refused.json()


def test_nothing_reaches_the_engine(seeded_pool: Pool) -> None:
    before = seeded_pool.engine()["requests"]
    seeded_pool.post(COMPLETIONS + "/render", {"prompt": "a"})
    assert seeded_pool.engine()["requests"] == before
