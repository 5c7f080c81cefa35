"""The model's text, loaded once before the fork: every API server has its own copy-on-write."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from apiserver import models
from apiserver.config import ModelSettings
from apiserver.flags import ServeSettings
from apiserver.launch_error import LaunchError
from apiserver.pipeline.pace import Pace, measure
from apiserver.pipeline.parsers.auto import choose_reasoning, choose_tool_calls
from apiserver.pipeline.parsers.names import UnknownParser
from apiserver.pipeline.preprocess import Preprocessor
from apiserver.plan import ModelText, Plan, read_text, resolve
from apiserver.tokenizer.messages import TemplateError
from apiserver.tokenizer.source import TokenizerError

T = TypeVar("T")

log = logging.getLogger("apiserver")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is served, and what turns its text into ids and back: once for the loop and once for the FIFO thread."""

    plan: Plan
    text: ModelText
    inline: Preprocessor
    threaded: Preprocessor
    pace: Pace
    model: ModelSettings


def load(settings: ServeSettings) -> Loaded:
    """Fetched, converted and warmed. Raises LaunchError."""
    try:
        plan = resolve(settings)
        text = read_text(settings, plan)
        inline, threaded = _in_own_arena(lambda: (text.preprocessor(), text.preprocessor()))
        log.info("tokenizer backend %s: %s", text.choice.encoder_name, text.choice.reason)
        # Warmed before the fork: fastokens' first call takes 0.1 to 0.4 s and 40 MB of tables, which all workers share.
        measure(threaded.encoder)
        pace = measure(inline.encoder)
        names = settings.served_model_name or (plan.name,)
        model = model_settings(settings, plan, names, text.template)
    except (models.ModelError, TokenizerError, TemplateError, UnknownParser, OSError) as error:
        raise LaunchError(str(error)) from error
    return Loaded(plan, text, inline, threaded, pace, model)


def model_settings(settings: ServeSettings, plan: Plan, names: tuple[str, ...], template: str | None) -> ModelSettings:
    """Raises UnknownParser."""
    tool_calls = choose_tool_calls(settings.tool_call_parser, template)
    reasoning = choose_reasoning(settings.reasoning_parser, template, tool_calls.name)
    log.info("tool-call parser %s: %s", tool_calls.name or "none", tool_calls.reason)
    log.info("reasoning parser %s: %s", reasoning.name or "none", reasoning.reason)
    return ModelSettings(
        model=settings.model,
        served_model_name=names,
        max_model_len=settings.max_model_len,
        any_model=settings.any_model,
        aliases=settings.model_alias,
        strict_fields=settings.strict_fields,
        clamp_max_tokens=settings.clamp_max_tokens,
        trust_request_chat_template=settings.trust_request_chat_template,
        tool_call_parser=tool_calls.name,
        tool_call_parser_reason=tool_calls.reason,
        reasoning_parser=reasoning.name,
        reasoning_parser_reason=reasoning.reason,
        incremental_streaming_output=settings.incremental_streaming_output,
        tokenizer=plan.tokenizer or "",
    )


def _in_own_arena(load: Callable[[], T]) -> T:
    """Call `load` in a thread that ends with it, so that what it allocates lies in an arena of its own.

    Loading a vocabulary leaves tens of megabytes of holes in the heap, between what stays. A forked worker would fill
    them with its own small things and so copy the pages around them: 37 MB a worker after 10,000 requests.
    """
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(load).result()
