"""The flags about the HTTP edge: where it listens, who may call, how long things may take."""

import argparse
import json

from apiserver.config import AccessSettings, HttpSettings, ListenSettings
from apiserver.flags.types import at_least


def add_http(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("HTTP")
    group.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1: only this machine; 0.0.0.0 or ::")
    group.add_argument("--port", type=at_least(0), default=8000, help="default 8000; 0 takes a free one")
    group.add_argument("--uds", metavar="PATH", help="a Unix socket instead of a port")
    group.add_argument("--uds-mode", type=_mode, metavar="OCTAL", help="who may connect (600, 660); else the umask")
    group.add_argument(
        "--root-path", "--fastapi-root-path", default="", metavar="/PREFIX", help="behind a proxy that strips a prefix"
    )
    group.add_argument(
        "--api-key", action="extend", nargs="+", metavar="KEY", help="repeatable; without one, everybody may call"
    )
    group.add_argument("--api-key-file", metavar="FILE", help="a key, or 'name: key', a line; read again at SIGHUP")
    group.add_argument(
        "--admin-api-key", action="extend", nargs="+", metavar="KEY", help="what concerns the whole engine wants one"
    )
    group.add_argument("--admin-api-key-file", metavar="FILE", help="as --api-key-file, of admin keys")
    group.add_argument("--ssl-certfile", metavar="FILE", help="turns TLS on, with its key; read again at SIGHUP")
    group.add_argument("--ssl-keyfile", metavar="FILE")
    group.add_argument("--ssl-keyfile-password", metavar="TEXT")
    group.add_argument("--ssl-ca-certs", metavar="FILE", help="ask clients for certificates signed by these")
    group.add_argument("--allowed-origins", nargs="+", default=[], metavar="ORIGIN", help="CORS; closed without it")
    group.add_argument("--allowed-methods", nargs="+", default=["*"], metavar="METHOD")
    group.add_argument("--allowed-headers", nargs="+", default=["*"], metavar="HEADER")
    group.add_argument("--allow-credentials", action="store_true", help="CORS, with cookies")
    group.add_argument("--access-log", action="store_true", help="a line per request (never for probes)")
    group.add_argument("--no-server-timing", action="store_true", help="do not tell clients where the time went")
    for name, default, text in (
        ("keep-alive", 120.0, "close a connection that has been idle for so long"),
        ("header", 30.0, "for a request's head to arrive, and a TLS handshake"),
        ("body", 60.0, "for a body to arrive; each KiB gives one second more"),
    ):
        help_text = f"{text}; default {default:g}"
        group.add_argument(f"--{name}-timeout", type=at_least(0.0), default=default, metavar="SECONDS", help=help_text)
    group.add_argument("--max-header-bytes", type=at_least(1), default=65_536, metavar="N", help="default 65536")
    group.add_argument(
        "--send-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="cut a client that reads nothing so long; default 60",
    )
    group.add_argument("--allow-compressed-bodies", action="store_true", help="take gzip and deflate; refused without")


def check_http(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    for flag, keys in (("--api-key", options.api_key), ("--admin-api-key", options.admin_api_key)):
        if any(not key for key in keys or ()):
            parser.error(f"{flag} must not be empty (an unset variable?)")
    if bool(options.ssl_certfile) != bool(options.ssl_keyfile):
        parser.error("--ssl-certfile and --ssl-keyfile go together")
    if options.send_timeout <= 0:
        parser.error("--send-timeout must be above 0")
    if options.root_path and not options.root_path.startswith("/"):
        parser.error("--root-path must begin with /")


def listen(options: argparse.Namespace) -> ListenSettings:
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


def http(options: argparse.Namespace) -> HttpSettings:
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


def access(options: argparse.Namespace) -> AccessSettings:
    return AccessSettings(
        api_keys=tuple(options.api_key or ()),
        api_key_file=options.api_key_file,
        admin_api_keys=tuple(options.admin_api_key or ()),
        admin_api_key_file=options.admin_api_key_file,
        allowed_origins=tuple(words_of(options.allowed_origins)),
        allowed_methods=tuple(words_of(options.allowed_methods)),
        allowed_headers=tuple(words_of(options.allowed_headers)),
        allow_credentials=options.allow_credentials,
    )


def _mode(text: str) -> int:
    """Of a file, as chmod takes it."""
    mode = int(str(text), 8)  # a YAML file may hold 600 as a number: it means the digits
    if not 0 < mode <= 0o777:
        raise ValueError(text)
    return mode


def words_of(values: str | list[str]) -> list[str]:
    """A list of words, or vLLM's form of it: one word that is a JSON list."""
    words = [values] if isinstance(values, str) else values
    if len(words) == 1 and words[0].startswith("["):
        return [str(word) for word in json.loads(words[0])]
    return words
