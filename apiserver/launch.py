"""`apiserver serve`: bind, resolve, preload, fork. Everything that the workers share is loaded here, before them."""

import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

from apiserver import child, models, worker
from apiserver import log as logs
from apiserver.announcement import announce, base_url
from apiserver.api_keys import KeyRing
from apiserver.board import Board
from apiserver.config import ModelSettings
from apiserver.flags import ServeSettings
from apiserver.http.app import ROUTES
from apiserver.launch_error import LaunchError
from apiserver.listening import bind, make_tls, port_of
from apiserver.metrics import Metrics
from apiserver.pipeline.pace import measure
from apiserver.plan import Plan, engine_argv, read_text, resolve
from apiserver.run_directory import run_directory
from apiserver.supervisor import EngineCommand, Patience, Supervisor
from apiserver.tokenizer.messages import TemplateError
from apiserver.tokenizer.source import TokenizerError
from engine_bridge.status import EngineRow, Field, make_descriptor

T = TypeVar("T")

log = logging.getLogger("apiserver")


def serve(settings: ServeSettings) -> int:
    """Run the pool until it is told to stop; returns the process's exit code. Raises LaunchError."""
    logs.set_up(settings.log_level, "pool")
    # Said before the fork, once: unset, tokenizers warns in every child and decides for itself.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["FASTOKENS_BPE_THREADS"] = "1"  # more would start a thread, and whoever forks must have one
    signal.signal(signal.SIGTERM, _stop_early)  # until the supervisor blocks it and takes it in its own time
    listener = bind(settings.listen)
    log.info("listening on %s", settings.listen.uds or base_url(settings, port_of(listener)))
    try:
        with run_directory() as directory:
            return _supervise(settings, listener, directory)
    finally:
        if settings.listen.uds is not None:
            Path(settings.listen.uds).unlink(missing_ok=True)


def _stop_early(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)


def _supervise(settings: ServeSettings, listener: socket.socket, directory: Path) -> int:
    ring = KeyRing(settings.access, os.environ)
    keys, tls = ring.read(), make_tls(settings.listen)
    try:
        model = resolve(settings)
        text = read_text(settings, model)
        inline, threaded = _in_own_arena(lambda: (text.preprocessor(), text.preprocessor()))
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
            aliases=settings.model_alias,
            strict_fields=settings.strict_fields,
            clamp_max_tokens=settings.clamp_max_tokens,
            trust_request_chat_template=settings.trust_request_chat_template,
        ),
        http=settings.http,
        access=settings.access,
        keys=keys,
        key_names=ring.names,
        limits=settings.limits,
        admission=settings.admission,
        tls=tls,
        created=int(time.time()),
        log_level=settings.log_level,
    )
    shared = _Shared(settings, model, ring, preloaded)
    command = EngineCommand(
        engine_argv(settings, model, text, inline.tokenizer.vocab_size, engine_address(1), row_descriptor),
        (row_descriptor,),
    )
    supervisor = Supervisor(
        board,
        (listener,),
        lambda slot: worker.run(shared.preloaded, slot),
        command,
        row,
        Patience(settings.drain_delay, settings.http.drain_seconds, settings.api_server_timeout),
        on_ready=lambda: announce(
            settings,
            model,
            names,
            f"{text.choice.encoder_name} ({text.choice.reason})",
            board,
            row,
            port_of(listener),
            has_keys=bool(keys),
        ),
        reload=shared.reload,
    )
    # What is alive now lives for ever and is shared: the collector need not touch (and so copy) its pages.
    gc.collect()
    gc.freeze()
    child.trim_heap()
    return supervisor.run()


def _in_own_arena(load: Callable[[], T]) -> T:
    """Call `load` in a thread that ends with it, so that what it allocates lies in an arena of its own.

    Loading a vocabulary leaves tens of megabytes of holes in the heap, between what stays. A forked worker would fill
    them with its own small things and so copy the pages around them: 37 MB a worker after 10,000 requests.
    """
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(load).result()


class _Shared:
    """What every new worker inherits; SIGHUP renews the parts of it that come from files."""

    def __init__(self, settings: ServeSettings, plan: Plan, ring: KeyRing, preloaded: worker.Preloaded) -> None:
        self._settings = settings
        self._plan = plan
        self._ring = ring
        self.preloaded = preloaded

    def reload(self) -> bool:
        """Read the chat template, the certificates and the API keys again. False, and nothing changed, if one of them
        is broken."""
        try:
            text = read_text(self._settings, self._plan)
            inline, threaded = text.chat_template(), text.chat_template()
            tls = make_tls(self._settings.listen)
            keys = self._ring.read()
        except (LaunchError, TokenizerError, TemplateError, OSError) as error:
            log.error("SIGHUP: %s; everything stays as it is", error)
            return False
        self.preloaded.inline.template = inline
        self.preloaded.threaded.template = threaded
        self.preloaded = replace(self.preloaded, tls=tls, keys=keys, key_names=self._ring.names)
        return True
