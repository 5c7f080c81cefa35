"""The command line and the configuration file: the same names in both, parsed once into frozen settings."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import yaml

from apiserver import __version__
from apiserver.affinity import Affinity
from apiserver.affinity import read as read_affinity
from apiserver.board import MAX_SLOTS
from apiserver.card import Limits
from apiserver.config import (
    AccessSettings,
    AdmissionSettings,
    BackendName,
    EngineCare,
    HttpSettings,
    ListenSettings,
    Order,
    RemoteEngineSettings,
    StoreSettings,
)
from apiserver.edge_flags import add_admission, admission, check_admission
from apiserver.engine_flags import EngineSettings, add_engine, add_keys

_DESCRIPTION = """\
A pool of forked API servers in front of one LLM or embedding engine.

  apiserver serve smollm2                      a small chat model on this CPU
  apiserver serve minilm                       a small embedding model on this CPU
  apiserver serve ./model.gguf --port 9000     any GGUF
  apiserver serve sim --engine sim             the simulated engine, for load tests
  apiserver models                             the demo models
  apiserver scale 8                            more or fewer API servers for the running pool
  apiserver engine MODEL --listen tcp://…      an engine core alone, for pools on other machines …
  apiserver serve MODEL --engine-address tcp://…                                  … which use it so
  apiserver keys DIR --client NAME             the keys that both need

