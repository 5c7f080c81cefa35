"""`apiserver serve`: bind, resolve, preload, fork. Everything that the workers share is loaded here, before them."""

import gc
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

from apiserver import child, models, worker
from apiserver import log as logs
from apiserver.announcement import announce, base_url
from apiserver.api_keys import KeyRing
from apiserver.board import Board
from apiserver.config import ModelSettings
from apiserver.control import ControlSocket
from apiserver.crew import Crew
from apiserver.engine_elsewhere import EngineElsewhere
from apiserver.engine_keeper import EngineCommand, EngineKeeper
from apiserver.file_limit import raise_file_limit
from apiserver.flags import ServeSettings
from apiserver.http.app import ROUTES
from apiserver.launch_error import LaunchError
from apiserver.listening import listening, make_tls, port_of
from apiserver.metrics import Metrics
from apiserver.pipeline.pace import measure
from apiserver.pipeline.parsers.auto import choose_reasoning, choose_tool_calls
from apiserver.pipeline.parsers.names import UnknownParser
from apiserver.plan import Plan, engine_argv, read_text, resolve
from apiserver.run_directory import run_directory
from apiserver.store import StoreError, prepare
from apiserver.supervisor import SIGNALS, Patience, Supervisor
from apiserver.tokenizer.messages import TemplateError
from apiserver.tokenizer.source import TokenizerError
from engine_bridge.address import BadAddress, to_connect
from engine_bridge.keys import KeyProblem, read_client_keys
from engine_bridge.status import EngineRow, make_descriptor

T = TypeVar("T")

log = logging.getLogger("apiserver")


def serve(settings: ServeSettings) -> int:
    """Run the pool until it is told to stop; returns the process's exit code. Raises LaunchError."""
    child.stand_on_streams()
    logs.set_up(settings.log_level, "pool")
    raise_file_limit()
    # Said before the fork, once: unset, tokenizers warns in every child and decides for itself.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["FASTOKENS_BPE_THREADS"] = "1"  # more would start a thread, and whoever forks must have one
    _heed_signals()
    with ExitStack() as stack:
        with _undisturbed():  # between the making of a file and the promise to remove it
            listener = stack.enter_context(listening(settings.listen))
            log.info("listening on %s", settings.listen.uds or base_url(settings, port_of(listener)))
            try:
                directory = stack.enter_context(run_directory())
            except OSError as error:
                raise LaunchError(f"no directory for the pool's own sockets: {error}") from error
        return _supervise(settings, listener, directory)


_TO_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


def _heed_signals() -> None:
    """Until the supervisor takes them in its own time: who wants us to stop is heard at once, other orders wait."""
    for number in (signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, _stop_early)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU))


def _stop_early(number: int, frame: object) -> NoReturn:
    for each in _TO_STOP:
        signal.signal(each, signal.SIG_IGN)  # a second one would disturb the cleaning up
    raise SystemExit(0)


@contextmanager
def _undisturbed() -> Generator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, _TO_STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_STOP)


def _supervise(settings: ServeSettings, listener: socket.socket, directory: Path) -> int:
    remote = _remote(settings)
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
        names = settings.served_model_name or (model.name,)
        model_settings = _model_settings(settings, model, names, text.template)
    except (models.ModelError, TokenizerError, TemplateError, UnknownParser, OSError) as error:
        raise LaunchError(str(error)) from error
    try:
        store = None if settings.store is None else prepare(settings.store, directory)
    except StoreError as error:
        raise LaunchError(str(error)) from error
    board = Board(settings.api_server_count)
    row_descriptor = make_descriptor()
    row = EngineRow.attach(row_descriptor)

    def engine_address(epoch: int) -> str:
        return f"ipc://{directory}/core.{epoch}"

    preloaded = worker.Preloaded(
        board=board,
        engine_row=row,
        listeners=(listener,),
        engine_address=engine_address,
        remote=remote,
        inline=inline,
        threaded=threaded,
        pace=pace,
        preprocess_order=settings.preprocess_order,
        encoder_reason=text.choice.reason,
        metrics=Metrics(ROUTES),
        model=model_settings,
        http=settings.http,
        access=settings.access,
        vocabulary=text.vocabulary(inline.tokenizer),
        keys=keys,
        key_names=ring.names,
        limits=settings.limits,
        store=store,
        admission=settings.admission,
        tls=tls,
        created=int(time.time()),
        affinity=settings.affinity,
        log_level=settings.log_level,
    )
    shared = _Shared(settings, model, ring, preloaded)
    vocab_size = inline.tokenizer.vocab_size

    def engine_command(epoch: int) -> EngineCommand:
        argv = engine_argv(settings, model, text, vocab_size, engine_address(epoch), epoch, row_descriptor)
        return EngineCommand(argv, (row_descriptor,))

    control = ControlSocket(directory)
    supervisor = Supervisor(
        board,
        (listener,),
        Crew(
            board,
            lambda slot: worker.run(shared.preloaded, slot),
            blocked=SIGNALS,
            liveness_seconds=settings.api_server_timeout,
            max_requests=settings.max_requests_per_worker,
        ),
        EngineElsewhere(row)
        if remote is not None
        else EngineKeeper(engine_command, row, settings.engine_care, blocked=SIGNALS),
        control,
        Patience(settings.drain_delay, settings.http.drain_seconds),
        about={
            "address": settings.listen.uds or base_url(settings, port_of(listener)),
            "port": port_of(listener),
        },
        on_ready=lambda: announce(
            settings,
            model,
            names,
            f"{text.choice.encoder_name} ({text.choice.reason})",
            board,
            row,
            port_of(listener),
            has_keys=any(not key.is_admin for key in keys),
        ),
        reload=shared.reload,
    )
    # What is alive now lives for ever and is shared: the collector need not touch (and so copy) its pages.
    gc.collect()
    gc.freeze()
    child.trim_heap()
    with control:
        return supervisor.run()


def _model_settings(settings: ServeSettings, plan: Plan, names: tuple[str, ...], template: str | None) -> ModelSettings:
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


def _remote(settings: ServeSettings) -> worker.RemoteCore | None:
    """Read before the fork: the API servers need not be able to read the keys. Raises LaunchError."""
    remote = settings.remote
    if remote is None:
        return None
    try:
        address = to_connect(remote.address, with_keys=remote.keys is not None)
        keys = read_client_keys(Path(remote.keys)) if remote.keys is not None else None
    except (BadAddress, KeyProblem) as error:
        raise LaunchError(str(error)) from error
    return worker.RemoteCore(address, keys, remote.silence_seconds, secrets.token_hex(4))


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
        """Read the chat template, the certificates, the API keys and the keys for an engine elsewhere again. False, and
        nothing changed, if one of them is broken."""
        try:
            self._read_again()
        except (LaunchError, TokenizerError, TemplateError, OSError) as error:
            log.error("SIGHUP: %s; everything stays as it is", error)
            return False
        except Exception:  # no file that somebody has spoiled may end a pool that serves
            log.exception("SIGHUP: what it wants read again cannot be; everything stays as it is")
            return False
        return True

    def _read_again(self) -> None:
        text = read_text(self._settings, self._plan)
        inline, threaded = text.chat_template(), text.chat_template()
        model = _model_settings(self._settings, self._plan, self.preloaded.model.served_model_name, text.template)
        tls = make_tls(self._settings.listen)
        remote = _remote(self._settings)
        keys = self._ring.read()
        self.preloaded.inline.template = inline
        self.preloaded.threaded.template = threaded
        self.preloaded = replace(
            self.preloaded, remote=remote, tls=tls, model=model, keys=keys, key_names=self._ring.names
        )
