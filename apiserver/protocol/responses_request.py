"""The fields of POST /v1/responses: those we honour, those we refuse, those we ignore."""

from typing import Any

import msgspec

from apiserver.card import Card
from apiserver.errors import ContextLengthExceeded, InvalidRequest, shown
from apiserver.protocol.conversation import MULTIMODAL
from apiserver.protocol.decoding import check_length, read_fields
from apiserver.protocol.generation_fields import HARMLESS, IGNORED, SamplingFields

_MOST_METADATA, _MOST_METADATA_KEY, _MOST_METADATA_VALUE = 16, 64, 512  # OpenAI's
_VERBOSITIES = ("low", "medium", "high")
_SUMMARIES = ("auto", "concise", "detailed")
LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = (
    LOGPROBS,
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
    fields = read_fields(raw, _decoder, card, harmless=HARMLESS_IN_RESPONSES, ignored=IGNORED_IN_RESPONSES)
    if fields.input is None:
        raise InvalidRequest("input is required: a text, or a list of items.", param="input")
    if not isinstance(fields.input, str):
        check_item_count(len(fields.input), card)
    _check_metadata(fields.metadata)
    _check_words(fields)
    return fields


def check_item_count(count: int, card: Card) -> None:
    """Every item costs a token at least; a million of them, or of references, would keep template and store busy for
    seconds. Raises ContextLengthExceeded."""
    if count > card.max_model_len:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {card.max_model_len} tokens, fewer than the items of the "
            f"conversation ({count}).",
            param="input",
        )


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
