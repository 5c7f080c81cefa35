"""Input items, and the conversation that they are."""

from typing import Any

import pytest
from openai.types.responses import ResponseItemList

from apiserver.errors import InvalidRequest
from apiserver.protocol.responses_conversation import conversation
from apiserver.protocol.responses_input import Item, read_input, referenced_ids
from apiserver.protocol.responses_list import deleted, page

CALL: Item = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"a": 1}'}
OUTPUT: Item = {"type": "function_call_output", "call_id": "call_1", "output": "2"}
THOUGHT: Item = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}


def read(*items: Item) -> list[Item]:
    return read_input(list(items), {})


def messages(*items: Item, instructions: str | None = None) -> list[dict[str, Any]]:
    return conversation(read(*items), instructions)


def test_a_text_is_a_users_message() -> None:
    (item,) = read_input("Hi", {})
    assert item.pop("id").startswith("msg_")
    assert item == {
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "Hi"}],
    }


def test_items_keep_their_own_ids_and_get_one_where_they_have_none() -> None:
    items = read(
        {"role": "user", "content": "a", "id": "mine"}, CALL, OUTPUT, THOUGHT, {"role": "user", "content": "", "id": 5}
    )
    assert [item["id"].split("_")[0] for item in items] == ["mine", "fc", "fco", "rs", "msg"]


def test_instructions_are_the_first_message() -> None:
    assert messages({"role": "user", "content": "Hi"}, instructions="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_roles_and_parts_are_as_they_were_sent() -> None:
    assert messages(
        {"role": "developer", "content": "D"},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "S"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": []},
    ) == [
        {"role": "developer", "content": "D"},
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": []},
    ]


def test_thoughts_words_and_calls_of_one_turn_are_one_message() -> None:
    said = {"role": "assistant", "content": "Wait."}
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    other = {"id": "call_2", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert messages(THOUGHT, said, CALL, CALL | {"call_id": "call_2", "arguments": ""}, OUTPUT, THOUGHT, said) == [
        {"role": "assistant", "reasoning_content": "Hm.", "content": "Wait.", "tool_calls": [call, other]},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
        {"role": "assistant", "reasoning_content": "Hm.", "content": "Wait."},
    ]


def test_a_thought_after_a_call_begins_a_new_turn() -> None:
    assert [list(message) for message in messages(CALL, THOUGHT, CALL)] == [
        ["role", "tool_calls"],
        ["role", "reasoning_content", "tool_calls"],
    ]


def test_a_summary_stands_for_a_thought_and_an_encrypted_one_for_nothing() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "In short."}]}
    assert messages(summary) == [{"role": "assistant", "reasoning_content": "In short."}]
    assert messages({"type": "reasoning", "summary": [], "encrypted_content": "xyz"}) == []


def test_a_tools_output_may_be_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages(OUTPUT | {"output": parts})[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]


def test_a_reference_is_the_stored_item_itself() -> None:
    stored = {"msg_1": read({"role": "user", "content": "old", "id": "msg_1"})[0]}
    sent = [{"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}, {"role": "user", "content": "new"}]
    assert referenced_ids(sent) == ["msg_1", "msg_1"]
    assert referenced_ids("msg_1") == []
    assert [message["content"] for message in conversation(read_input(sent, stored), None)] == ["old", "old", "new"]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({}, "input[0].id"),
        ({"type": "item_reference"}, "input[0].id"),
        ({"type": "item_reference", "id": "gone"}, "input[0].id"),
        ({"type": "computer_call"}, "input[0].type"),
        ({"type": 5}, "input[0].type"),
        ({"type": ["message"]}, "input[0].type"),
        ({"type": "message"}, "input[0].role"),
        ({"role": "tool", "content": "x"}, "input[0].role"),
        ({"role": ["user"], "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": 5}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "input[0].content[0]"),
        ({"role": "user", "content": ["x"]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"text": "x"}]}, "input[0].content[0]"),
        (CALL | {"call_id": None}, "input[0].call_id"),
        (CALL | {"name": 5}, "input[0].name"),
        (CALL | {"arguments": {}}, "input[0].arguments"),
        (OUTPUT | {"output": None}, "input[0].output"),
        (OUTPUT | {"output": [{"type": "input_file", "file_id": "x"}]}, "input[0].output[0]"),
        ({"type": "reasoning", "summary": "x"}, "input[0].summary"),
        ({"type": "reasoning", "content": ["x"]}, "input[0].content[0]"),
        ({"type": "reasoning", "content": [{"type": "reasoning_text"}]}, "input[0].content[0]"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_its_path(item: Item, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(item)
    assert refused.value.param == param


@pytest.mark.parametrize("arguments", ["{", "5", "[" * 100_000], ids=["cut", "a number", "deep"])
def test_arguments_that_are_no_object_cannot_be_shown(arguments: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        messages(CALL | {"arguments": arguments})
    assert refused.value.param == "input"


# ---- pages of items ----


ITEMS = read(*({"role": "user", "content": str(number), "id": f"msg_{number}"} for number in range(25)), CALL, OUTPUT)


def numbers(document: dict[str, Any]) -> list[str]:
    ResponseItemList.model_validate(document, strict=True)
    return [item["id"] for item in document["data"]]


def test_pages_hold_all_items_once_in_either_order() -> None:
    for order, expected in ((None, ITEMS[::-1]), ("desc", ITEMS[::-1]), ("asc", ITEMS)):
        found: list[str] = []
        after = None
        while True:
            document = page(ITEMS, after=after, limit="10", order=order)
            found += numbers(document)
            after = document["last_id"]
            if not document["has_more"]:
                break
        assert found == [item["id"] for item in expected]


def test_a_page_is_twenty_items_unless_it_is_said() -> None:
    document = page(ITEMS, after=None, limit=None, order="asc")
    assert (document["first_id"], document["last_id"], document["has_more"]) == ("msg_0", "msg_19", True)


def test_behind_the_last_item_there_is_an_empty_page() -> None:
    document = page(ITEMS[:3], after="msg_2", limit=None, order="asc")
    assert numbers(document) == []
    assert document["has_more"] is False


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "ten"}, "limit"),
        ({"limit": "²"}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "msg_99"}, "after"),
    ],
    ids=str,
)
def test_a_page_that_cannot_be_is_refused(query: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        page(ITEMS, **({"after": None, "limit": None, "order": None} | query))
    assert refused.value.param == param


def test_a_deleted_one_says_so() -> None:
    assert deleted("resp_1") == {"id": "resp_1", "object": "response", "deleted": True}
