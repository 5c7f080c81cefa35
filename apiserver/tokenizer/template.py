"""Chat templates: messages to prompt text, character for character as transformers' `apply_chat_template` renders them.

The environment is transformers' own (`utils/chat_template_utils.py`): templates come with models, so they run in
jinja2's immutable sandbox, see plain data only, and find the same few functions. transformers itself stays out: it
takes 3 s and 340 MB to import.
"""

import json
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import datetime
from typing import Any, Literal, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from apiserver.tokenizer.message_style import probe_style
from apiserver.tokenizer.messages import Message, TemplateError, normalise_messages

RESERVED_VARIABLES = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""What a request says elsewhere, or what is an argument and no variable to transformers."""

_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplate:
    """One template, compiled once. Raises TemplateError where the source is no template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template is not valid in line {error.lineno}: {error.message}") from error
        self._style = probe_style(source, self._try)

    @property
    def content_format(self) -> Literal["string", "openai"]:
        """Whether the template takes a user's content as a list of parts ("openai"), besides strings or instead."""
        return "openai" if "user" in self._style.parts_roles else "string"

    def normalise(self, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Copies of `messages` in the form that this template shows; what `render` starts with."""
        return normalise_messages(messages, self._style)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any],
    ) -> str:
        """The prompt text for `messages`. The values must be plain JSON data; nothing of them is changed."""
        if not messages:
            raise TemplateError("messages must not be empty")
        if add_generation_prompt and continue_final_message:
            raise TemplateError("add_generation_prompt and continue_final_message exclude each other")
        for name in RESERVED_VARIABLES.intersection(variables):
            raise TemplateError(f"{name!r} cannot be set as a chat template variable")
        chat = self.normalise(messages)
        final_text = self._tag_final_message(chat) if continue_final_message else None
        prompt = self._run(
            {
                **self._special_tokens,
                **variables,
                "messages": chat,
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        return prompt if final_text is None else _cut_at_tag(prompt, final_text)

    def _try(self, messages: list[Message], tools: list[Message] | None) -> str | None:
        context = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": False}
        try:
            return self._run(self._special_tokens | context)
        except TemplateError:
            return None

    def _run(self, context: Mapping[str, Any]) -> str:
        try:
            return self._template.render(context)
        except _RefusalError as error:
            raise TemplateError(f"the chat template refuses this conversation: {error.message}") from error
        except Exception as error:  # a template is a program: it adds strings to lists, divides by zero, recurses, …
            raise TemplateError(f"the chat template fails on this conversation: {error}") from error

    def _tag_final_message(self, chat: list[Message]) -> str:
        """Put the tag where the continuation begins, and give the text before it."""
        content = chat[-1].get("content")
        if content is None:
            raise TemplateError("continue_final_message is set, but the final message has no content to continue")
        if "content" not in self._source:
            raise TemplateError("continue_final_message is set, but the chat template reads no message's content")
        if isinstance(content, str):
            chat[-1]["content"] = content + _CONTINUE_TAG
            return content
        text: str = content[-1]["text"]
        chat[-1]["content"] = [*content[:-1], content[-1] | {"text": text + _CONTINUE_TAG}]
        return text


def _cut_at_tag(prompt: str, final_text: str) -> str:
    """Everything before the tag; without the white space at its end where the template trims."""
    tag = _CONTINUE_TAG.strip()
    if final_text.strip() not in prompt or tag not in prompt:
        raise TemplateError(
            "continue_final_message is set, but the chat template does not show the final message whole"
        )
    start = prompt.rindex(tag)
    return prompt[:start] if prompt.startswith(_CONTINUE_TAG, start) else prompt[:start].rstrip()


class _RefusalError(jinja2.TemplateError):
    """The template called `raise_exception`."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what an assistant generated, for training; here it is only a block."""

    tags = {"generation"}  # noqa: RUF012 as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _TemplateDict:
    """`dict` for templates, without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _TemplateNamespace(Namespace):
    """`namespace` for templates, without names that could reach Python's insides."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # jinja2's own trick: a namespace may have a `self`
        self, *rest = args
        attributes: dict[Any, Any] = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"chat templates cannot set the private attribute {name!r}")


def _raise_exception(message: object) -> NoReturn:
    raise _RefusalError(str(message))


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # jinja2's own escapes HTML, which has no place in a prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # local time, as transformers has it


class _Environment(ImmutableSandboxedEnvironment):
    filters: dict[str, Any]
    globals: MutableMapping[str, Any]

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["dict"] = _TemplateDict()
        self.globals["namespace"] = _TemplateNamespace


_ENVIRONMENT = _Environment()
