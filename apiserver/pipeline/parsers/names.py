"""The parsers by name. vLLM's and SGLang's names for the same format are aliases."""

from collections.abc import Mapping
from importlib.metadata import entry_points

from apiserver.pipeline.parsers.deepseek import DeepSeek
from apiserver.pipeline.parsers.forced import ForcedCall, ForcedCalls
from apiserver.pipeline.parsers.glm import Glm
from apiserver.pipeline.parsers.hermes import Hermes
from apiserver.pipeline.parsers.invoke import DeepSeekMarkup, MiniMax
from apiserver.pipeline.parsers.kimi import Kimi
from apiserver.pipeline.parsers.llama_json import LlamaJson
from apiserver.pipeline.parsers.mistral import Mistral
from apiserver.pipeline.parsers.parser import CallFormat, ReasoningTags
from apiserver.pipeline.parsers.pythonic import Pythonic
from apiserver.pipeline.parsers.qwen_xml import QwenXml
from apiserver.requests import FORCED_CALL, FORCED_CALLS

ENTRY_POINTS = "apiserver.tool_call_parsers"
"""Where other packages name their CallFormat classes."""
HARMONY = "gpt-oss"
"""One parser for both: its channels cannot be told apart in two steps."""

_FORMATS: dict[type[CallFormat], tuple[str, ...]] = {
    Hermes: ("hermes", "qwen", "qwen25", "qwen3"),
    QwenXml: ("qwen3_coder", "qwen3_xml"),
    LlamaJson: ("llama3_json", "llama3", "llama4_json"),
    Pythonic: ("pythonic", "llama4_pythonic", "llama4"),
    Mistral: ("mistral",),
    DeepSeek: ("deepseek_v3", "deepseekv3", "deepseek_v31", "deepseekv31"),
    DeepSeekMarkup: ("deepseek_v32", "deepseekv32", "deepseek_v4", "deepseekv4"),
    Kimi: ("kimi_k2",),
    Glm: ("glm45", "glm47"),
    MiniMax: ("minimax_m2", "minimax-m2"),
}
_FORCED: dict[str, type[CallFormat]] = {FORCED_CALLS: ForcedCalls, FORCED_CALL: ForcedCall}
_HARMONY_NAMES = (HARMONY, "openai", "gpt_oss", "harmony")

_THINK = ReasoningTags("<think>", "</think>")
_FORCED_THINK = ReasoningTags("<think>", "</think>", forced=True)
_REASONING: dict[ReasoningTags, tuple[str, ...]] = {
    _THINK: (
        "qwen3",
        "deepseek-v3",
        "deepseek_v3",
        "glm45",
        "glm47",
        "hunyuan_a13b",
        "interns1",
        "nano_v3",
        "granite_think",
    ),
    _FORCED_THINK: (
        "deepseek-r1",
        "deepseek_r1",
        "qwen3-thinking",
        "step3",
        "minimax",
        "minimax_m2",
        "minimax-append-think",
    ),
    ReasoningTags("<think>", "</think>", interrupted_by_calls=True): ("kimi_k2", "kimi-k2"),
    ReasoningTags("◁think▷", "◁/think▷"): ("kimi",),
    ReasoningTags("[THINK]", "[/THINK]"): ("mistral", "magistral"),
    ReasoningTags("<seed:think>", "</seed:think>"): ("seed_oss",),
}


def _by_name() -> dict[str, type[CallFormat]]:
    return {name: form for form, names in _FORMATS.items() for name in names} | _FORCED


CALL_FORMATS: Mapping[str, type[CallFormat]] = _by_name()
REASONING_TAGS: Mapping[str, ReasoningTags] = {name: tags for tags, names in _REASONING.items() for name in names}
TOOL_CALL_NAMES = (*(name for name in CALL_FORMATS if name not in _FORCED), *_HARMONY_NAMES)
"""What --tool-call-parser may be, beside what other packages add."""
REASONING_NAMES = (*REASONING_TAGS, *_HARMONY_NAMES)


class UnknownParser(ValueError):
    """There is no parser of that name: one sentence for people."""


def is_harmony(name: str | None) -> bool:
    return name in _HARMONY_NAMES


def is_forced(name: str | None) -> bool:
    """Whether the whole answer is calls, as the engine's grammar forces it."""
    return name in _FORCED


def call_format(name: str) -> type[CallFormat]:
    """Raises UnknownParser."""
    found = CALL_FORMATS.get(name)
    if found is None:
        for entry in entry_points(group=ENTRY_POINTS, name=name):
            return entry.load()
        raise UnknownParser(f"There is no tool-call parser '{name[:100]}'; there are {', '.join(TOOL_CALL_NAMES)}.")
    return found


def reasoning_tags(name: str) -> ReasoningTags:
    """Raises UnknownParser."""
    found = REASONING_TAGS.get(name)
    if found is None:
        raise UnknownParser(f"There is no reasoning parser '{name[:100]}'; there are {', '.join(REASONING_NAMES)}.")
    return found
