"""What to say to a flag that we have not got: whose it is and where it goes, or which of ours was meant.

People bring the flags of vLLM and SGLang. Those of our own business have the same names here; this is about the rest.
"""

import difflib
from collections.abc import Collection, Sequence

_ENGINE_NAMES = {  # vLLM's, or a short form → SGLang's
    "tensor-parallel-size": "tp-size",
    "tp": "tp-size",
    "pipeline-parallel-size": "pp-size",
    "pp": "pp-size",
    "data-parallel-size": "dp-size",
    "dp": "dp-size",
    "expert-parallel-size": "ep-size",
    "gpu-memory-utilization": "mem-fraction-static",
    "max-num-seqs": "max-running-requests",
    "max-num-batched-tokens": "chunked-prefill-size",
    "enforce-eager": "disable-cuda-graph",
    "no-enable-prefix-caching": "disable-radix-cache",
    "lora-modules": "lora-paths",
    "max-loras": "max-loras-per-batch",
    "seed": "random-seed",
    "block-size": "page-size",
    "hf-overrides": "json-model-override-args",
}
_ENGINE = frozenset(_ENGINE_NAMES.values()) | {
    *(
        "dtype",
        "quantization",
        "kv-cache-dtype",
        "load-format",
        "model-loader-extra-config",
        "revision",
        "download-dir",
    ),
    *("trust-remote-code", "device", "base-gpu-id", "nnodes", "node-rank", "dist-init-addr", "numa-node"),
    *("max-total-tokens", "max-prefill-tokens", "schedule-policy", "watchdog-timeout", "enable-torch-compile"),
    *("attention-backend", "sampling-backend", "grammar-backend", "is-embedding", "enable-lora", "max-lora-rank"),
    *("enable-dp-attention", "enable-hierarchical-cache", "enable-priority-scheduling", "disaggregation-mode"),
    *(
        "speculative-algorithm",
        "speculative-draft-model-path",
        "speculative-num-steps",
        "enable-deterministic-inference",
    ),
}
"""By SGLang's names, without the dashes."""
_SWITCHES = ("enable-", "disable-", "is-", "trust-")
"""What those without a value begin with."""

_OF_OURS = {
    "uvicorn-log-level": "here it is --log-level",
    "log-level-http": "here it is --log-level",
    "disable-log-requests": "no need: requests are not logged, unless you say --access-log",
    "no-enable-log-requests": "no need: requests are not logged, unless you say --access-log",
    "enable-log-requests": "here it is --access-log; prompts are never logged",
    "log-requests": "here it is --access-log; prompts are never logged",
    "disable-uvicorn-access-log": "no need: there is no access log, unless you say --access-log",
    "disable-log-stats": "no need: figures are in /metrics and /pool, never in the log",
    "enable-metrics": "no need: /metrics is always there",
    "enable-prefix-caching": "no need: it is what every engine here does; SGLang's switch is -- --disable-radix-cache",
    "enable-chunked-prefill": "no need: it is SGLang's default; its size is -- --chunked-prefill-size",
    "enable-reasoning": "no need: --reasoning-parser alone does it, and is chosen by the chat template",
    "enable-cache-report": "no need: usage always tells the cached tokens",
    "enable-prompt-tokens-details": "no need: usage always tells the cached tokens",
    "enable-request-id-headers": "no need: every answer has x-request-id",
    "enable-ssl-refresh": "no need: SIGHUP reads the certificates again",
    "chat-template-content-format": "no need: it is read off the chat template",
    "tokenizer-mode": "here it is --tokenizer-backend",
    "skip-tokenizer-init": "no need: the engine never tokenizes here",
    "detokenizer-worker-num": "no need: there is no such process; see --api-server-count",
    "disable-frontend-multiprocessing": "no need: here it is --api-server-count 1",
    "runner": "an embedding model on SGLang takes -- --is-embedding",
    "task": "an embedding model on SGLang takes -- --is-embedding",
}


def explain(unknown: Sequence[str], words: Sequence[str], known: Collection[str], command: str) -> str:
    """One line about what `command` did not understand of its `words`; `known` are its own flags, without dashes."""
    flags = [word for word in words if word in unknown and _name(word)]
    if not flags:
        return f"unexpected: {' '.join(unknown)}"
    of_engine = [flag for flag in flags if is_of_engine(_name(flag))]
    parts = [f"{_flag(flag)}: {about(_name(flag), known, '--')}" for flag in flags if flag not in of_engine]
    if of_engine:
        names = ", ".join(_flag(flag) for flag in of_engine)
        what = "belongs to the engine (SGLang) and goes" if len(of_engine) == 1 else "belong to the engine and go"
        parts.insert(0, f"{names} {what} after --: {command} … -- {' '.join(_for_sglang(of_engine, words))}")
    return "; ".join(parts)


def about(name: str, known: Collection[str], dashes: str = "") -> str:
    """What to do about one that is not the engine's."""
    if name in _OF_OURS:
        return _OF_OURS[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"did you mean {dashes}{near[0]}?" if near else "there is no such flag; those of the engine go after --"


def is_of_engine(name: str) -> bool:
    return name in _ENGINE or name in _ENGINE_NAMES


def sglangs_name(name: str) -> str:
    return _ENGINE_NAMES.get(name, name)


def _for_sglang(flags: Sequence[str], words: Sequence[str]) -> list[str]:
    """The engine's flags with their values, by SGLang's names."""
    said: list[str] = []
    for flag, follower in zip(words, [*words[1:], "-"], strict=True):
        if flag in flags:
            name = sglangs_name(_name(flag))
            _, equals, value = flag.partition("=")
            said.append(f"--{name}{equals}{value}")
            if not equals and not name.startswith(_SWITCHES) and not follower.startswith("-"):
                said.append(follower)
    return said


def _flag(word: str) -> str:
    return word.partition("=")[0]


def _name(word: str) -> str:
    """As we spell it; nothing if it is no flag."""
    name = _flag(word).lstrip("-").replace("_", "-") if word.startswith("-") else ""
    return name if name[:1].isalpha() else ""
