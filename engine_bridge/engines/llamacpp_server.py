"""xllamacpp's `Server`, opened so that it keeps to itself.

As it comes (2026.10) it opens an HTTP server of its own, takes over SIGINT and SIGTERM, and keeps up to 8 GiB of old
prompts in memory. Here its HTTP server gets a Unix socket in a private directory and a random key, and the socket is
deleted as soon as it stands; the process's own signal handlers are put back. One thing stays: it writes a client's
grammar that does not parse to stderr, whatever its log level.
"""

import importlib
import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine_bridge.engines import EngineError


@dataclass(frozen=True)
class LlamaCppOptions:
    """How to run a GGUF model."""

    n_parallel: int = 4
    """Requests that generate at the same time; each has its own part of the KV cache."""
    max_model_len: int | None = None
    """Prompt plus output tokens of one request; None = what the model was trained for, at most 4,096."""
    threads: int | None = None
    """Threads that compute; None = one fewer than this process has CPUs, from 1 to 8."""
    batch_tokens: int = 64
    """Prompt tokens a step, so also the most that is computed for a request aborted in its prefill."""
    max_waiting: int = 1024
    """Requests that may wait for a slot; one more fails as overloaded."""
    default_temperature: float | None = None
    """For requests that set none (a model's generation_config; a GGUF file has no such thing); None = 1."""
    default_top_p: float | None = None
    """The same for top_p."""
    gpu_layers: int = -1
    """Layers on the GPU, where the wheel has been built for one; -1 = all."""
    verbosity: int = 0
    """llama.cpp's own log on stderr: 0 nothing, 1 errors, 2 warnings, 3 all. From 1 on, each bad request is a line."""


class CompletionServer(Protocol):
    """The one call that we make of xllamacpp's Server, which has no types of its own."""

    def handle_completions(self, prompt: bytes, callback: Callable[[bytes], bool], /) -> None:
        """Run a completion; the callback gets each chunk, and True from it ends the completion."""
        ...


@contextmanager
def own_signal_handlers() -> Generator[None]:
    """Put back the handlers that llama.cpp's server replaces behind Python's back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def open_server(model: Path, options: LlamaCppOptions, *, max_model_len: int) -> tuple[CompletionServer, str]:
    """Load the model; also xllamacpp's version. Raises EngineError."""
    try:
        xllamacpp: Any = importlib.import_module("xllamacpp")  # an extra, and without types
    except ImportError as error:
        raise EngineError("llamacpp: xllamacpp is missing; pip install 'apiserver-pool[cpu]'") from error
    # The API servers share the machine, and a pool that meets at every operator waits for its slowest member.
    threads = options.threads or min(max(len(os.sched_getaffinity(0)) - 1, 1), 8)
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_parallel = options.n_parallel
    params.n_ctx = options.n_parallel * max_model_len  # all slots together
    params.n_batch = params.n_ubatch = max(options.batch_tokens, options.n_parallel)  # a token of each, at least
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_gpu_layers = options.gpu_layers
    params.fit_params = False  # it would make the context smaller, to fit
    params.cache_ram_mib = 0  # its default copies up to 8 GiB of old prompts into memory
    params.cache_idle_slots = False
    params.chat_template = "chatml"  # never used; the file's own would fail the start if it did not parse
    params.verbosity = options.verbosity
    params.n_threads_http = 1
    params.endpoint_slots = False
    params.api_keys = [secrets.token_hex(32)]
    with tempfile.TemporaryDirectory(prefix="llamacpp-") as private:
        params.hostnames = [f"{private}/http.sock"]
        try:
            return xllamacpp.Server(params), str(xllamacpp.__version__)
        except RuntimeError as error:
            raise EngineError(f"llamacpp: llama.cpp cannot load {model}; verbosity 1 shows why") from error
