"""A conversation's fields become one prompt, and chat and tokenize make the same of them."""

import json
from typing import Any

import pytest

from apiserver.card import Card
from apiserver.errors import ContextLengthExceeded, InvalidRequest
from apiserver.protocol.chat_completions import ChatCompletion
from apiserver.protocol.tokenize import Tokenize
from apiserver.requests import Chat
from tests.unit.protocol.cards import make_card

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(card: Card | None = None, **fields: Any) -> Chat:
    """The prompt that both dialects make of these fields."""
    raw = json.dumps({"messages": HI, **fields}).encode()
    card = card or make_card()
    [of_chat] = ChatCompletion(raw, card).job.prompts
    [of_tokenize] = Tokenize(raw, card).job.prompts
    assert isinstance(of_chat, Chat)
    assert of_chat == of_tokenize
    return of_chat


def refusal(card: Card | None = None, **fields: Any) -> InvalidRequest:
    raw = json.dumps({"messages": HI, **fields}).encode()
    errors: list[InvalidRequest] = []
    for dialect in (ChatCompletion, Tokenize):
        with pytest.raises(InvalidRequest) as caught:
            dialect(raw, card or make_card())
        errors.append(caught.value)
    assert (errors[0].message, errors[0].param) == (errors[1].message, errors[1].param)
    return errors[0]


def test_a_bare_conversation_is_to_be_answered() -> None:
    prompt = chat()
    assert prompt == Chat(HI, add_generation_prompt=True, continue_final_message=False, add_special_tokens=False)


@pytest.mark.parametrize(
    ("fields", "generates", "continues"),
    [
        ({}, True, False),
        ({"add_generation_prompt": False}, False, False),
        ({"continue_final_message": True}, False, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, False, True),
        ({"continue_final_message": False, "add_generation_prompt": True}, True, False),
    ],
)
def test_a_prompt_ends_with_a_new_turn_or_within_the_last(
    fields: dict[str, Any], generates: bool, continues: bool
) -> None:
    prompt = chat(**fields)
    assert (prompt.add_generation_prompt, prompt.continue_final_message) == (generates, continues)


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {}),
        ({"chat_template_kwargs": {"a": 1}}, {"a": 1}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high", "enable_thinking": True, "thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
        ({"reasoning_effort": 0}, {"reasoning_effort": 0, "enable_thinking": False, "thinking": False}),
        ({"reasoning_effort": 0.5}, {"reasoning_effort": 0.5, "enable_thinking": True, "thinking": True}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "own"}},
            {"reasoning_effort": "own", "enable_thinking": False, "thinking": True},
        ),
        ({"thinking": {"type": "enabled"}}, {"thinking": {"type": "enabled"}}),
        ({"thinking": False, "chat_template_kwargs": {"thinking": True}}, {"thinking": True}),
    ],
)
def test_what_the_client_says_of_a_variable_wins_over_what_a_field_implies(
    fields: dict[str, Any], variables: dict[str, Any]
) -> None:
    assert chat(**fields).variables == variables


def test_tools_are_shown_unless_they_are_switched_off() -> None:
    assert chat(tools=[TOOL]).tools == [TOOL]
    assert chat(tools=[TOOL], tool_choice="auto").tools == [TOOL]
    assert chat(tools=[TOOL], tool_choice="none").tools is None
    assert chat(tool_choice="none").tools is None
    assert chat(tools=[{"type": "function", "function": {"name": "f", "parameters": None}}]).tools


def test_a_template_of_the_request_needs_the_operators_trust() -> None:
    assert refusal(chat_template="{{ 1 }}").param == "chat_template"
    assert chat(make_card(trust_request_chat_template=True), chat_template="{{ 1 }}").template == "{{ 1 }}"


def test_more_messages_than_the_context_has_tokens_cannot_fit() -> None:
    error = refusal(messages=HI * 1001)
    assert isinstance(error, ContextLengthExceeded)
    assert error.param == "messages"
    assert len(chat(messages=HI * 1000).messages) == 1000


@pytest.mark.parametrize("role", [None, 5, "", "wizard", [], {}, ["user"], {"user": 1}, True])
def test_a_role_is_one_of_six_words(role: Any) -> None:
    assert refusal(messages=[*HI, {"role": role, "content": "x"}]).param == "messages[1].role"
