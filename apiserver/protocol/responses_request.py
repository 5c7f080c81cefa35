"""The fields of POST /v1/responses, and the job that they mean together with the turns before."""

from collections.abc import Sequence
from typing import Any

import msgspec

from apiserver.card import Card
from apiserver.errors import ContextLengthExceeded, InvalidRequest, shown
from apiserver.protocol.constraints import Constraint, schema_text
from apiserver.protocol.conversation import MULTIMODAL, effort_variables
from apiserver.protocol.decoding import check_length, check_range, decode, refuse_unknown, refuse_unsupported
from apiserver.protocol.generation_fields import HARMLESS, IGNORED, SamplingFields
from apiserver.protocol.responses_input import Item, conversation
from apiserver.protocol.responses_tools import Tools
from apiserver.protocol.sampling import cache_salt, check_logprobs, sampling_params, stop_strings
from apiserver.protocol.tool_use import ToolUse, use_tools
from apiserver.requests import Chat, GenerateJob, Truncation

_MOST_TOKENS = 2**63 - 1
_MOST_METADATA, _MOST_METADATA_KEY, _MOST_METADATA_VALUE = 16, 64, 512  # OpenAI's
_ANY_OBJECT = '{"type":"object"}'
_VERBOSITIES = ("low", "medium", "high")
_SUMMARIES = ("auto", "concise", "detailed")
_LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = (
    _LOGPROBS,
    "reasoning.encrypted_content",
    # Of tools that are refused, so there is never anything to include.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)


class TextFormat(msgspec.Struct):
    type: str
    name: str | None = None
    schema: Any = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct):
    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct):
    effort: str | float | None = None
    summary: str | None = None
    generate_summary: str | None = None  # the older name


class ResponseFields(SamplingFields, kw_only=True):
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Said again in the response, and without a promise.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    max_tool_calls: int | None = None
    # Known, and refused unless harmless.
    conversation: Any = None
    prompt: Any = None
    moderation: Any = None
    context_management: Any = None
    background_options: Any = None
    image: Any = None
    include_reasoning: Any = None
    enable_response_messages: Any = None
    previous_input_messages: Any = None
    media_io_kwargs: Any = None


HARMLESS_IN_RESPONSES: dict[str, tuple[Any, ...]] = (
    HARMLESS
    | MULTIMODAL
    | {
        "n": (1,),
        # Chat's and completions' names for what is called otherwise here, or is not here.
        "max_tokens": (),
        "response_format": (),
        "prompt_logprobs": (),
        "return_token_ids": (False,),
        "return_tokens_as_token_ids": (False,),
        "truncate_prompt_tokens": (),
        "truncation_side": (),
        "conversation": (),
        "prompt": (),
        "moderation": (),
        "context_management": ([],),
        "background_options": ({},),
        "image": ({},),
        "include_reasoning": (True,),
        "enable_response_messages": (False,),
        "previous_input_messages": ([],),
    }
)
IGNORED_IN_RESPONSES = (IGNORED - {"store", "metadata"}) | {
    "access_programs",
    "max_tool_calls",  # of built-in tools, which are refused
    "stream_options",  # usage is always there, and nothing is ever obfuscated
    "request_id",  # an abort names the response's own id
    "rid",
}
_decoder = msgspec.json.Decoder(ResponseFields)


def read_response(raw: bytes, card: Card) -> ResponseFields:
    """The body's fields. Raises NotFound for another model, InvalidRequest for what is wrong or cannot be honoured."""
    fields = decode(raw, _decoder)
    if card.strict_fields:
        refuse_unknown(raw, ResponseFields, IGNORED_IN_RESPONSES)
    card.resolve(fields.model)
    refuse_unsupported(fields, HARMLESS_IN_RESPONSES)
    if fields.input is None:
        raise InvalidRequest("input is required: a text, or a list of items.", param="input")
    _check_metadata(fields.metadata)
    _check_words(fields)
    return fields


def _check_metadata(metadata: dict[str, str] | None) -> None:
    if metadata is None:
        return
    if len(metadata) > _MOST_METADATA:
        raise InvalidRequest(
            f"metadata has {len(metadata)} entries; at most {_MOST_METADATA} are allowed.", param="metadata"
        )
    for key, value in metadata.items():
        if len(key) > _MOST_METADATA_KEY:
            raise InvalidRequest(
                f"A key of metadata may have {_MOST_METADATA_KEY} characters at most.", param="metadata"
            )
        check_length(f"metadata.{shown(key)}", value, _MOST_METADATA_VALUE)


