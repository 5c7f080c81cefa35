"""What the pool is told, as frozen data. Parsed once, by cli; everybody gets the piece that concerns them."""

from dataclasses import dataclass
from typing import Literal

BackendName = Literal["auto", "fastokens", "hf"]
"""Which encoder is asked for."""

Order = Literal["arrival", "ready", "inline"]
"""In which order a worker's preprocessing is done; `inline` never leaves the loop, for comparisons."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model, and how requests for it are read."""

    model: str
    served_model_name: tuple[str, ...]
    max_model_len: int | None = None
    any_model: bool = False
    aliases: tuple[str, ...] = ()
    strict_fields: bool = False
    clamp_max_tokens: bool = False
    trust_request_chat_template: bool = False
    tool_call_parser: str | None = None
    tool_call_parser_reason: str = ""
    reasoning_parser: str | None = None
    reasoning_parser_reason: str = ""
    incremental_streaming_output: bool = False
    tokenizer: str = ""  # where it was read from; empty for one that is no file


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Where the pool listens: a TCP address, or a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    uds_mode: int | None = None
    backlog: int = 2048
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_keyfile_password: str | None = None
    ssl_ca_certs: str | None = None


@dataclass(frozen=True, slots=True)
class RemoteEngineSettings:
    """The engine core of another machine, that this pool uses instead of one of its own."""

    address: str  # tcp://HOST:PORT
    keys: str | None  # a directory made by `apiserver keys`; None only on the loopback
    silence_seconds: float  # without a heartbeat for so long, it is gone


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The HTTP edge. Times in seconds, sizes in bytes."""

    root_path: str = ""
    access_log: bool = False
    keep_alive_seconds: float = 120.0  # uvicorn's 5 s resets clients that pool their connections
    head_seconds: float = 30.0  # from a request's first byte (or the connection's start) to the end of its headers
    body_seconds: float = 60.0  # the longest pause between two pieces of a body
    max_head_bytes: int = 64 * 1024
    drain_seconds: float = 30.0
    server_timing: bool = True
    send_seconds: float = 60.0  # the longest that a client may read nothing of what waits for it
    request_seconds: float = 0.0  # for the whole of a request, from its headers on; 0 is no limit
    allow_compressed_bodies: bool = False


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Who may call, from where."""

    api_keys: tuple[str, ...] = ()
    api_key_file: str | None = None
    admin_api_keys: tuple[str, ...] = ()
    admin_api_key_file: str | None = None
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The Responses store. Without a path it is in the run's own directory, and ends with the pool."""

    path: str | None = None
    max_bytes: int = 256 * 1024 * 1024
    max_age_seconds: float = 30 * 24 * 3600.0  # OpenAI's


@dataclass(frozen=True, slots=True)
class EngineCare:
    """When the engine core counts as dead, and what follows. Times in seconds."""

    restart: Literal["on-failure", "never"] = "on-failure"
    restart_limit: int = 5  # so many restarts …
    restart_window_seconds: float = 3600.0  # … within so long; one more death is a crash loop
    heartbeat_seconds: float = 5.0  # how long its loop may stand still
    stall_seconds: float = 120.0  # how long it may have work and give nothing
    load_seconds: float = 3600.0  # how long it may take to load


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """How much the pool takes on; 0 is no limit. All but the last two count requests of the engine (each choice of each
    prompt), over all API servers."""

    max_inflight: int = 0  # that have not ended
    max_queued_requests: int = 0  # that the engine has not begun to answer
    max_queued_tokens: int = 0  # prompt tokens of those
    max_inflight_per_key: int = 0  # HTTP requests
    max_requests_per_minute_per_key: int = 0

    @property
    def limits_pool(self) -> bool:
        return bool(self.max_inflight or self.max_queued_requests or self.max_queued_tokens)
