"""Whatever form a client sends a message in, its text is in the prompt, or the client is told where it went wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from apiserver.tokenizer import byte
from apiserver.tokenizer.template import ChatTemplate, TemplateError

TEMPLATES = {file.stem: file.read_text() for file in sorted((Path(__file__).parent / "templates").glob("*.jinja"))}
TEMPLATES["byte"] = byte.CHAT_TEMPLATE
CHAT_TEMPLATES = {
    name: ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}) for name, source in TEMPLATES.items()
}
ROLES = ["system", "developer", "user", "assistant", "tool"]
NAMES_AND_ROLES = [
    *[(name, role) for name in TEMPLATES for role in ROLES],
    *[(name, "narrator") for name in ("chatml", "headers", "parts_only", "either", "byte")],  # the others know no more
]
WITH_TOOLS = [name for name in TEMPLATES if name not in ("parts_only", "byte")]  # those two show no tool calls
ARGUMENTS = {"city": "Bern", "days": 3}
TEXT_FORMS: dict[str, Any] = {
    "string": "needle",
    "text part": [{"type": "text", "text": "needle"}],
    "bare part": ["needle"],
    "input_text": [{"type": "input_text", "text": "needle"}],
    "output_text": [{"type": "output_text", "text": "needle", "annotations": []}],
    "refusal": [{"type": "refusal", "refusal": "needle"}],
}


def render(name: str, messages: list[dict[str, Any]]) -> str:
    return CHAT_TEMPLATES[name].render(
        messages, tools=None, add_generation_prompt=False, continue_final_message=False, variables={"date_string": "x"}
    )


def tool_call(arguments: object) -> dict[str, Any]:
    return {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": arguments}}


def conversation_with(role: str, content: object) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": role, "content": content}
    question = {"role": "user", "content": "q"}
    match role:
        case "assistant":
            return [question, message, question]
        case "tool":
            call = {"role": "assistant", "tool_calls": [tool_call(ARGUMENTS)]}
            return [question, call, message | {"tool_call_id": "call12345"}]
        case "user":
            return [message]
        case _:
            return [message, question]


@pytest.mark.parametrize(
    ("name", "content_format"),
    [
        ("chatml", "string"),
        ("headers", "string"),
        ("instructions", "string"),
        ("json_arguments", "string"),
        ("byte", "string"),
        ("parts_only", "openai"),
        ("either", "openai"),
    ],
)
def test_the_content_format_is_found_by_template(name: str, content_format: str) -> None:
    assert CHAT_TEMPLATES[name].content_format == content_format


@pytest.mark.parametrize("form", TEXT_FORMS)
@pytest.mark.parametrize(("name", "role"), NAMES_AND_ROLES)
def test_text_is_shown_in_every_form_and_role(name: str, role: str, form: str) -> None:
    prompt = render(name, conversation_with(role, TEXT_FORMS[form]))
    assert "needle" in prompt
    assert "'type'" not in prompt
    assert prompt == render(name, conversation_with(role, "needle"))


@pytest.mark.parametrize("name", [name for name in TEMPLATES if CHAT_TEMPLATES[name].content_format == "string"])
def test_parts_are_joined_by_a_newline_for_a_string_template(name: str) -> None:
    content = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render(name, conversation_with("user", content)) == render(name, conversation_with("user", "one\ntwo"))


def test_a_string_is_one_part_for_a_list_template() -> None:
    messages = CHAT_TEMPLATES["parts_only"].normalise([{"role": "user", "content": "x"}])
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "x"}]}]


def test_a_template_that_takes_both_gets_what_was_sent() -> None:
    content = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": "x"}, {"role": "user", "content": content}]
    assert CHAT_TEMPLATES["either"].normalise(messages) == messages


def test_the_form_is_chosen_by_role() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}{% endfor %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "a"}, {"role": "tool", "content": [{"type": "text", "text": "b"}]}]
    user, tool = ChatTemplate(source, {}).normalise(messages)
    assert user["content"] == [{"type": "text", "text": "a"}]
    assert tool["content"] == "b"


@pytest.mark.parametrize("content", ["missing", None, "", []])
@pytest.mark.parametrize("arguments", [ARGUMENTS, json.dumps(ARGUMENTS)])
@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_tool_call_is_the_same_prompt_in_every_form(name: str, arguments: object, content: object) -> None:
    def prompt(arguments: object, content: object) -> str:
        call: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": [tool_call(arguments)]}
        if content == "missing":
            del call["content"]
        return render(name, [{"role": "user", "content": "q"}, call])

    assert prompt(arguments, content) == prompt(ARGUMENTS, None)
    assert "weather" in prompt(arguments, content)
    assert "Bern" in prompt(arguments, content)
    assert "None" not in prompt(arguments, content)


@pytest.mark.parametrize("content", ["missing", None, "", []])
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_no_content_is_not_the_word_none(name: str, role: str, content: object) -> None:
    conversation = conversation_with(role, content)
    if content == "missing":
        for message in conversation:
            if message.get("content") == "missing":
                del message["content"]
    prompt = render(name, conversation)
    assert "None" not in prompt
    assert prompt == render(name, conversation_with(role, ""))


@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_no_arguments_are_an_empty_object(arguments: object) -> None:
    message = {"role": "assistant", "tool_calls": [tool_call(arguments)]}
    normal = CHAT_TEMPLATES["chatml"].normalise([message])
    assert normal[0]["tool_calls"][0]["function"]["arguments"] == {}


def test_arguments_stay_text_where_the_template_adds_them_to_text() -> None:
    text = '{"city":  "Bern"}'
    normal = CHAT_TEMPLATES["json_arguments"].normalise([{"role": "assistant", "tool_calls": [tool_call(text)]}])
    assert normal[0]["tool_calls"][0]["function"]["arguments"] == text
    assert normal[0]["content"] is None


def test_a_developer_is_the_system_unless_the_template_knows_one() -> None:
    conversation = conversation_with("developer", "needle")
    assert render("chatml", conversation) == render("chatml", conversation_with("system", "needle"))
    assert "<developer>!needle" in render("either", conversation)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_several_names(field: str) -> None:
    assert "(hm)ok" in render("either", [{"role": "assistant", "content": "ok", field: "hm"}])


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"content": "x"}, r"messages\[1\]\.role must be a string"),
        ({"role": "user", "content": 7}, r"messages\[1\]\.content must be a string or a list of content parts"),
        ({"role": "user", "content": {"type": "text", "text": "x"}}, r"messages\[1\]\.content must be a string or"),
        ({"role": "user", "content": ["x", {"text": "y"}]}, r"messages\[1\]\.content\[1\] must be a content part"),
        ({"role": "user", "content": [{"type": "text", "text": 7}]}, r"messages\[1\]\.content\[0\] must be a content"),
        (
            {"role": "user", "content": ["x", {"type": "image_url", "image_url": {"url": "data:,"}}]},
            r"messages\[1\]\.content\[1\] is of type 'image_url', but this model takes text only",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]},
            r"messages\[1\]\.content\[0\] is of type 'input_audio', but this model takes text only",
        ),
        ({"role": "assistant", "tool_calls": {"id": 1}}, r"messages\[1\]\.tool_calls must be a list"),
        (
            {"role": "assistant", "tool_calls": [{"id": 1}]},
            r"messages\[1\]\.tool_calls\[0\]\.function must be an object",
        ),
        (
            {"role": "assistant", "tool_calls": [tool_call("{}"), tool_call("{'a': 1}")]},
            r"messages\[1\]\.tool_calls\[1\]\.function\.arguments is not valid JSON: .+",
        ),
        (
            {"role": "assistant", "tool_calls": [tool_call("[1]")]},
            r"messages\[1\]\.tool_calls\[0\]\.function\.arguments must be a JSON object",
        ),
    ],
)
@pytest.mark.parametrize("name", ["chatml", "either"])
def test_what_cannot_be_shown_is_named(name: str, message: dict[str, Any], error: str) -> None:
    with pytest.raises(TemplateError, match=error):
        render(name, [{"role": "user", "content": "q"}, message])
