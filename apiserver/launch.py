"""`apiserver serve`: bind, resolve, preload, fork. Everything that the workers share is loaded here, before them."""

import contextlib
import gc
import logging
import os
import signal
import socket
import ssl
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from apiserver import log as logs
from apiserver import models, worker
from apiserver.board import Board
from apiserver.config import ListenSettings, ModelSettings
from apiserver.flags import ServeSettings
from apiserver.http.app import ROUTES
from apiserver.metrics import Metrics
from apiserver.pipeline.pace import measure
from apiserver.pipeline.preprocess import Preprocessor
from apiserver.run_directory import run_directory
from apiserver.supervisor import EngineCommand, Patience, Supervisor
from apiserver.tokenizer.backends import TokenizerChoice, choose
from apiserver.tokenizer.byte import CHAT_TEMPLATE, byte_tokenizer_json
from apiserver.tokenizer.messages import TemplateError
from apiserver.tokenizer.source import TokenizerError, TokenizerFiles, prepare
from apiserver.tokenizer.template import ChatTemplate
from engine_bridge.status import EngineRow, Field, make_descriptor

log = logging.getLogger("apiserver")


class LaunchError(Exception):
    """The pool cannot start; the message is one line for the person at the terminal."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is served: the engine with its model, and where the tokenizer is (None: one token a byte)."""

    name: str
    path: str
    engine: str
    tokenizer: str | None
    chat_template: str | None = None


def serve(settings: ServeSettings) -> int:
    """Run the pool until it is told to stop; returns the process's exit code. Raises LaunchError."""
    logs.set_up(settings.log_level, "pool")
    # Said before the fork, once: unset, tokenizers warns in every child and decides for itself.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["FASTOKENS_BPE_THREADS"] = "1"  # more would start a thread, and whoever forks must have one
    signal.signal(signal.SIGTERM, _stop_early)  # until the supervisor blocks it and takes it in its own time
    listener = _bind(settings.listen)
    log.info("listening on %s", settings.listen.uds or _base_url(settings, _port(listener)))
    try:
        with run_directory() as directory:
            return _supervise(settings, listener, directory)
    finally:
        if settings.listen.uds is not None:
            Path(settings.listen.uds).unlink(missing_ok=True)


def _stop_early(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)


def _supervise(settings: ServeSettings, listener: socket.socket, directory: Path) -> int:
    try:
        model = _resolve(settings)
        text = _read_text(settings, model)
        inline, threaded = text.preprocessor(), text.preprocessor()
        log.info("tokenizer backend %s: %s", text.choice.encoder_name, text.choice.reason)
        # Warmed before the fork: fastokens' first call takes 0.1 to 0.4 s and 40 MB of tables, which all workers share.
        measure(threaded.encoder)
        pace = measure(inline.encoder)
    except (models.ModelError, TokenizerError, TemplateError, OSError) as error:
        raise LaunchError(str(error)) from error
    board = Board(settings.api_server_count)
    row_descriptor = make_descriptor()
    row = EngineRow.attach(row_descriptor)
    row.set(Field.EPOCH, 1)

    def engine_address(epoch: int) -> str:
        return f"ipc://{directory}/core.{epoch}"

    names = settings.served_model_name or (model.name,)
    preloaded = worker.Preloaded(
        board=board,
        engine_row=row,
        listeners=(listener,),
        engine_address=engine_address,
        inline=inline,
        threaded=threaded,
        pace=pace,
        preprocess_order=settings.preprocess_order,
        encoder_reason=text.choice.reason,
        metrics=Metrics(ROUTES),
        model=ModelSettings(
            model=settings.model,
            served_model_name=names,
            max_model_len=settings.max_model_len,
            any_model=settings.any_model,
            strict_fields=settings.strict_fields,
            clamp_max_tokens=settings.clamp_max_tokens,
            trust_request_chat_template=settings.trust_request_chat_template,
        ),
        http=settings.http,
        access=settings.access,
        limits=settings.limits,
        tls=_tls(settings.listen),
        created=int(time.time()),
        log_level=settings.log_level,
    )
    shared = _Shared(settings, model, preloaded)
    command = EngineCommand(
        _engine_argv(settings, model, text, inline.tokenizer.vocab_size, engine_address(1), row_descriptor),
        (row_descriptor,),
    )
    supervisor = Supervisor(
        board,
        (listener,),
        lambda slot: worker.run(shared.preloaded, slot),
        command,
        row,
        Patience(settings.drain_delay, settings.http.drain_seconds, settings.api_server_timeout),
        on_ready=lambda: _announce(
            settings, model, names, f"{text.choice.encoder_name} ({text.choice.reason})", board, row, _port(listener)
        ),
        reload=shared.reload,
    )
    # What is alive now lives for ever and is shared: the collector need not touch (and so copy) its pages.
    gc.collect()
    gc.freeze()
    return supervisor.run()