What stands after -- goes to the engine untouched.
"""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Everything that `apiserver serve` was told."""

    model: str
    engine: str
    tokenizer: str | None
    tokenizer_backend: BackendName
    preprocess_order: Order
    chat_template: str | None
    escape_special_tokens: bool
    served_model_name: tuple[str, ...]
    max_model_len: int | None
    any_model: bool
    model_alias: tuple[str, ...]
    strict_fields: bool
    clamp_max_tokens: bool
    trust_request_chat_template: bool
    tool_call_parser: str
    reasoning_parser: str
    incremental_streaming_output: bool
    api_server_count: int
    api_server_timeout: float
    max_requests_per_worker: int
    engine_care: EngineCare
    drain_delay: float
    affinity: Affinity | None
    log_level: str
    listen: ListenSettings
    http: HttpSettings
    access: AccessSettings
    limits: Limits
    store: StoreSettings | None
    remote: RemoteEngineSettings | None
    admission: AdmissionSettings
    engine_arguments: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    """argparse, with a last line that says what to do next."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nTry '{self.prog} --help'.\n")


@dataclass(frozen=True, slots=True)
class Parsers:
    """The command's parser, and those of `serve` and `engine` (a configuration file's names are looked up there)."""

    command: argparse.ArgumentParser
    serve: argparse.ArgumentParser
    engine: argparse.ArgumentParser


def make_parsers() -> Parsers:
    parser = _Parser(prog="apiserver", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"apiserver-pool {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    serve = commands.add_parser("serve", help="serve a model", description="Serve a model with a pool of API servers.")
    _add_serve(serve)
    engine = commands.add_parser("engine", help="an engine core alone, for pools on other machines")
    add_engine(engine)
    add_keys(commands.add_parser("keys", help="make the keys that pools and an engine on another machine need"))
    models = commands.add_parser("models", help="list, fetch and find the demo models")
    actions = models.add_subparsers(dest="action", metavar="ACTION", parser_class=_Parser)
    actions.add_parser("list", help="what there is (the default)")
    for name, text in (("fetch", "download now, with progress"), ("where", "print the path of a fetched model")):
        action = actions.add_parser(name, help=text)
        action.add_argument("name")
    scale = commands.add_parser("scale", help="more or fewer API servers for a running pool")
    scale.add_argument("count", type=int, metavar="N", help="how many there should be")
    scale.add_argument("--port", type=int, help="of the pool that listens there; needed only if several run")
    scale.add_argument("--pid", type=int, help="of the pool whose supervisor has this number")
    return Parsers(parser, serve, engine)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_positional", nargs="?", metavar="MODEL", help="demo model, path, or hub id")
    parser.add_argument("--config", metavar="FILE.yaml", help="settings, by the names of these flags; flags win")
    group = parser.add_argument_group("model")
    group.add_argument("--model", "--model-path", help="the same as MODEL")
    group.add_argument(
        "--engine",
        choices=("auto", "sglang", "llamacpp", "onnx", "sim"),
        default="auto",
        help="default: what fits the model",
    )
    group.add_argument("--tokenizer", "--tokenizer-path", help="where the tokenizer is, if not with the model")
    group.add_argument(
        "--tokenizer-backend",
        choices=("auto", "fastokens", "hf"),
        default="auto",
        help="auto: fastokens where its ids agree with tokenizers'",
    )
    group.add_argument("--chat-template", metavar="FILE", help="a jinja file, or the template itself")
    group.add_argument(
        "--escape-special-tokens",
        action="store_true",
        help="control tokens that a client writes into a message are text to the model (byte-level BPE only)",
    )
    group.add_argument("--served-model-name", nargs="+", metavar="NAME", help="names that clients may use")
    group.add_argument(
        "--model-alias", nargs="+", default=[], metavar="PATTERN", help="further names for it, such as 'claude-*'"
    )
    group.add_argument("--any-model", action="store_true", help="accept every model name")
    group.add_argument("--max-model-len", "--context-length", type=int, help="prompt plus output tokens, at most")
    _add_remote(parser)
    group = parser.add_argument_group("pool")
    group.add_argument(
        "--api-server-count", "-asc", "--tokenizer-worker-num", type=int, default=4, metavar="N", help="default 4"
    )
    group.add_argument(
        "--api-server-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="replace an API server whose event loop has stood still for so long",
    )
    group.add_argument(
        "--max-requests-per-worker",
        type=int,
        default=0,
        metavar="N",
        help="replace an API server that has served N requests (and up to a tenth more); 0, the default: never",
    )
    group.add_argument(
        "--preprocess-order",
        choices=("arrival", "ready"),
        default="arrival",
        help="ready lets short prompts pass long ones that are being encoded",
    )
    group.add_argument("--preprocess-inline", action="store_true", help="never use the thread (for comparisons)")
    group.add_argument(
        "--drain-timeout", type=float, default=30.0, metavar="SECONDS", help="for running requests at SIGTERM"
    )
    group.add_argument(
        "--drain-delay", type=float, default=0.0, metavar="SECONDS", help="not ready, but still accepting"
    )
    group.add_argument(
        "--cpu-affinity",
        metavar="API[:ENGINE]",
        help="CPUs of the API servers (one each) and of the engine core, like 0-3:4-15; or auto. See docs/sglang.md",
    )
    group.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    _add_answers(parser)
    _add_engine_care(parser)
    _add_http(parser)
    _add_limits(parser)
    _add_store(parser)


def _add_answers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("answers")
    automatic = "a name, none, or auto (the default): what the chat template shows"
    group.add_argument("--tool-call-parser", metavar="NAME", default="auto", help=automatic)
    group.add_argument("--reasoning-parser", metavar="NAME", default="auto", help=automatic)
    group.add_argument("--enable-auto-tool-choice", action="store_true", help="always on; accepted for vLLM's sake")


def _add_engine_care(parser: argparse.ArgumentParser) -> None:
    care = EngineCare()
    group = parser.add_argument_group("a dead engine")
    group.add_argument(
        "--engine-restart",
        choices=("on-failure", "never"),
        default=care.restart,
        help="on-failure: start a new one while the API servers answer 503; never: stop the pool with exit code 4",
    )
    for name, kind, default, unit, text in (
        ("restart-limit", int, care.restart_limit, "N", "so many restarts within the window; one more stops the pool"),
        ("restart-window", float, care.restart_window_seconds, "SECONDS", "the window"),
        (
            "heartbeat-timeout",
            float,
            care.heartbeat_seconds,
            "SECONDS",
            "dead if its loop has stood still for so long",
        ),
        (
            "stall-timeout",
            float,
            care.stall_seconds,
            "SECONDS",
            "dead if it has work and has given nothing for so long",
        ),
        ("load-timeout", float, care.load_seconds, "SECONDS", "dead if it has not loaded in so long"),
    ):
        group.add_argument(
            f"--engine-{name}", type=kind, default=default, metavar=unit, help=f"{text}; default {default:g}"
        )


def _add_remote(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("an engine on another machine (apiserver engine)")
    group.add_argument("--engine-address", metavar="tcp://HOST:PORT", help="use that one; start none here")
    group.add_argument("--keys", metavar="DIR", help="this pool's, made by apiserver keys; needed off the loopback")
    group.add_argument(
        "--engine-link-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="a connection that has brought no heartbeat for so long is lost, and whoever waits gets an error",
    )
    add_admission(parser)


def _add_http(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("HTTP")
    group.add_argument("--host", default="127.0.0.1")
    group.add_argument("--port", type=int, default=8000)
    group.add_argument("--uds", metavar="PATH", help="a Unix socket instead of a port")
    group.add_argument("--uds-mode", type=_mode, metavar="OCTAL", help="who may connect (600, 660); else the umask")
    group.add_argument("--root-path", "--fastapi-root-path", default="", help="behind a proxy that strips a prefix")
    group.add_argument(
        "--api-key", action="extend", nargs="+", metavar="KEY", help="repeatable; without one, everybody may call"
    )
    group.add_argument("--api-key-file", metavar="FILE", help="a key, or 'name: key', a line; read again at SIGHUP")
    group.add_argument("--ssl-certfile", metavar="FILE")
    group.add_argument("--ssl-keyfile", metavar="FILE")
    group.add_argument("--ssl-keyfile-password")
    group.add_argument("--ssl-ca-certs", metavar="FILE", help="ask clients for certificates signed by these")
    group.add_argument("--allowed-origins", nargs="+", default=[], help="CORS; closed without it")
    group.add_argument("--allowed-methods", nargs="+", default=["*"])
    group.add_argument("--allowed-headers", nargs="+", default=["*"])
    group.add_argument("--allow-credentials", action="store_true")
    group.add_argument("--access-log", action="store_true", help="a line per request (never for probes)")
    group.add_argument("--no-server-timing", action="store_true", help="do not tell clients where the time went")
    group.add_argument("--keep-alive-timeout", type=float, default=120.0, metavar="SECONDS")
    group.add_argument("--header-timeout", type=float, default=30.0, metavar="SECONDS")
    group.add_argument("--body-timeout", type=float, default=60.0, metavar="SECONDS")
    group.add_argument("--max-header-bytes", type=int, default=65_536)
    group.add_argument(
        "--send-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="cut a client that reads nothing so long",
    )
    group.add_argument("--allow-compressed-bodies", action="store_true", help="take gzip and deflate; refused without")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits = Limits()
    group = parser.add_argument_group("requests")
    group.add_argument("--strict-fields", action="store_true", help="refuse unknown fields instead of ignoring them")
    group.add_argument("--clamp-max-tokens", action="store_true", help="cut max_tokens to the room instead of a 400")
    group.add_argument("--trust-request-chat-template", action="store_true", help="let requests bring a template")
    text = "stream what is new on /generate, not all so far"
    group.add_argument("--incremental-streaming-output", action="store_true", help=text)
    for name in Limits.__dataclass_fields__:
        group.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(limits, name), metavar="N")


def _add_store(parser: argparse.ArgumentParser) -> None:
    store = StoreSettings()
    group = parser.add_argument_group("responses store")
    group.add_argument(
        "--responses-store", metavar="PATH", help="an SQLite file that outlives the pool; default: one that does not"
    )
    group.add_argument("--no-responses-store", action="store_true", help="keep no responses")
    group.add_argument(
        "--responses-max-bytes", type=int, default=store.max_bytes, metavar="N", help="the oldest go beyond it"
    )
    group.add_argument(
        "--responses-max-age",
        type=float,
        default=store.max_age_seconds,
        metavar="SECONDS",
        help="since they were made, or continued (default 30 days)",
    )


def parse_serve(parsers: Parsers, arguments: Sequence[str]) -> ServeSettings:
    """`arguments` begin with "serve". Exits with the parser's message when they are wrong."""
    parser, serve = parsers.command, parsers.serve
    options, engine_arguments = _parse(parser, serve, arguments)
    model = options.model_positional or options.model
    if model is None:
        parser.exit(2, "apiserver serve: which MODEL? 'apiserver models' lists the demo models.\n")
    _check(parser, options)
    return ServeSettings(
        model=model,
        engine=options.engine,
        tokenizer=options.tokenizer,
        tokenizer_backend=options.tokenizer_backend,
        preprocess_order="inline" if options.preprocess_inline else options.preprocess_order,
        chat_template=options.chat_template,
        escape_special_tokens=options.escape_special_tokens,
        served_model_name=tuple(_strings(options.served_model_name or [])),
        max_model_len=options.max_model_len,
        any_model=options.any_model,
        model_alias=tuple(_strings(options.model_alias)),
        strict_fields=options.strict_fields,
        clamp_max_tokens=options.clamp_max_tokens,
        trust_request_chat_template=options.trust_request_chat_template,
        tool_call_parser=options.tool_call_parser,
        reasoning_parser=options.reasoning_parser,
        incremental_streaming_output=options.incremental_streaming_output,
        api_server_count=options.api_server_count,
        api_server_timeout=options.api_server_timeout,
        max_requests_per_worker=options.max_requests_per_worker,
        engine_care=_engine_care(options),
        drain_delay=options.drain_delay,
        affinity=_affinity(parser, options),
        log_level=options.log_level,
        listen=_listen(options),
        http=_http(options),
        access=_access(options),
        limits=Limits(**{name: getattr(options, name) for name in Limits.__dataclass_fields__}),
        store=_store(options),
        remote=_remote(parser, options, engine_arguments),
        admission=admission(options),
        engine_arguments=tuple(engine_arguments),
    )


