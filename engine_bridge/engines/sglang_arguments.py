"""What stands after `--`: SGLang's own flags, read by SGLang's own parser before anything is loaded."""

# SGLang is an extra without stable types.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

import contextlib
import io
import logging
import sys
from typing import Any

from sglang.srt.server_args import prepare_server_args
from sglang.version import __version__

from engine_bridge.engines import EngineError

ServerArgs = Any
VERSION = str(__version__)
PINNED_VERSION = "0.5.23"

log = logging.getLogger("engine_bridge.sglang")

_OURS = {
    "api_key": "--api-key",
    "admin_api_key": "--admin-api-key",
    "ssl_certfile": "--ssl-certfile",
    "ssl_keyfile": "--ssl-keyfile",
    "ssl_ca_certs": "--ssl-ca-certs",
    "chat_template": "--chat-template",
}
"""Flags of SGLang's own HTTP server, which is not started: taken in silence, they would leave a door open."""


def parse(model: str, arguments: list[str]) -> ServerArgs:
    """SGLang's settings for this model. Raises EngineError with SGLang's own complaint."""
    if VERSION != PINNED_VERSION:
        log.warning("SGLang %s is installed; this adapter is made for, and tested with, %s", VERSION, PINNED_VERSION)
    said = io.StringIO()
    words = ["--model-path", model, "--skip-tokenizer-init", "--incremental-streaming-output", *arguments]
    with _own_log_handlers():
        try:
            with contextlib.redirect_stderr(said):
                server_args = prepare_server_args(words)
        except SystemExit as end:
            if not end.code:
                raise  # --help has been given
            # argparse says how every one of 500 flags is used before it says what is wrong.
            raise EngineError(said.getvalue().strip().splitlines()[-1]) from None
        except (ValueError, AssertionError, OSError) as error:
            raise EngineError(f"SGLang refuses its arguments: {error}") from error
    _check(server_args)
    return server_args


def _check(server_args: ServerArgs) -> None:
    for name, flag in _OURS.items():
        if getattr(server_args, name, None) is not None:
            raise EngineError(
                f"SGLang's --{name.replace('_', '-')} has no effect here: give {flag} before the -- instead"
            )
    if server_args.tokenizer_worker_num != 1:
        raise EngineError("SGLang's --tokenizer-worker-num has no effect here: say --api-server-count before the --")
    if server_args.node_rank:
        raise EngineError(
            "the pool runs on SGLang's first node only (--node-rank 0); start the others with SGLang's own "
            f"`python -m sglang.launch_server --node-rank {server_args.node_rank} …` and the same flags"
        )
    if not (server_args.skip_tokenizer_init and server_args.incremental_streaming_output):
        raise EngineError("this adapter needs SGLang's --skip-tokenizer-init and --incremental-streaming-output")


@contextlib.contextmanager
def _own_log_handlers() -> Any:
    """SGLang's parser sets up logging anew; ours is put back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        sys.stderr.flush()
