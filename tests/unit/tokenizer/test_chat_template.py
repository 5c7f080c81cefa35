"""Prompts are what transformers renders, character for character, or an error that says why there is none."""

import contextlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from apiserver.tokenizer import byte
from apiserver.tokenizer.template import RESERVED_VARIABLES, ChatTemplate, TemplateError

TEMPLATES = {file.stem: file.read_text() for file in sorted((Path(__file__).parent / "templates").glob("*.jinja"))}
TEMPLATES["byte"] = byte.CHAT_TEMPLATE
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>", "pad_token": "<|endoftext|>"}
CALL = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich <b>&'\"", "days": 3, "deep": {"a": [1, None, True]}}},
}
CALL_AS_TEXT = CALL | {"function": {"name": "weather", "arguments": json.dumps(CALL["function"]["arguments"])}}
RESULT = {"role": "tool", "tool_call_id": "call12345", "name": "weather", "content": '{"sun": "☀"}'}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Le temps qu'il fait — <b>météo</b> & co",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: object, **more: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def system(content: object) -> dict[str, Any]:
    return {"role": "system", "content": content}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "question": [user("Hi there, 你好 <b>&amp;</b> 🦙")],
    "system": [system("Be  brief.\n"), user("  hello\n")],
    "turns": [user("one"), assistant(" two "), user("three")],
    "many turns": [message for i in range(30) for message in (user(f"q{i}"), assistant(f"a{i}"))],
    "prefill": [user("6 times 7?"), assistant("The answer is ")],
    "prefill repeats": [user("Say a"), assistant("a"), user("again"), assistant("a")],
    "prefill empty": [user("6 times 7?"), assistant("")],
    "thinking": [user("one"), assistant("<think>\nhm\n</think>\n\ntwo"), user("three")],
    "reasoning": [
        user("one"),
        assistant("two", reasoning_content="because"),
        user("3"),
        assistant("4", reasoning="so"),
    ],
    "tools": [user("weather?"), assistant("Let me see", tool_calls=[CALL]), RESULT, assistant("Sunny"), user("thanks")],
    "tools, no content": [system("S"), user("weather?"), {"role": "assistant", "tool_calls": [CALL]}, RESULT],
    "tools, null content": [user("weather?"), assistant(None, tool_calls=[CALL]), RESULT, RESULT],
    "two calls": [user("weather?"), assistant("Two", tool_calls=[CALL, CALL]), RESULT, RESULT],
    "nulls": [{"role": "user", "content": "x", "name": None}, assistant("y", tool_calls=None, refusal=None)],
    "unknown role": [user("a"), {"role": "narrator", "content": "b"}],
}
VARIABLES: list[dict[str, Any]] = [
    {"date_string": "1 Jan 2026"},
    {"date_string": "1 Jan 2026", "enable_thinking": False},
]
FLAGS = [(False, False), (True, False), (False, True)]


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    backend = Tokenizer.from_str(byte.byte_tokenizer_json())
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL_TOKENS)


def render(
    template: str | ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = False,
    continue_final_message: bool = False,
    documents: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    chat_template = ChatTemplate(template, SPECIAL_TOKENS) if isinstance(template, str) else template
    return chat_template.render(
        messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        documents=documents,
        variables=variables or {"date_string": "1 Jan 2026"},
    )


def reference_or_none(reference: PreTrainedTokenizerFast, *arguments: Any, **options: Any) -> str | None:
    try:
        return reference.apply_chat_template(*arguments, tokenize=False, **options)  # pyright: ignore[reportReturnType]  # text, if not tokenized
    except Exception:  # the template's own failures, of every kind
        return None


def in_parts(conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        message | {"content": parts(message["content"])} if message.get("content") is not None else message
        for message in conversation
    ]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_as_transformers_does(name: str, conversation: str, reference: PreTrainedTokenizerFast) -> None:
    template = ChatTemplate(TEMPLATES[name], SPECIAL_TOKENS)
    given = CONVERSATIONS[conversation]
    messages = in_parts(given) if name == "parts_only" else given
    rendered = 0
    for tools, (generation, continuation), variables in itertools.product((None, TOOLS), FLAGS, VARIABLES):
        expected = reference_or_none(
            reference,
            messages,
            chat_template=TEMPLATES[name],
            tools=tools,
            add_generation_prompt=generation,
            continue_final_message=continuation,
            **variables,
        )
        options = {"tools": tools, "add_generation_prompt": generation, "continue_final_message": continuation}
        if expected is not None:
            assert render(template, given, variables=variables, **options) == expected
            rendered += 1
        else:
            # Where transformers has no prompt we have one only for tool calls in a form this template cannot take.
            try:
                prompt = render(template, given, variables=variables, **options)
            except TemplateError:
                continue
            assert any("tool_calls" in message for message in given)
            assert "weather" in prompt
    assert rendered or conversation not in ("question", "turns")


def test_documents_reach_the_template(reference: PreTrainedTokenizerFast) -> None:
    documents = [{"title": "T", "text": "x"}, {"title": "U", "text": "y"}]
    expected = reference.apply_chat_template(
        [user("q")], chat_template=TEMPLATES["either"], documents=documents, tokenize=False
    )
    assert render(TEMPLATES["either"], [user("q")], documents=documents) == expected
    assert "[doc 2] U: y" in str(expected)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
        "{{ {'b': '<é>', 'a': 1} | tojson(sort_keys=true) }}",
        "{{ 'é<' | tojson(ensure_ascii=true) }}{{ [1, 2] | tojson(separators=(',', ':')) }}",
        "{% set n = namespace(x=1) %}{% set n.x = 2 %}{{ n.x }}{{ dict(a=1) }}{{ dict.fromkeys('ab', 0) }}",
        "{% for m in messages %}\n    {% if m.role == 'user' %}\n  {{ m.content }}\n    {% endif %}\n{% endfor %}\n\n",
        "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
        "{{ bos_token }}{{ sep_token }}{{ strftime_now('%Y') }}{{ tools }}{{ documents }}{{ add_generation_prompt }}",
    ],
)
def test_the_environment_is_that_of_transformers(source: str, reference: PreTrainedTokenizerFast) -> None:
    expected = reference.apply_chat_template([user("é <")], chat_template=source, tokenize=False)
    assert render(source, [user("é <")]) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set n = namespace(_x=1) %}",
        "{% set n = namespace() %}{% set n._x = 1 %}",
        "{{ range(1000000000) | list }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ messages[0].content.nothing.more }}",
        "{{ nothing | tojson }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_whatever_fails_in_a_template_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError, match=r"the chat template fails on this conversation: .+"):
        render(source, [user("x")])


