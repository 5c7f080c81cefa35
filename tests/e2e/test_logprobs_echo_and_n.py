"""Logprobs, echo, several choices and usage: in both modes the same, and true."""

from collections.abc import Iterator
from typing import Any

import pytest

from apiserver.tokenizer.byte import SPECIAL_TOKENS
from tests.e2e.answers import (
    CHAT,
    COMPLETIONS,
    DIALECTS,
    Answer,
    Choice,
    both,
    frames,
    request,
    streamed,
    whole,
)
from tests.pool import ECHO_TEMPLATE, Pool, running_pool

pytestmark = pytest.mark.e2e

IM_START = SPECIAL_TOKENS["<|im_start|>"]
# SPECIAL_TOKENS.values()
TEXT = "aé🎉 b界"
OUTPUT = list(TEXT.encode())

every_dialect = pytest.mark.parametrize("path", DIALECTS)


@pytest.fixture(scope="module", params=[1, 5], ids=lambda size: f"{size} a step")
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One API server and a sim that answers with the prompt's ids, so many in a step."""
    output = tmp_path_factory.mktemp("logprobs") / "pool.log"
    flags = ("--api-server-count", "1", "--chat-template", ECHO_TEMPLATE, "--max-model-len", "4000")
    with running_pool(output, *flags, engine=["--mode", "echo", "--tokens-per-step", str(request.param)]) as pool:
        yield pool


def joined(choice: Choice) -> dict[str, Any]:
    """The logprobs of all chunks as those of a whole answer."""
    first, *more = choice.logprobs
    whole = dict(first)
    for part in more:
        for key, value in part.items():
            if value is not None:
                whole[key] = whole[key] + value
    return whole


def logprobs_in_both_modes(pool: Pool, path: str, body: dict[str, Any]) -> tuple[Answer, dict[str, Any]]:
    first, second = whole(pool, path, body), streamed(pool, path, body)
    for index, choice in first.choices.items():
        assert choice.said == second.choices[index].said
        assert joined(choice) == joined(second.choices[index])
    assert first.usage == second.usage
    return first, joined(first.choices[0])


# ---- chat logprobs ----


def test_chat_logprobs_have_the_shape_of_chat(pool: Pool) -> None:  # vllm-project/vllm#3179
    body = request(CHAT, OUTPUT, max_tokens=100, logprobs=True, top_logprobs=2)
    _, logprobs = logprobs_in_both_modes(pool, CHAT, body)
    assert set(logprobs) == {"content", "refusal"}
    entries = logprobs["content"]
    assert [entry["bytes"] for entry in entries] == [*([byte] for byte in OUTPUT), list(b"<|im_end|>")]
    for entry in entries:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 2
        best = entry["top_logprobs"][0]
        assert best == {key: entry[key] for key in ("token", "logprob", "bytes")}


def test_chat_logprobs_without_top_logprobs_have_none(pool: Pool) -> None:  # vllm-project/vllm#4795
    for fields in ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}, {"logprobs": True, "top_logprobs": None}):
        _, logprobs = logprobs_in_both_modes(pool, CHAT, request(CHAT, OUTPUT, max_tokens=3, **fields))
        assert [entry["top_logprobs"] for entry in logprobs["content"]] == [[], [], []]
    for fields in ({"top_logprobs": 1}, {"logprobs": False, "top_logprobs": 1}):
        response = pool.post(CHAT, request(CHAT, OUTPUT, max_tokens=3, **fields))
        assert (response.status_code, response.json()["error"]["param"]) == (400, "top_logprobs")


def test_without_logprobs_there_are_none(pool: Pool) -> None:
    for fields in ({}, {"logprobs": False}, {"logprobs": None}, {"logprobs": False, "top_logprobs": 0}):
        assert both(pool, CHAT, request(CHAT, OUTPUT, max_tokens=3, **fields)).only.logprobs == []
    for fields in ({}, {"logprobs": None}):
        assert both(pool, COMPLETIONS, request(COMPLETIONS, OUTPUT, max_tokens=3, **fields)).only.logprobs == []


@every_dialect
def test_the_bytes_of_all_tokens_are_the_text(pool: Pool, path: str) -> None:
    wanted: dict[str, Any] = {"logprobs": True} if path == CHAT else {"logprobs": 0}
    answer, logprobs = logprobs_in_both_modes(pool, path, request(path, OUTPUT, max_tokens=len(OUTPUT), **wanted))
    assert answer.only.text == TEXT
    if path == CHAT:
        assert b"".join(bytes(entry["bytes"]) for entry in logprobs["content"]) == TEXT.encode()
    else:
        assert [_raw(token) for token in logprobs["tokens"]] == [bytes([byte]) for byte in OUTPUT]