class _Shared:
    """What every new worker inherits; SIGHUP renews the parts of it that come from files."""

    def __init__(self, settings: ServeSettings, plan: _Plan, preloaded: worker.Preloaded) -> None:
        self._settings = settings
        self._plan = plan
        self.preloaded = preloaded

    def reload(self) -> bool:
        """Read the chat template and the certificates again. False, and nothing changed, if one of them is broken."""
        try:
            text = _read_text(self._settings, self._plan)
            inline, threaded = text.chat_template(), text.chat_template()
            tls = _tls(self._settings.listen)
        except (LaunchError, TokenizerError, TemplateError, OSError) as error:
            log.error("SIGHUP: %s; everything stays as it is", error)
            return False
        self.preloaded.inline.template = inline
        self.preloaded.threaded.template = threaded
        self.preloaded = replace(self.preloaded, tls=tls)
        return True


def _bind(listen: ListenSettings) -> socket.socket:
    """The one listening socket. Taken before anything slow, so a port in use fails in the first second."""
    try:
        if listen.uds is not None:
            return _bind_unix(listen.uds, listen.backlog)
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        # REUSEADDR for a quick restart; never REUSEPORT, with which a second pool would take half the traffic.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((listen.host, listen.port))
        listener.listen(listen.backlog)
        return listener
    except OSError as error:
        where = listen.uds or f"{listen.host}:{listen.port}"
        raise LaunchError(f"cannot listen on {where}: {os.strerror(error.errno or 0)}") from error


def _port(listener: socket.socket) -> int:
    """The real one, also where port 0 was asked for."""
    return 0 if listener.family == socket.AF_UNIX else listener.getsockname()[1]


