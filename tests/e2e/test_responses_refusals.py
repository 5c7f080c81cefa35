"""What the Responses API refuses, and how."""

from typing import Any

import openai
import pytest

from tests.conftest import StartPool
from tests.e2e.responses_clients import RESPONSES, error_of
from tests.pool import Pool, wait_for

pytestmark = pytest.mark.e2e


@pytest.fixture
def pool(responses_pool: Pool) -> Pool:
    return responses_pool


@pytest.mark.parametrize("path", ["resp_none", "resp_none/input_items", "%F0%9F%8E%89"])
def test_an_unknown_response_is_not_found(pool: Pool, path: str) -> None:
    assert error_of(pool.client.get(f"{RESPONSES}/{path}"), 404)["param"] == "response_id"


def test_what_was_not_to_be_stored_is_not(pool: Pool) -> None:
    made = pool.openai.responses.create(model="sim", input="Hi", store=False)
    assert made.to_dict()["store"] is False
    for response in (
        pool.client.get(f"{RESPONSES}/{made.id}"),
        pool.client.delete(f"{RESPONSES}/{made.id}"),
        pool.client.post(f"{RESPONSES}/{made.id}/cancel"),
    ):
        error_of(response, 404)
    with pytest.raises(openai.BadRequestError) as gone:
        pool.openai.responses.create(model="sim", input="Hi", previous_response_id=made.id)
    assert (gone.value.param, gone.value.code) == ("previous_response_id", "previous_response_not_found")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true", "stream"),
        ("stream=maybe", "stream"),
        ("starting_after=3", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=1.5", "starting_after"),
    ],
)
def test_a_stream_that_there_is_not_is_refused(pool: Pool, query: str, param: str) -> None:
    made = pool.openai.responses.create(model="sim", input="Hi")
    assert error_of(pool.client.get(f"{RESPONSES}/{made.id}?{query}"), 400)["param"] == param
    assert pool.client.get(f"{RESPONSES}/{made.id}?stream=false&include=x").json()["id"] == made.id


def test_only_what_is_in_the_background_can_be_cancelled(pool: Pool) -> None:
    made = pool.openai.responses.create(model="sim", input="Hi")
    with pytest.raises(openai.BadRequestError) as refused:
        pool.openai.responses.cancel(made.id)
    assert refused.value.param == "response_id"
    done = pool.openai.responses.create(model="sim", input="Hi", background=True)
    wait_for(lambda: pool.openai.responses.retrieve(done.id).status == "completed")
    assert pool.openai.responses.cancel(done.id).status == "completed"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "x", "background": True, "store": False}, "background"),
        ({"input": "x", "previous_response_id": "resp_none"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_none"}]}, "input[0].id"),
        ({"input": "x", "max_output_tokens": 5000}, "max_output_tokens"),
        ({"input": "x", "text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_before_a_stream_begins(pool: Pool, body: dict[str, Any], param: str) -> None:
    for fields in ({}, {"stream": True}):
        assert error_of(pool.client.post(RESPONSES, json=body | fields), 400)["param"] == param


def test_a_body_that_is_no_json_is_refused(pool: Pool) -> None:
    headers = {"content-type": "application/json"}
    error_of(pool.client.post(RESPONSES, content=b"{", headers=headers), 400)
    error_of(pool.client.post(RESPONSES, content=b'{"input": "\\ud83d"}', headers=headers), 400)
    error_of(pool.client.post(RESPONSES, content=b"{}"), 415)


def test_another_method_is_told_which_ones_there_are(pool: Pool) -> None:
    for method, path, allowed in (
        ("GET", RESPONSES, "POST"),
        ("POST", f"{RESPONSES}/resp_1", "GET, HEAD, DELETE"),
        ("GET", f"{RESPONSES}/resp_1/cancel", "POST"),
        ("DELETE", f"{RESPONSES}/resp_1/input_items", "GET, HEAD"),
    ):
        response = pool.client.request(method, path)
        error_of(response, 405)
        assert response.headers["allow"] == allowed


# ---- without a store ------------------------------------------------------------------------------------------------


def test_a_pool_that_keeps_nothing_says_so_and_answers_all_the_same(start_pool: StartPool) -> None:
    with start_pool("--no-responses-store", "--api-server-count", "1") as pool:
        made = pool.openai.responses.create(model="sim", input="Hi", max_output_tokens=3)
        assert made.to_dict()["store"] is False
        assert [event.type for event in pool.openai.responses.create(model="sim", input="Hi", stream=True)]
        for response in (
            pool.client.get(f"{RESPONSES}/{made.id}"),
            pool.client.get(f"{RESPONSES}/{made.id}/input_items"),
            pool.client.delete(f"{RESPONSES}/{made.id}"),
            pool.client.post(f"{RESPONSES}/{made.id}/cancel"),
        ):
            assert "--no-responses-store" in error_of(response, 404)["message"]
        for fields, param in (
            ({"store": True}, "store"),
            ({"background": True}, "background"),
            ({"previous_response_id": made.id}, "previous_response_id"),
            ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ):
            error = error_of(pool.client.post(RESPONSES, json={"input": "Hi", **fields}), 400)
            assert error["param"] == param
            assert "--no-responses-store" in error["message"]