def parse_engine(parsers: Parsers, arguments: Sequence[str]) -> EngineSettings:
    """`arguments` begin with "engine". Exits with the parser's message when they are wrong."""
    parser = parsers.engine
    options, engine_arguments = _parse(parsers.command, parser, arguments)
    model = options.model_positional or options.model
    if model is None or options.listen is None:
        parser.error("a MODEL and --listen tcp://HOST:PORT are needed")
    if options.link_timeout < 1:
        parser.error("--link-timeout must be at least 1 second")
    return EngineSettings(
        model=model,
        engine=options.engine,
        listen=options.listen,
        keys=options.keys,
        max_model_len=options.max_model_len,
        link_timeout=options.link_timeout,
        engine_arguments=tuple(engine_arguments),
    )


def _parse(
    command: argparse.ArgumentParser, own: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """The options, from the words and the file that they name, and what is for the engine."""
    words, engine_arguments = _split(arguments)
    options = command.parse_args(words)
    if options.config is not None:
        from_file, more = _read_config(own, options.config)
        own.set_defaults(**from_file)
        options = command.parse_args(words)
        engine_arguments = [*more, *engine_arguments]
    return options, engine_arguments


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if not 1 <= options.api_server_count <= MAX_SLOTS:
        parser.error(f"--api-server-count must be 1 to {MAX_SLOTS}")
    if options.api_server_timeout < 1:
        parser.error("--api-server-timeout must be at least 1 second")
    _check_engine_care(parser, options)
    if any(not key for key in options.api_key or ()):
        parser.error("--api-key must not be empty (an unset variable?)")
    if bool(options.ssl_certfile) != bool(options.ssl_keyfile):
        parser.error("--ssl-certfile and --ssl-keyfile go together")
    if options.no_responses_store and options.responses_store is not None:
        parser.error("--responses-store and --no-responses-store exclude each other")
    if options.responses_max_bytes < 1 or options.responses_max_age <= 0:
        parser.error("--responses-max-bytes and --responses-max-age must be above 0")
    if options.send_timeout <= 0:
        parser.error("--send-timeout must be above 0")
    check_admission(parser, options)
    if options.root_path and not options.root_path.startswith("/"):
        parser.error("--root-path must begin with /")


def _check_engine_care(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.max_requests_per_worker < 0:
        parser.error("--max-requests-per-worker must be at least 1, or 0 for never")
    if options.engine_restart_limit < 1:
        parser.error("--engine-restart-limit must be at least 1; for none there is --engine-restart never")
    for name in ("engine_heartbeat_timeout", "engine_stall_timeout", "engine_load_timeout", "engine_restart_window"):
        if not getattr(options, name) >= 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1 second")


def _store(options: argparse.Namespace) -> StoreSettings | None:
    if options.no_responses_store:
        return None
    return StoreSettings(options.responses_store, options.responses_max_bytes, options.responses_max_age)


def _engine_care(options: argparse.Namespace) -> EngineCare:
    return EngineCare(
        restart=options.engine_restart,
        restart_limit=options.engine_restart_limit,
        restart_window_seconds=options.engine_restart_window,
        heartbeat_seconds=options.engine_heartbeat_timeout,
        stall_seconds=options.engine_stall_timeout,
        load_seconds=options.engine_load_timeout,
    )


def _remote(
    parser: argparse.ArgumentParser, options: argparse.Namespace, engine_arguments: Sequence[str]
) -> RemoteEngineSettings | None:
    if options.engine_address is None:
        if options.keys is not None:
            parser.error("--keys are for --engine-address")
        return None
    if engine_arguments:
        parser.error(
            "flags of the engine (after --, or engine_args) belong to apiserver engine, not to --engine-address"
        )
    if options.engine_link_timeout < 1:
        parser.error("--engine-link-timeout must be at least 1 second")
    return RemoteEngineSettings(options.engine_address, options.keys, options.engine_link_timeout)


def _affinity(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Affinity | None:
    if options.cpu_affinity is None:
        return None
    try:
        return read_affinity(options.cpu_affinity, options.api_server_count)
    except ValueError as error:
        parser.error(f"--cpu-affinity: {error}")


def _listen(options: argparse.Namespace) -> ListenSettings:
    return ListenSettings(
        host=options.host,
        port=options.port,
        uds=options.uds,
        uds_mode=options.uds_mode,
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
        ssl_keyfile_password=options.ssl_keyfile_password,
        ssl_ca_certs=options.ssl_ca_certs,
    )


def _http(options: argparse.Namespace) -> HttpSettings:
    return HttpSettings(
        root_path=options.root_path.rstrip("/"),
        access_log=options.access_log,
        keep_alive_seconds=options.keep_alive_timeout,
        head_seconds=options.header_timeout,
        body_seconds=options.body_timeout,
        max_head_bytes=options.max_header_bytes,
        drain_seconds=options.drain_timeout,
        server_timing=not options.no_server_timing,
        send_seconds=options.send_timeout,
        request_seconds=options.request_timeout,
        allow_compressed_bodies=options.allow_compressed_bodies,
    )


def _access(options: argparse.Namespace) -> AccessSettings:
    return AccessSettings(
        api_keys=tuple(options.api_key or ()),
        api_key_file=options.api_key_file,
        allowed_origins=tuple(_strings(options.allowed_origins)),
        allowed_methods=tuple(_strings(options.allowed_methods)),
        allowed_headers=tuple(_strings(options.allowed_headers)),
        allow_credentials=options.allow_credentials,
    )


def _mode(text: str) -> int:
    """Of a file, as chmod takes it."""
    mode = int(str(text), 8)  # a YAML file may hold 600 as a number: it means the digits
    if not 0 < mode <= 0o777:
        raise ValueError(text)
    return mode


def _strings(values: str | list[str]) -> list[str]:
    """A list of words, or vLLM's form of it: one word that is a JSON list."""
    words = [values] if isinstance(values, str) else values
    if len(words) == 1 and words[0].startswith("["):
        return [str(word) for word in json.loads(words[0])]
    return words


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what stands after `--`."""
    words = list(arguments)
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _read_config(serve: argparse.ArgumentParser, file: str) -> tuple[dict[str, Any], list[str]]:
    """The file's settings by destination, and its `engine_args`. Exits naming the key that is wrong."""
    try:
        loaded: Any = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        serve.exit(2, f"{serve.prog}: --config {file}: {error}\n")
    if not isinstance(loaded, dict):
        serve.exit(2, f"{serve.prog}: {file} must hold a mapping of flags to values\n")
    settings: dict[str, Any] = {}
    engine_arguments: list[str] = []
    flags = {option.lstrip("-"): action for action in serve._actions for option in action.option_strings}
    for key, value in cast(dict[str, Any], loaded).items():
        name = str(key).replace("_", "-")
        if name == "engine-args":
            engine_arguments = [str(word) for word in cast(list[Any], value)]
        elif name not in flags or name in ("config", "help"):
            serve.exit(2, f"{serve.prog}: {file}: unknown setting {key!r}\n")
        else:
            settings[flags[name].dest] = _checked(serve, flags[name], file, str(key), value)
    return settings, engine_arguments


def _checked(serve: argparse.ArgumentParser, action: argparse.Action, file: str, key: str, value: Any) -> Any:
    """A value of the file as the flag's own type would read it."""
    if action.const is True:  # a switch
        if not isinstance(value, bool):
            serve.exit(2, f"{serve.prog}: {file}: {key} must be true or false\n")
        return value
    if action.nargs == "+":
        return [str(word) for word in cast(list[Any], value)] if isinstance(value, list) else [str(value)]
    convert = cast(Any, action.type) or str
    try:
        converted = convert(value)
    except (TypeError, ValueError):
        serve.exit(2, f"{serve.prog}: {file}: {key}: {value!r} is not a valid value\n")
    if action.choices is not None and converted not in action.choices:
        serve.exit(2, f"{serve.prog}: {file}: {key} must be one of {', '.join(map(str, action.choices))}\n")
    return converted
