"""Where an answer begins, seen from its reasoning: the end of the prompt tells."""

from enum import Enum

from apiserver.pipeline.parsers.parser import ReasoningTags


class Start(Enum):
    INSIDE = "inside"  # the prompt has opened the reasoning, or the model begins in it by itself
    BEFORE = "before"  # the model may open it
    BEHIND = "behind"  # the prompt has closed it, or nobody wants any


def start_of(tags: ReasoningTags, thinking: bool | None, prompt_end: str) -> Start:
    """The prompt knows best; else the model's habits, unless it was told not to think."""
    opened, closed = prompt_end.rfind(tags.start), prompt_end.rfind(tags.end)
    if opened > closed:
        return Start.BEFORE if prompt_end[opened + len(tags.start) :].strip() else Start.INSIDE
    if thinking is False or (closed >= 0 and not prompt_end[closed + len(tags.end) :].strip()):
        return Start.BEHIND
    return Start.INSIDE if tags.forced else Start.BEFORE