def _raw(token: str) -> bytes:
    """A completion's token as bytes: a part of a character is written as `bytes:\\xf0`."""
    if token.startswith("bytes:"):
        return bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
    return token.encode()


# ---- completion logprobs ----


def test_completion_logprobs_of_zero_are_the_sampled_tokens_alone(pool: Pool) -> None:  # vllm-project/vllm#3707
    _, logprobs = logprobs_in_both_modes(
        pool, COMPLETIONS, request(COMPLETIONS, list(b"abc"), max_tokens=3, logprobs=0)
    )
    assert logprobs["tokens"] == ["a", "b", "c"]
    assert logprobs["top_logprobs"] is None
    assert all(logprob < 0 for logprob in logprobs["token_logprobs"])


def test_parts_of_characters_have_distinct_names(pool: Pool) -> None:  # vllm-project/vllm#6626
    _, logprobs = logprobs_in_both_modes(
        pool, COMPLETIONS, request(COMPLETIONS, OUTPUT, max_tokens=len(OUTPUT), logprobs=5)
    )
    for token, own, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert len(top) == 5
        assert top[token] == own
        assert "\ufffd" not in "".join(top)


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("as_text", [False, True])
def test_text_offsets_are_places_in_prompt_and_completion(  # xorbitsai/inference#5245
    pool: Pool, echo: bool, as_text: bool
) -> None:
    body = request(COMPLETIONS, OUTPUT, max_tokens=len(OUTPUT), logprobs=1, echo=echo)
    if as_text:
        body["prompt"] = TEXT
    answer, logprobs = logprobs_in_both_modes(pool, COMPLETIONS, body)
    places = [place for place, character in enumerate(TEXT + TEXT) for _ in character.encode()]
    assert answer.only.text == (TEXT + TEXT if echo else TEXT)
    assert logprobs["text_offset"] == (places if echo else places[len(OUTPUT) :])


