"""/generate and /inference/v1/generate over real sockets: whole and streamed say the same, and every request ends."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.answers import frames
from tests.e2e.refusals import CONTEXT, GENERATE, TOKEN_GENERATE, error_of
from tests.pool import Pool, running_pool, wait_for
from tests.streams import OpenRequest

pytestmark = pytest.mark.e2e

TEXT = "Grüße, 世界 🎉"
SIZE = len(TEXT.encode())
FAILS_AT_ONCE, FAILS_LATER, IS_REFUSED = 1, 2, 3


@pytest.fixture(scope="module")
def faulty_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    faults = (f"error:{FAILS_AT_ONCE}:0", f"error:{FAILS_LATER}:3", f"refuse:{IS_REFUSED}:0")
    engine = ["--mode", "echo", "--step-ms", "5", *(word for fault in faults for word in ("--fault", fault))]
    with running_pool(tmp_path_factory.mktemp("faulty") / "pool.log", "--api-server-count", "1", engine=engine) as pool:
        yield pool
        assert "Traceback" not in pool.log


def whole(pool: Pool, **fields: Any) -> list[dict[str, Any]]:
    response = pool.post(GENERATE, fields)
    assert response.status_code == 200, response.text
    document = response.json()
    return document if isinstance(document, list) else [document]


def streamed(pool: Pool, **fields: Any) -> list[dict[str, Any]]:
    """What each choice ended with. Checks what every stream keeps: text only grows, one end a choice, nothing after."""
    response = pool.post(GENERATE, {**fields, "stream": True})
    assert response.status_code == 200, response.text
    last: dict[int, dict[str, Any]] = {}
    for chunk in frames(response):
        index = chunk.pop("index", 0)
        before = last.get(index)
        if before is not None:
            assert before["meta_info"]["finish_reason"] is None, "nothing comes behind the end"
            assert chunk["text"].startswith(before["text"])
            assert chunk["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert len(chunk["output_ids"]) >= chunk["meta_info"]["completion_tokens"]
        last[index] = chunk
    assert all(one["meta_info"]["finish_reason"] is not None for one in last.values())
    return [one for _, one in sorted(last.items())]


def both(pool: Pool, **fields: Any) -> list[dict[str, Any]]:
    first, second = whole(pool, **fields, rid="r"), streamed(pool, **fields, rid="r")
    for one in (*first, *second):
        one["meta_info"].pop("e2e_latency")
    assert first == second
    return first


@pytest.mark.parametrize(
    ("sampling", "text", "reason"),
    [
        ({}, TEXT, {"type": "stop", "matched": 258}),
        ({"max_new_tokens": 7}, "Grüße", {"type": "length", "length": 7}),
        ({"stop": ["世"]}, "Grüße, ", {"type": "stop", "matched": "世"}),
        ({"stop": ["世"], "no_stop_trim": True}, "Grüße, 世", {"type": "stop", "matched": "世"}),
        ({"stop_token_ids": [44]}, "Grüße", {"type": "stop", "matched": 44}),
        ({"max_new_tokens": 0}, "", {"type": "length", "length": 0}),
    ],
)
def test_it_ends_for_the_right_reason_whole_and_streamed(
    echo_pool: Pool, sampling: dict[str, Any], text: str, reason: dict[str, Any]
) -> None:
    (one,) = both(echo_pool, text=TEXT, sampling_params=sampling)
    assert (one["text"], one["meta_info"]["finish_reason"]) == (text, reason)


def test_choices_and_batches_are_lists(echo_pool: Pool) -> None:
    assert [one["text"] for one in both(echo_pool, text="ab", sampling_params={"n": 2})] == ["ab", "ab"]
    assert [one["text"] for one in both(echo_pool, text=["ab", "cde"])] == ["ab", "cde"]
    assert [one["text"] for one in both(echo_pool, input_ids=[[72], [105, 33]])] == ["H", "i!"]
    said = both(echo_pool, text=["ab", "cde"], sampling_params=[{"max_new_tokens": 1}, {"stop": "d"}])
    assert [one["text"] for one in said] == ["a", "c"]
    assert [one["meta_info"]["prompt_tokens"] for one in said] == [2, 3]


def test_each_prompt_of_a_batch_is_answered_by_its_own_rules(echo_pool: Pool) -> None:
    answers = whole(
        echo_pool,
        text=["ab", "cd"],
        rid=["x", "y"],
        sampling_params=[{"no_stop_trim": True, "stop": "b"}, {"skip_special_tokens": False}],
        return_logprob=[True, False],
    )
    assert [one["text"] for one in answers] == ["ab", "cd"]
    assert [one["meta_info"]["id"] for one in answers] == ["x", "y"]
    assert ["output_token_logprobs" in one["meta_info"] for one in answers] == [True, False]


def test_logprobs_of_prompt_and_answer(echo_pool: Pool) -> None:
    fields: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    (one,) = both(echo_pool, text="abc", logprob_start_len=0, **fields)
    meta = one["meta_info"]
    assert [entry[1:] for entry in meta["input_token_logprobs"]] == [[97, "a"], [98, "b"], [99, "c"]]
    assert meta["input_token_logprobs"][0][0] is None
    assert meta["input_top_logprobs"][0] is None
    assert [len(tops) for tops in meta["output_top_logprobs"]] == [2] * 4
    assert [entry[1] for entry in meta["output_token_logprobs"]] == one["output_ids"] == [97, 98, 99, 258]


def test_logprobs_of_tokens_by_id(echo_pool: Pool) -> None:
    fields: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0, "token_ids_logprob": [97, 98]}
    (one,) = both(echo_pool, text="ab", **fields)
    meta = one["meta_info"]
    assert meta["input_token_ids_logprobs"][0] is None
    assert [[entry[1] for entry in entries] for entries in meta["output_token_ids_logprobs"]] == [[97, 98]] * 3
    own = [entry[0] for entry in meta["output_token_logprobs"]]
    assert [meta["output_token_ids_logprobs"][place][place][0] for place in (0, 1)] == pytest.approx(own[:2])
    first, second = both(echo_pool, text=["a", "b"], **(fields | {"token_ids_logprob": [[5], []]}))
    assert len(first["meta_info"]["output_token_ids_logprobs"][0]) == 1
    assert "output_token_ids_logprobs" not in second["meta_info"]
    outside = echo_pool.post(GENERATE, {"text": "a", **fields, "token_ids_logprob": [259]})
    assert error_of(outside)["param"] == "token_ids_logprob"


def test_a_long_stream_with_logprobs_ends_with_the_whole_answer(echo_pool: Pool) -> None:
    text = TEXT * 40
    sampling = {"max_new_tokens": len(text.encode())}
    (one,) = both(echo_pool, text=text, sampling_params=sampling, return_logprob=True, top_logprobs_num=1)
    assert one["text"] == text
    assert one["meta_info"]["output_token_logprobs_length"] == len(text.encode())


def test_an_incremental_stream_tells_each_piece_once(start_pool: Any) -> None:
    with start_pool("--api-server-count", "1", "--incremental-streaming-output", engine=["--mode", "echo"]) as pool:
        chunks = frames(pool.post(GENERATE, {"text": TEXT, "stream": True}))
        assert "".join(chunk["text"] for chunk in chunks) == TEXT
        assert [token_id for chunk in chunks for token_id in chunk["output_ids"]] == [*TEXT.encode(), 258]
        body = {"text": TEXT, "stream": True, "incremental_streaming_output": False}
        assert frames(pool.post(GENERATE, body))[-1]["text"] == TEXT


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_served_is_refused_before_a_header_leaves(echo_pool: Pool, stream: bool) -> None:
    long = {"text": "x" * CONTEXT, "stream": stream}
    assert error_of(echo_pool.post(GENERATE, long))["code"] == "context_length_exceeded"
    room = {"text": "Hi", "sampling_params": {"max_new_tokens": CONTEXT}, "stream": stream}
    assert error_of(echo_pool.post(GENERATE, room))["param"] == "sampling_params.max_new_tokens"
    assert error_of(echo_pool.post(GENERATE, {"input_ids": [259], "stream": stream}))["param"] == "input_ids"
    assert error_of(echo_pool.post(GENERATE, {"text": ["a", ""], "stream": stream}))["param"] == "text[1]"
    unable = {"text": "a", "sampling_params": {"regex": "a"}, "stream": stream}
    assert error_of(echo_pool.post(GENERATE, unable))["param"] == "sampling_params.regex"


@pytest.mark.parametrize("path", [GENERATE, TOKEN_GENERATE])
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_is_an_error_and_never_a_clean_end(faulty_pool: Pool, path: str, stream: bool) -> None:
    for fault in (FAILS_AT_ONCE, FAILS_LATER, IS_REFUSED):
        ids = [fault, *b"abcdefgh"]
        response = faulty_pool.post(path, {"token_ids": ids, "input_ids": ids, "stream": stream})
        if not stream:
            error_of(response, 503 if fault == IS_REFUSED else 500)
        elif response.status_code == 200:
            assert "error" in frames(response)[-1]
        else:
            assert fault != FAILS_LATER
    ids = [65]
    assert faulty_pool.post(path, {"token_ids": ids, "input_ids": ids}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{"text": "a"}, {"text": ["a", "b"]}, {"text": "a", "sampling_params": {"n": 2}}])
def test_a_client_that_leaves_takes_its_work_along(seeded_pool: Pool, fields: dict[str, Any], stream: bool) -> None:
    sampling = {"max_new_tokens": 3000, "ignore_eos": True, **fields.get("sampling_params", {})}
    body = {**fields, "sampling_params": sampling, "stream": stream}
    with OpenRequest(seeded_pool.url, GENERATE, body) as request:
        if stream:
            request.read_some()
        wait_for(lambda: seeded_pool.engine()["running"] > 0, what="a running request")
    seeded_pool.wait_idle()


# ---- ids in, ids out ----


def token_answer(pool: Pool, **fields: Any) -> dict[str, Any]:
    response = pool.post(TOKEN_GENERATE, {"token_ids": [*b"Hello"], **fields})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(
    ("sampling", "ids", "reason"),
    [
        ({}, [*b"Hello", 258], "stop"),
        ({"max_tokens": 2}, [72, 101], "length"),
        ({"stop": "l"}, [72, 101, 108], "stop"),
        ({"n": 2, "logprobs": 1}, [*b"Hello", 258], "stop"),
    ],
)
def test_ids_come_back_whole_and_streamed(
    echo_pool: Pool, sampling: dict[str, Any], ids: list[int], reason: str
) -> None:
    whole_choices = token_answer(echo_pool, sampling_params=sampling)["choices"]
    assert {(tuple(choice["token_ids"]), choice["finish_reason"]) for choice in whole_choices} == {(tuple(ids), reason)}
    body = {"token_ids": [*b"Hello"], "sampling_params": sampling, "stream": True}
    *chunks, last = frames(echo_pool.post(TOKEN_GENERATE, {**body, "stream_options": {"include_usage": True}}))
    streams: dict[int, list[int]] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        streams[choice["index"]] = streams.get(choice["index"], []) + choice["token_ids"]
    assert streams == dict.fromkeys(range(sampling.get("n", 1)), ids)
    assert last["usage"]["completion_tokens"] == len(ids) * len(streams)


def test_the_token_route_names_what_is_wrong_where_it_stands(echo_pool: Pool) -> None:
    for fields, param in (
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1, 999]}, "token_ids"),
        ({"token_ids": [1], "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"token_ids": [1], "sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens"),
        ({"token_ids": [1], "sampling_params": {"bad_words": ["a"]}}, "sampling_params.bad_words"),
        ({"token_ids": [1], "features": {"a": 1}}, "features"),
        (
            {"token_ids": [1], "stream": True, "sampling_params": {"prompt_logprobs": 1}},
            "sampling_params.prompt_logprobs",
        ),
    ):
        assert error_of(echo_pool.post(TOKEN_GENERATE, fields))["param"] == param
    scored = token_answer(echo_pool, sampling_params={"prompt_logprobs": 1}, request_id="mine")
    assert (scored["request_id"], len(scored["prompt_logprobs"])) == ("mine", 5)


# ---- sglang.bench_serving ----


def test_sglang_bench_finds_its_tokens(echo_pool: Pool) -> None:
    """Its payload to the letter, and its reader: one event a line, text so far, counts in meta_info."""
    payload = {
        "text": TEXT,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": SIZE, "ignore_eos": True},
        "stream": True,
        "stream_options": {"include_usage": True},
        "lora_path": None,
        "return_logprob": False,
        "return_routed_experts": False,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "token_ids_logprob": None,
        "image_data": None,
    }
    response = echo_pool.post(GENERATE, payload)
    text, told, prompt_tokens = "", 0, 0
    for line in filter(None, (line.strip() for line in response.text.split("\n"))):
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            continue
        chunk = json.loads(data)
        new = chunk["meta_info"]["completion_tokens"] - told
        told += new
        prompt_tokens = chunk["meta_info"]["prompt_tokens"]
        if new:
            text = chunk["text"]
    assert (text, told, prompt_tokens) == (TEXT, SIZE, SIZE)