def _check_words(fields: ResponseFields) -> None:
    """Fields that must be one of a few words."""
    text, reasoning = fields.text or TextConfig(), fields.reasoning or Reasoning()
    for name, value, allowed in (
        ("truncation", fields.truncation, ("auto", "disabled")),
        ("text.verbosity", text.verbosity, _VERBOSITIES),
        ("reasoning.summary", reasoning.summary, _SUMMARIES),
        ("reasoning.generate_summary", reasoning.generate_summary, _SUMMARIES),
        *((f"include[{number}]", word, _INCLUDABLE) for number, word in enumerate(fields.include or ())),
    ):
        if value is not None and value not in allowed:
            raise InvalidRequest(f"{name} must be one of {', '.join(allowed)}, not {shown(value)}.", param=name)


def response_job(
    fields: ResponseFields, items: Sequence[Item], tools: Tools, card: Card, response_id: str
) -> GenerateJob:
    """`items` are the whole conversation: what the turns before left, and then this one's input."""
    check_range("max_output_tokens", fields.max_output_tokens, 1, _MOST_TOKENS)
    variables = _variables(fields)
    use = use_tools(
        tools.callable,
        tools.choice,
        card,
        parallel=fields.parallel_tool_calls is not False,
        thinking=_thinking(variables),
    )
    constraints = [*_text_constraint(fields.text), *([use.constraint] if use.constraint is not None else [])]
    return GenerateJob(
        prompts=[_chat(fields, items, card, use, variables)],
        sampling_params=sampling_params(fields, card, _logprobs_count(fields, card), *constraints),
        max_tokens=fields.max_output_tokens,
        max_tokens_param="max_output_tokens",
        stop=stop_strings(fields.stop, card.limits),
        include_stop=bool(fields.include_stop_str_in_output or fields.no_stop_trim),
        skip_special_tokens=fields.skip_special_tokens is not False,
        truncation=_truncation(fields, card),
        client_request_id=response_id,
        priority=fields.priority or 0,
        cache_salt=cache_salt(fields),
        structure=use.structure,
    )


def _chat(fields: ResponseFields, items: Sequence[Item], card: Card, use: ToolUse, variables: dict[str, Any]) -> Chat:
    if len(items) > card.max_model_len:
        # Every item costs a token at least; a million of them would keep the template busy for seconds.
        raise ContextLengthExceeded(
            f"This model's maximum context length is {card.max_model_len} tokens, fewer than the items of the "
            f"conversation ({len(items)}).",
            param="input",
        )
    return Chat(conversation(items, fields.instructions), param="input", tools=use.tools, variables=variables)


def _variables(fields: ResponseFields) -> dict[str, Any]:
    """What the template may read; what the client says itself about a variable wins over what the effort implies."""
    effort = fields.reasoning.effort if fields.reasoning is not None else None
    return effort_variables(effort, "reasoning.effort") | (fields.chat_template_kwargs or {})


def _thinking(variables: dict[str, Any]) -> bool | None:
    """Whether the template is told to let the model think, by one of the names that templates know."""
    for name in ("enable_thinking", "thinking"):
        if isinstance(variables.get(name), bool):
            return variables[name]
    return None


def wants_logprobs(fields: ResponseFields) -> bool:
    """OpenAI asks for them by `include`; a count of alternatives asks for them as well."""
    return _LOGPROBS in (fields.include or ()) or bool(fields.top_logprobs)


def _logprobs_count(fields: ResponseFields, card: Card) -> int | None:
    check_range("top_logprobs", fields.top_logprobs, 0, card.limits.max_logprobs)
    if not wants_logprobs(fields):
        return None
    count = fields.top_logprobs or 0
    check_logprobs("top_logprobs" if count else "include", count, card.capabilities)
    return count


def _text_constraint(text: TextConfig | None) -> list[Constraint]:
    form = text.format if text is not None else None
    if form is None or form.type == "text":
        return []
    if form.type == "json_object":
        return [Constraint("text.format", "json_schema", _ANY_OBJECT)]
    if form.type == "json_schema":
        if not form.name:
            raise InvalidRequest("text.format.name is required.", param="text.format.name")
        return [Constraint("text.format", "json_schema", schema_text(form.schema, "text.format.schema"))]
    raise InvalidRequest(
        f"text.format.type must be text, json_object or json_schema, not {shown(form.type)}.",
        param="text.format.type",
    )


def _truncation(fields: ResponseFields, card: Card) -> Truncation | None:
    """`auto` keeps the prompt's last tokens, as many as leave room for the answer: for max_output_tokens, or where that
    is unset for a quarter of the context."""
    if fields.truncation != "auto":
        return None
    room = fields.max_output_tokens or card.max_model_len // 4
    return Truncation(max(1, card.max_model_len - room), "left", "truncation")