def _bind_unix(path: str, backlog: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if Path(path).is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(path) != 0:
                Path(path).unlink()  # left by a pool that was killed
    listener.bind(path)
    listener.listen(backlog)
    return listener


def _tls(listen: ListenSettings) -> ssl.SSLContext | None:
    if listen.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(listen.ssl_certfile, listen.ssl_keyfile, listen.ssl_keyfile_password)
        if listen.ssl_ca_certs is not None:
            context.load_verify_locations(listen.ssl_ca_certs)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise LaunchError(f"TLS: {error}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def _resolve(settings: ServeSettings) -> _Plan:
    """Which files, fetched if need be. Raises ModelError or LaunchError."""
    if settings.engine == "sim":
        return _Plan(settings.model, settings.model, "sim", settings.tokenizer)
    model = models.resolve(settings.model, engine=None if settings.engine == "auto" else settings.engine)
    if model.engine not in ("llamacpp", "onnx"):
        raise LaunchError(f"{settings.model} wants the engine {model.engine}, which this version does not have yet")
    if model.demo is not None:
        models.fetch(model.demo.name)
    template = models.data_file(model.demo.chat_template) if model.demo and model.demo.chat_template else None
    return _Plan(model.name, model.path, model.engine, settings.tokenizer or model.tokenizer, template)


@dataclass(frozen=True, slots=True)
class _Text:
    """What the model's text is made of: the tokenizer choice, its files, and the chat template's source."""

    choice: TokenizerChoice
    files: TokenizerFiles | None
    template: str | None

    def preprocessor(self) -> Preprocessor:
        """A new one, with backends and a template environment of its own. Raises TemplateError."""
        tokenizer, encoder = self.choice.make()
        return Preprocessor(tokenizer, encoder, self.chat_template(), self._special_tokens)

    def chat_template(self) -> ChatTemplate | None:
        """Compiled, with an environment of its own. Raises TemplateError."""
        return ChatTemplate(self.template, self._special_tokens) if self.template is not None else None

    @property
    def _special_tokens(self) -> dict[str, str]:
        return self.files.special_tokens if self.files is not None else {}


def _read_text(settings: ServeSettings, plan: _Plan) -> _Text:
    if plan.tokenizer is None:  # only the simulated engine speaks without one: one token a byte
        choice, files, template = TokenizerChoice(byte_tokenizer_json(), "hf", "one token a byte"), None, CHAT_TEMPLATE
    else:
        cache = models.cache_root() / "tokenizers"
        files = prepare(plan.tokenizer, cache)
        choice = choose(files.tokenizer_json, settings.tokenizer_backend, cache)
        template = files.chat_template
    better = settings.chat_template or plan.chat_template
    return _Text(choice, files, _read_template(better) if better is not None else template)


def _read_template(source: str) -> str:
    """A file, or the template itself (as vLLM has it)."""
    if "{{" in source or "{%" in source:
        return source
    return Path(source).read_text(encoding="utf-8")


def _engine_argv(
    settings: ServeSettings,
    model: _Plan,
    text: _Text,
    vocab_size: int,
    address: str,
    row_descriptor: int,
) -> list[str]:
    """The engine core's command line; what the user wrote after `--` comes last, so it wins."""
    ours: list[str] = []
    if model.engine == "sim":
        ours += ["--vocab-size", str(vocab_size)]
        if text.files is not None and text.files.eos_token_ids:
            ours += ["--eos-token-id", str(text.files.eos_token_ids[0])]
    if settings.max_model_len is not None:
        ours += ["--max-model-len", str(settings.max_model_len)]
    return [
        sys.executable,
        "-m",
        "engine_bridge",
        "--engine",
        model.engine,
        "--model",
        model.path,
        "--address",
        address,
        "--epoch",
        "1",
        "--status-fd",
        str(row_descriptor),
        "--",
        *ours,
        *settings.engine_arguments,
    ]


def _announce(
    settings: ServeSettings,
    model: _Plan,
    names: tuple[str, ...],
    backend: str,
    board: Board,
    row: EngineRow,
    port: int,
) -> None:
    """One short block for the person who started this: what runs, where, and how to try it."""
    listen = settings.listen
    base = _base_url(settings, port)
    curl = f"curl {base}" if listen.uds is None else f"curl --unix-socket {listen.uds} http://localhost"
    pids = " ".join(str(slot.get(worker.Cell.PID)) for slot in board.slots)
    key = " -H 'authorization: Bearer KEY'" if settings.access.api_keys else ""
    text = f"""
  model       {", ".join(names)}  ({model.path})
  engine      {model.engine}, pid {row.get(Field.PID)}
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


def _base_url(settings: ServeSettings, port: int) -> str:
    listen = settings.listen
    scheme = "https" if listen.ssl_certfile else "http"
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"{scheme}://{host}:{port}{settings.http.root_path}"


def _embeds(engine: str, arguments: tuple[str, ...]) -> bool:
    return engine == "onnx" or (engine == "sim" and "embed" in arguments)


def _example(engine: str, arguments: tuple[str, ...]) -> str:
    return "/v1/embeddings" if _embeds(engine, arguments) else "/v1/chat/completions"


def _example_body(engine: str, arguments: tuple[str, ...], name: str) -> str:
    if _embeds(engine, arguments):
        return f'{{"model":"{name}","input":"Hello"}}'
    return f'{{"model":"{name}","stream":true,"messages":[{{"role":"user","content":"Hello"}}]}}'