@every_dialect
def test_tokens_can_be_written_as_ids(pool: Pool, path: str) -> None:
    wanted: dict[str, Any] = {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
    body = request(path, OUTPUT, max_tokens=4, return_tokens_as_token_ids=True, **wanted)
    _, logprobs = logprobs_in_both_modes(pool, path, body)
    names = [f"token_id:{token_id}" for token_id in OUTPUT[:4]]
    if path == CHAT:
        assert [entry["token"] for entry in logprobs["content"]] == names
        assert [entry["top_logprobs"][0]["token"] for entry in logprobs["content"]] == names
    else:
        assert logprobs["tokens"] == names
        assert [list(top) for top in logprobs["top_logprobs"]] == [[name] for name in names]


def test_both_shapes_say_the_same(pool: Pool) -> None:
    _, chat = logprobs_in_both_modes(
        pool, CHAT, request(CHAT, OUTPUT, max_tokens=len(OUTPUT), logprobs=True, top_logprobs=3)
    )
    _, completion = logprobs_in_both_modes(
        pool, COMPLETIONS, request(COMPLETIONS, OUTPUT, max_tokens=len(OUTPUT), logprobs=3)
    )
    assert [entry["logprob"] for entry in chat["content"]] == completion["token_logprobs"]
    assert [bytes(entry["bytes"]) for entry in chat["content"]] == [_raw(token) for token in completion["tokens"]]
    assert [[top["logprob"] for top in entry["top_logprobs"]] for entry in chat["content"]] == [
        list(top.values()) for top in completion["top_logprobs"]
    ]


@every_dialect
def test_logprobs_end_with_the_token_that_completed_the_stop_string(pool: Pool, path: str) -> None:
    wanted: dict[str, Any] = {"logprobs": True} if path == CHAT else {"logprobs": 0}
    body = request(path, list(b"abcdefgh"), max_tokens=100, stop="c", return_token_ids=True, **wanted)
    answer, logprobs = logprobs_in_both_modes(pool, path, body)
    assert answer.only.said == ("ab", list(b"abc"), "stop", "c")
    assert len(logprobs["content" if path == CHAT else "tokens"]) == 3


# ---- echo ----


@pytest.mark.parametrize("prompt", ["Grüße", list("Grüße".encode())], ids=["text", "ids"])
@pytest.mark.parametrize("logprobs", [None, 0, 1])
def test_an_echo_is_the_prompt_and_then_the_completion(  # vllm-project/vllm#2706
    pool: Pool, prompt: Any, logprobs: int | None
) -> None:
    body = {"model": "sim", "prompt": prompt, "echo": True, "max_tokens": 4, "return_token_ids": True}
    if logprobs is not None:
        body["logprobs"] = logprobs
    answer = both(pool, COMPLETIONS, body)
    assert answer.only.said == ("GrüßeGrü", list("Grü".encode()), "length", None)
    assert answer.counts == (7, 4, 11)
    assert len(answer.only.logprobs) == 0 if logprobs is None else len(joined(answer.only)["tokens"]) == 11


def test_an_echo_of_ids_follows_skip_special_tokens(pool: Pool) -> None:
    body = request(COMPLETIONS, [IM_START, *b"ab"], max_tokens=1, echo=True)
    assert both(pool, COMPLETIONS, body).only.text == "ab"
    assert both(pool, COMPLETIONS, {**body, "skip_special_tokens": False}).only.text == "<|im_start|>ab<|im_start|>"


@pytest.mark.parametrize("prompt", ["Grüße", list("Grüße".encode())], ids=["text", "ids"])
@pytest.mark.parametrize("logprobs", [0, 1])
def test_a_prompt_can_be_scored_without_a_token_made(  # vllm-project/vllm#6521
    pool: Pool, prompt: Any, logprobs: int
) -> None:
    body = {"model": "sim", "prompt": prompt, "echo": True, "max_tokens": 0, "logprobs": logprobs}
    answer, scored = logprobs_in_both_modes(pool, COMPLETIONS, body)
    assert answer.only.said == ("Grüße", [], "length", None)
    assert answer.counts == (7, 0, 7)
    assert [_raw(token) for token in scored["tokens"]] == [bytes([byte]) for byte in "Grüße".encode()]
    assert scored["text_offset"] == [0, 1, 2, 2, 3, 3, 4]
    first, *others = scored["token_logprobs"]
    assert first is None
    assert all(logprob < 0 for logprob in others)
    if logprobs:
        assert scored["top_logprobs"][0] is None
        assert all(len(top) == 1 for top in scored["top_logprobs"][1:])
    else:
        assert scored["top_logprobs"] is None


def test_an_echo_of_no_tokens_is_the_prompt(pool: Pool) -> None:
    body = {"model": "sim", "prompt": "Grüße", "echo": True, "max_tokens": 0}
    answer = both(pool, COMPLETIONS, body)
    assert (answer.only.said, answer.counts) == (("Grüße", [], "length", None), (7, 0, 7))
    response = pool.post(COMPLETIONS, {**body, "echo": False})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


def test_an_echo_has_logprobs_of_prompt_and_completion(pool: Pool) -> None:  # ggml-org/llama.cpp#27174
    body = {"model": "sim", "prompt": "score me", "echo": True, "max_tokens": 1, "logprobs": 1}
    _, logprobs = logprobs_in_both_modes(pool, COMPLETIONS, body)
    assert "".join(logprobs["tokens"]) == "score me" + "s"
    assert [logprob is None for logprob in logprobs["token_logprobs"]] == [True] + [False] * 8


def test_a_stop_string_is_not_looked_for_in_an_echo(pool: Pool) -> None:
    body = {"model": "sim", "prompt": "ab>>", "echo": True, "max_tokens": 100, "stop": ">>"}
    assert both(pool, COMPLETIONS, body).only.said == ("ab>>ab", [], "stop", ">>")


def test_each_prompt_of_a_list_is_echoed_and_scored_by_itself(pool: Pool) -> None:
    body = {"model": "sim", "prompt": ["ab", "cde"], "n": 2, "echo": True, "max_tokens": 1, "logprobs": 1}
    answer, _ = logprobs_in_both_modes(pool, COMPLETIONS, body)
    assert [answer.choices[index].text for index in range(4)] == ["aba", "aba", "cdec", "cdec"]
    assert [joined(answer.choices[index])["text_offset"] for index in (0, 3)] == [[0, 1, 2], [0, 1, 2, 3]]
    assert answer.counts == (5, 4, 9)


@every_dialect
def test_prompt_logprobs_are_complete(pool: Pool, path: str) -> None:  # vllm-project/vllm-metal#680
    response = pool.post(path, request(path, list(b"abc"), max_tokens=1, prompt_logprobs=1))
    document = response.json()
    first, *others = (document if path == CHAT else document["choices"][0])["prompt_logprobs"]
    assert first is None
    assert [next(iter(entry)) for entry in others] == [str(token_id) for token_id in b"bc"]
    assert [entry[str(token_id)]["decoded_token"] for entry, token_id in zip(others, b"bc", strict=True)] == ["b", "c"]


# ---- several choices ----


@every_dialect
def test_every_choice_has_its_own_index_text_and_end(  # sgl-project/sglang#2912, ggml-org/llama.cpp#20226
    pool: Pool, path: str
) -> None:
    answer = both(pool, path, request(path, OUTPUT, max_tokens=len(OUTPUT) - 1, n=3, return_token_ids=True))
    assert sorted(answer.choices) == [0, 1, 2]
    for choice in answer.choices.values():
        assert choice.said == (TEXT[:-1] + "\ufffd", OUTPUT[:-1], "length", None)
    ends = [
        entry["index"] for chunk in answer.chunks for entry in chunk["choices"] if entry["finish_reason"] is not None
    ]
    assert sorted(ends) == [0, 1, 2]


def test_choices_of_one_seed_differ_and_come_again(seeded_pool: Pool) -> None:
    for path in DIALECTS:
        body = request(path, list(b"Say something."), max_tokens=20, n=3, seed=7)
        first = both(seeded_pool, path, body)
        texts = [first.choices[index].text for index in range(3)]
        assert len(set(texts)) == 3
        assert [whole(seeded_pool, path, body).choices[index].text for index in range(3)] == texts
        other = whole(seeded_pool, path, {**body, "seed": 8, "n": 1})
        assert other.only.text != texts[0]
        alone = whole(seeded_pool, path, {**body, "n": 1})
        assert alone.only.text == texts[0]


def test_two_choices_with_logprobs_of_zero_stream_to_their_ends(pool: Pool) -> None:  # vllm-project/vllm#16805
    body = request(COMPLETIONS, OUTPUT, max_tokens=len(OUTPUT), n=2, logprobs=0)
    answer, _ = logprobs_in_both_modes(pool, COMPLETIONS, body)
    for choice in streamed(pool, COMPLETIONS, body).choices.values():
        assert choice.text == TEXT
        assert len(joined(choice)["tokens"]) == len(OUTPUT)
    assert answer.counts == (len(OUTPUT), 2 * len(OUTPUT), 3 * len(OUTPUT))


# ---- usage ----


@every_dialect
def test_usage_is_one_last_chunk_and_null_before_it(  # vllm-project/vllm#7262, #6371
    pool: Pool, path: str
) -> None:
    body = {**request(path, OUTPUT, max_tokens=5), "stream": True}
    for options in ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": False}):
        *chunks, last = frames(pool.post(path, {**body, "stream_options": options}))
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 5
        assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    for options in (None, {}, {"include_usage": False}, {"include_usage": None}, {"continuous_usage_stats": True}):
        chunks = frames(pool.post(path, {**body, "stream_options": options}))
        assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


@every_dialect
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stop", [None, "b"])
def test_continuous_usage_grows_and_ends_at_the_total(  # sgl-project/sglang#12241
    pool: Pool, path: str, n: int, stop: str | None
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = streamed(pool, path, request(path, OUTPUT, max_tokens=100, n=n, stop=stop, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in answer.chunks]
    assert counts == sorted(counts)
    assert (
        counts[-2] == counts[-1] == whole(pool, path, request(path, OUTPUT, max_tokens=100, n=n, stop=stop)).counts[1]
    )
    for chunk in answer.chunks:
        usage = chunk["usage"]
        assert usage["prompt_tokens"] == len(OUTPUT)
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@every_dialect
def test_usage_counts_each_id_once_up_to_the_stop(pool: Pool, path: str) -> None:  # vllm-project/vllm#8625
    body = request(path, OUTPUT, max_tokens=100, n=2, stop=" b", return_token_ids=True)
    answer = both(pool, path, body)
    made = OUTPUT.index(ord("b")) + 1
    assert answer.counts == (len(OUTPUT), 2 * made, len(OUTPUT) + 2 * made)
    assert [len(choice.token_ids) for choice in answer.choices.values()] == [made, made]


@every_dialect
def test_the_prompt_counts_once_however_many_choices_it_has(pool: Pool, path: str) -> None:  # vllm-project/vllm#56361
    before = pool.metric("prompt_tokens_total"), pool.metric("generation_tokens_total")
    assert whole(pool, path, request(path, OUTPUT, max_tokens=3, n=4)).counts == (len(OUTPUT), 12, len(OUTPUT) + 12)
    after = pool.metric("prompt_tokens_total"), pool.metric("generation_tokens_total")
    assert (after[0] - before[0], after[1] - before[1]) == (len(OUTPUT), 12)
