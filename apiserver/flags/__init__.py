"""The command line and the configuration file: the same names in both, parsed once into frozen settings."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

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
from apiserver.flags.care import add_engine_care, add_remote, check_engine_care, engine_care, remote
from apiserver.flags.config_file import read_config
from apiserver.flags.edge import add_admission, admission, check_admission
from apiserver.flags.engine import EngineSettings, add_engine, add_keys
from apiserver.flags.foreign import explain
from apiserver.flags.http import access, add_http, check_http, http, listen, words_of
from apiserver.flags.pool import add_pool
from apiserver.flags.store import add_store, check_store, store
from apiserver.flags.types import at_least

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

_AT_LEAST_ONE = ("max_body_bytes", "max_n", "max_batch_prompts")


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
    text = "More or fewer API servers for the running pool of this user; waits until so many serve."
    scale = commands.add_parser("scale", help="more or fewer API servers for a running pool", description=text)
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
    text = "prompt plus output tokens, at most"
    group.add_argument("--max-model-len", "--context-length", type=at_least(2), metavar="N", help=text)
    add_remote(parser)
    add_pool(parser)
    _add_answers(parser)
    add_engine_care(parser)
    add_http(parser)
    _add_limits(parser)
    add_admission(parser)
    add_store(parser)


def _add_answers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("answers")
    automatic = "a name, none, or auto (the default): what the chat template shows"
    group.add_argument("--tool-call-parser", metavar="NAME", default="auto", help=automatic)
    group.add_argument("--reasoning-parser", metavar="NAME", default="auto", help=automatic)
    group.add_argument("--enable-auto-tool-choice", action="store_true", help="always on; accepted for vLLM's sake")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits = Limits()
    group = parser.add_argument_group("requests")
    group.add_argument("--strict-fields", action="store_true", help="refuse unknown fields instead of ignoring them")
    group.add_argument("--clamp-max-tokens", action="store_true", help="cut max_tokens to the room instead of a 400")
    group.add_argument("--trust-request-chat-template", action="store_true", help="let requests bring a template")
    text = "stream what is new on /generate, not all so far"
    group.add_argument("--incremental-streaming-output", action="store_true", help=text)
    for name in Limits.__dataclass_fields__:
        least = at_least(1 if name in _AT_LEAST_ONE else 0)
        default = getattr(limits, name)
        group.add_argument(
            f"--{name.replace('_', '-')}", type=least, default=default, metavar="N", help=f"default {default}"
        )


def parse_serve(parsers: Parsers, arguments: Sequence[str]) -> ServeSettings:
    """`arguments` begin with "serve". Exits with the parser's message when they are wrong."""
    parser = parsers.serve
    options, engine_arguments = _parse(parsers.command, parser, arguments)
    model = options.model_positional or options.model
    if model is None:
        parser.exit(
            2,
            "apiserver serve: which MODEL? It comes first, before flags that take several words.\n"
            "'apiserver models' lists the demo models.\n",
        )
    _check(parser, options)
    return ServeSettings(
        model=model,
        engine=options.engine,
        tokenizer=options.tokenizer,
        tokenizer_backend=options.tokenizer_backend,
        preprocess_order="inline" if options.preprocess_inline else options.preprocess_order,
        chat_template=options.chat_template,
        escape_special_tokens=options.escape_special_tokens,
        served_model_name=tuple(words_of(options.served_model_name or [])),
        max_model_len=options.max_model_len,
        any_model=options.any_model,
        model_alias=tuple(words_of(options.model_alias)),
        strict_fields=options.strict_fields,
        clamp_max_tokens=options.clamp_max_tokens,
        trust_request_chat_template=options.trust_request_chat_template,
        tool_call_parser=options.tool_call_parser,
        reasoning_parser=options.reasoning_parser,
        incremental_streaming_output=options.incremental_streaming_output,
        api_server_count=options.api_server_count,
        api_server_timeout=options.api_server_timeout,
        max_requests_per_worker=options.max_requests_per_worker,
        engine_care=engine_care(options),
        drain_delay=options.drain_delay,
        affinity=_affinity(parser, options),
        log_level=options.log_level,
        listen=listen(options),
        http=http(options),
        access=access(options),
        limits=Limits(**{name: getattr(options, name) for name in Limits.__dataclass_fields__}),
        store=store(options),
        remote=remote(parser, options, engine_arguments),
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
    options = _understood(command, own, words)
    if options.config is not None:
        from_file, more = read_config(own, options.config)
        own.set_defaults(**from_file)
        options = _understood(command, own, words)
        engine_arguments = [*more, *engine_arguments]
    return options, engine_arguments


def _understood(
    command: argparse.ArgumentParser, own: argparse.ArgumentParser, words: Sequence[str]
) -> argparse.Namespace:
    options, rest = command.parse_known_args(words)
    if rest:
        known = [name.lstrip("-") for action in own._actions for name in action.option_strings]
        own.error(explain(rest, words, known, own.prog))
    return options


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if not 1 <= options.api_server_count <= MAX_SLOTS:
        parser.error(f"--api-server-count must be 1 to {MAX_SLOTS}")
    if options.api_server_timeout < 1:
        parser.error("--api-server-timeout must be at least 1 second")
    check_engine_care(parser, options)
    check_http(parser, options)
    check_admission(parser, options)
    check_store(parser, options)


def _affinity(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Affinity | None:
    if options.cpu_affinity is None:
        return None
    try:
        return read_affinity(options.cpu_affinity, options.api_server_count)
    except ValueError as error:
        parser.error(f"--cpu-affinity: {error}")


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what stands after `--`."""
    words = list(arguments)
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]