def test_a_template_can_refuse() -> None:
    with pytest.raises(
        TemplateError, match=r"refuses this conversation: Only user, assistant and tool .* not narrator"
    ):
        render(TEMPLATES["instructions"], CONVERSATIONS["unknown role"], tools=TOOLS)


def test_a_template_must_be_jinja() -> None:
    with pytest.raises(TemplateError, match="not valid in line 2: "):
        ChatTemplate("{{ bos_token }}\n{% if %}", {})


@pytest.mark.parametrize("name", sorted(RESERVED_VARIABLES))
def test_a_request_cannot_set_reserved_variables(name: str) -> None:
    with pytest.raises(TemplateError, match=f"{name!r} cannot be set"):
        render(byte.CHAT_TEMPLATE, [user("x")], variables={name: "x"})


def test_variables_may_have_any_other_name() -> None:
    assert (
        render("{{ self }}{{ context }}{{ eos_token }}", [user("x")], variables={"eos_token": "E", "context": 1}) != ""
    )
    assert render("{{ eos_token }}", [user("x")], variables={"eos_token": "E"}) == "E"


def test_no_messages_are_an_error() -> None:
    with pytest.raises(TemplateError, match="must not be empty"):
        render(byte.CHAT_TEMPLATE, [])


def test_a_prompt_either_continues_or_begins_a_turn() -> None:
    with pytest.raises(TemplateError, match="exclude each other"):
        render(byte.CHAT_TEMPLATE, [user("x")], add_generation_prompt=True, continue_final_message=True)


def test_continuing_leaves_the_turn_open() -> None:
    prompt = render(byte.CHAT_TEMPLATE, CONVERSATIONS["prefill"], continue_final_message=True)
    assert prompt.endswith("<|im_start|>assistant\nThe answer is ")


def test_continuing_a_template_that_trims_drops_the_white_space() -> None:
    prompt = render(TEMPLATES["headers"], CONVERSATIONS["prefill"], continue_final_message=True)
    assert prompt.endswith("The answer is")


@pytest.mark.parametrize("content", [parts("first", "The answer is "), parts("The answer is ")])
@pytest.mark.parametrize("name", ["parts_only", "either", "byte"])
def test_continuing_works_in_parts(name: str, content: list[dict[str, str]]) -> None:
    prompt = render(TEMPLATES[name], [user("6 times 7?"), assistant(content)], continue_final_message=True)
    assert prompt.endswith("The answer is ")


@pytest.mark.parametrize(
    ("source", "final", "match"),
    [
        (TEMPLATES["chatml"], assistant(None, tool_calls=[CALL]), "no content to continue"),
        ("{{ messages[-1]['con' + 'tent'] }}", assistant("x"), "reads no message's content"),
        ("{{ messages[0].content }}", assistant("unseen"), "does not show the final message whole"),
        ("{{ messages[-1].content[:1] }}", assistant("long"), "does not show the final message whole"),
    ],
)
def test_what_cannot_be_continued_says_so(source: str, final: dict[str, Any], match: str) -> None:
    with pytest.raises(TemplateError, match=match):
        render(source, [user("x"), final], continue_final_message=True)


def test_rendering_changes_nothing_it_was_given() -> None:
    conversation = [user("q"), assistant(None, tool_calls=[CALL_AS_TEXT], reasoning="r"), RESULT, assistant(parts("a"))]
    before = json.dumps(conversation)
    for source in TEMPLATES.values():
        with contextlib.suppress(TemplateError):
            render(source, conversation, tools=TOOLS, continue_final_message=True)
        assert json.dumps(conversation) == before
