"""What the person who started the pool sees: one short block, with a line to try it."""

import contextlib
import os
import sys

from apiserver.board import Board, Cell
from apiserver.flags import ServeSettings
from apiserver.plan import Plan
from engine_bridge.status import EngineRow, Field


def announce(
    settings: ServeSettings,
    model: Plan,
    names: tuple[str, ...],
    backend: str,
    board: Board,
    row: EngineRow,
    port: int,
    *,
    has_keys: bool,
) -> None:
    """One short block for the person who started this: what runs, where, and how to try it."""
    listen = settings.listen
    base = base_url(settings, port)
    curl = f"curl {base}" if listen.uds is None else f"curl --unix-socket {listen.uds} {_scheme(settings)}://localhost"
    pids = " ".join(str(slot.get(Cell.PID)) for slot in board.slots)
    key = " -H 'authorization: Bearer KEY'" if has_keys else ""
    text = f"""
  model       {", ".join(names)}  ({model.path})
  engine      {_engine(settings, model, row)}
  tokenizer   {backend}
  address     {listen.uds or base}
  API servers {board.count}, pids {pids}; supervisor {os.getpid()}

  Try it:
    {curl}{_example(model.engine, settings.engine_arguments)}{key} -H 'content-type: application/json' \\
      -d '{_example_body(model.engine, settings.engine_arguments, names[0])}'

"""
    with contextlib.suppress(OSError):  # nobody reads it (any more): no reason to stop serving
        sys.stdout.write(text)
        sys.stdout.flush()


def _engine(settings: ServeSettings, model: Plan, row: EngineRow) -> str:
    if settings.remote is not None:
        return f"at {settings.remote.address}"
    return f"{model.engine}, pid {row.get(Field.PID)}"


def base_url(settings: ServeSettings, port: int) -> str:
    listen = settings.listen
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"{_scheme(settings)}://{host}:{port}{settings.http.root_path}"


def _scheme(settings: ServeSettings) -> str:
    return "https" if settings.listen.ssl_certfile else "http"


def _embeds(engine: str, arguments: tuple[str, ...]) -> bool:
    return engine == "onnx" or (engine == "sim" and "embed" in arguments) or "--is-embedding" in arguments


def _example(engine: str, arguments: tuple[str, ...]) -> str:
    return "/v1/embeddings" if _embeds(engine, arguments) else "/v1/chat/completions"


def _example_body(engine: str, arguments: tuple[str, ...], name: str) -> str:
    if _embeds(engine, arguments):
        return f'{{"model":"{name}","input":"Hello"}}'
    return f'{{"model":"{name}","stream":true,"messages":[{{"role":"user","content":"Hello"}}]}}'
