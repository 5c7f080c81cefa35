"""`apiserver serve`: bind, resolve, preload, fork. Everything that the workers share is loaded here, before them."""

import gc
import logging
import os
import secrets
import signal
import socket
import ssl
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from apiserver import child, worker
from apiserver import log as logs
from apiserver.announcement import announce, base_url
from apiserver.api_keys import ApiKey, KeyRing
from apiserver.board import Board
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
from apiserver.plan import Plan, engine_argv, read_text
from apiserver.preload import Loaded, load, model_settings
from apiserver.run_directory import run_directory
from apiserver.store import StoreError, prepare
from apiserver.supervisor import SIGNALS, Patience, Supervisor
from apiserver.tokenizer.messages import TemplateError
from apiserver.tokenizer.source import TokenizerError
from engine_bridge.address import BadAddress, to_connect
from engine_bridge.keys import KeyProblem, read_client_keys
from engine_bridge.status import EngineRow, make_descriptor

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
    credentials = _read_credentials(settings)
    loaded = load(settings)
    row_descriptor = make_descriptor()
    row = EngineRow.attach(row_descriptor)
    preloaded = _preload(settings, listener, directory, credentials, loaded, row)
    shared = _Shared(settings, loaded.plan, credentials.ring, preloaded)
    if credentials.remote is not None:
        engine = EngineElsewhere(row)
    else:
        engine = _keep_engine(settings, loaded, preloaded, row_descriptor)
    control = ControlSocket(directory)
    supervisor = _make_supervisor(settings, loaded, shared, engine, control, port_of(listener))
    # What is alive now lives for ever and is shared: the collector need not touch (and so copy) its pages.
    gc.collect()
    gc.freeze()
    child.trim_heap()
    with control:
        return supervisor.run()


@dataclass(frozen=True, slots=True)
class _Credentials:
    """Keys and certificates. Read first: what is wrong with them should not be said a minute later."""

    remote: worker.RemoteCore | None
    ring: KeyRing
    keys: tuple[ApiKey, ...]
    tls: ssl.SSLContext | None


def _read_credentials(settings: ServeSettings) -> _Credentials:
    """Raises LaunchError."""
    remote = _remote(settings)
    ring = KeyRing(settings.access, os.environ)
    return _Credentials(remote, ring, ring.read(), make_tls(settings.listen))


def _preload(
    settings: ServeSettings,
    listener: socket.socket,
    directory: Path,
    credentials: _Credentials,
    loaded: Loaded,
    row: EngineRow,
) -> worker.Preloaded:
    """Raises LaunchError."""
    try:
        store = None if settings.store is None else prepare(settings.store, directory)
    except StoreError as error:
        raise LaunchError(str(error)) from error
    return worker.Preloaded(
        board=Board(settings.api_server_count),
        engine_row=row,
        listeners=(listener,),
        engine_address=lambda epoch: f"ipc://{directory}/core.{epoch}",
        remote=credentials.remote,
        inline=loaded.inline,
        threaded=loaded.threaded,
        pace=loaded.pace,
        preprocess_order=settings.preprocess_order,
        encoder_reason=loaded.text.choice.reason,
        metrics=Metrics(ROUTES),
        model=loaded.model,
        http=settings.http,
        access=settings.access,
        vocabulary=loaded.text.vocabulary(loaded.inline.tokenizer),
        keys=credentials.keys,
        key_names=credentials.ring.names,
        limits=settings.limits,
        store=store,
        admission=settings.admission,
        tls=credentials.tls,
        created=int(time.time()),
        affinity=settings.affinity,
        log_level=settings.log_level,
    )


def _keep_engine(
    settings: ServeSettings, loaded: Loaded, preloaded: worker.Preloaded, row_descriptor: int
) -> EngineKeeper:
    vocab_size = loaded.inline.tokenizer.vocab_size

    def command(epoch: int) -> EngineCommand:
        address = preloaded.engine_address(epoch)
        argv = engine_argv(settings, loaded.plan, loaded.text, vocab_size, address, epoch, row_descriptor)
        return EngineCommand(argv, (row_descriptor,))

    return EngineKeeper(command, preloaded.engine_row, settings.engine_care, blocked=SIGNALS)


def _make_supervisor(
    settings: ServeSettings,
    loaded: Loaded,
    shared: "_Shared",
    engine: EngineKeeper | EngineElsewhere,
    control: ControlSocket,
    port: int,
) -> Supervisor:
    board, row = shared.preloaded.board, shared.preloaded.engine_row
    names, has_keys = loaded.model.served_model_name, any(not key.is_admin for key in shared.preloaded.keys)
    backend = f"{loaded.text.choice.encoder_name} ({loaded.text.choice.reason})"
    crew = Crew(
        board,
        lambda slot: worker.run(shared.preloaded, slot),
        blocked=SIGNALS,
        liveness_seconds=settings.api_server_timeout,
        max_requests=settings.max_requests_per_worker,
    )
    return Supervisor(
        board,
        shared.preloaded.listeners,
        crew,
        engine,
        control,
        Patience(settings.drain_delay, settings.http.drain_seconds),
        about={"address": settings.listen.uds or base_url(settings, port), "port": port},
        on_ready=lambda: announce(settings, loaded.plan, names, backend, board, row, port, has_keys=has_keys),
        reload=shared.reload,
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
        model = model_settings(self._settings, self._plan, self.preloaded.model.served_model_name, text.template)
        tls = make_tls(self._settings.listen)
        remote = _remote(self._settings)
        keys = self._ring.read()
        self.preloaded.inline.template = inline
        self.preloaded.threaded.template = threaded
        self.preloaded = replace(
            self.preloaded, remote=remote, tls=tls, model=model, keys=keys, key_names=self._ring.names
        )
