"""What crosses the socket between an API server and the engine core, and nothing else.

A message is a list of the structs below, msgpack-encoded; a message is one loop tick's share (to the core) or one
engine step's share (from it). Token ids travel as little-endian int32 bytes, vectors as little-endian float32 bytes:
36,000 ids as a msgpack list cost milliseconds to encode and decode, as bytes one copy.

Evolution: append fields, with a default; never move, retype or reuse one. Anything else raises WIRE_VERSION, which the
handshake compares, so two incompatible ends fail at the start and not in the middle of somebody's answer.

The rule that everything else relies on: **every Generate, Embed, Score or Admin ends in exactly one of** an Output
with a finish_reason, an Embedding, Scores, an AdminDone, or a Failure — also when the engine ends it by itself. A
Generate is acknowledged first, by Accepted or at once by its end, so that a stream's status line can wait for the
verdict and for nothing more. (The others have no Accepted: their answer is a single message, and a second one would
only wake the API server twice.)

Request ids are small integers private to one API server; the ROUTER socket's identity frame says whose they are.
"""

import array
from enum import IntEnum

import msgspec

WIRE_VERSION = 1

ABORT_ALL = "abort_all"
"""The one verb of an Admin that every core has, whatever its engine can do: end all requests of all API servers. The
answer is {"aborted": how many}."""


class FinishReason(IntEnum):
    """Why a generation ended. An int on the wire: compact, and the dialects spell it anyway."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3


class FailureKind(IntEnum):
    """Whose fault an engine-side failure is; the API server maps it to a status."""

    INVALID = 0  # the request cannot be served by this engine: 400
    OVERLOADED = 1  # the engine's queue is full: 503, try again
    INTERNAL = 2  # the engine failed at this request: 500
    ABORTED = 3  # somebody asked for it by client_request_id: the request ends as aborted
    UNAVAILABLE = 4  # the engine is going away: 503


class _Message(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False, tag=True):
    """One tagged entry of a message's list."""


class _Part(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A struct inside an entry; it needs no tag, since its place says what it is."""


# ---- API server → core ------------------------------------------------------------------------------------------


class SamplingParams(_Part, frozen=True):
    """How to sample. Every default is "off", so an engine applies exactly what differs from it."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1  # -1 = off
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None  # None = off; 0 = only the sampled token's; n = and the n best
    prompt_logprobs: int | None = None  # the same for the prompt's tokens
    json_schema: str | None = None  # constrain the output; at most one of these and of structural_tag
    regex: str | None = None
    grammar: str | None = None  # EBNF / GBNF, as the engine understands it
    lora: str | None = None
    structural_tag: str | None = None  # the fourth way to constrain the output: SGLang's and xgrammar's JSON document
    token_ids_logprob: tuple[int, ...] = ()  # wherever there are logprobs, these tokens' as well


class Generate(_Message, frozen=True, tag="g"):
    """Make tokens that follow prompt_token_ids (int32 bytes)."""

    request_id: int
    prompt_token_ids: bytes
    sampling_params: SamplingParams
    client_request_id: str | None = None  # what AbortByClientId finds; never the engine's key
    priority: int = 0
    cache_salt: str | None = None
    owner: str = ""  # whose it is, where the API servers know their clients apart


class Embed(_Message, frozen=True, tag="e"):
    """Make one vector of prompt_token_ids (int32 bytes)."""

    request_id: int
    prompt_token_ids: bytes
    dimensions: int | None = None  # cut, then normalised again; None = the model's own size
    client_request_id: str | None = None
    priority: int = 0
    owner: str = ""


class Score(_Message, frozen=True, tag="s"):
    """How likely is each of these tokens to follow prompt_token_ids (int32 bytes)? Nothing is generated."""

    request_id: int
    prompt_token_ids: bytes
    label_token_ids: tuple[int, ...]
    client_request_id: str | None = None
    priority: int = 0
    owner: str = ""


class Admin(_Message, frozen=True, tag="m"):
    """Do something to the engine as a whole; `verb` is ABORT_ALL or one of Capabilities.admin, `arguments` a JSON
    object."""

    request_id: int
    verb: str
    arguments: bytes = b"{}"


class Abort(_Message, frozen=True, tag="a"):
    """End these requests of mine early. Unknown ids are no error: the end may have crossed this on its way."""

    request_ids: tuple[int, ...]


class AbortByClientId(_Message, frozen=True, tag="c"):
    """End whatever carries this client_request_id, of whichever API server."""

    client_request_id: str
    owner: str | None = None  # only this one's; None = everybody's


class Hello(_Message, frozen=True, tag="h"):
    """The first thing an API server says. The core answers Welcome, at once or when its engine is loaded.

    Of another version only this, and Rejected, must be readable: their first fields stay what they are for ever.
    """

    wire_version: int
    heartbeats: bool = False  # over tcp://: I send them (a ForEpoch alone) and expect the core's


class ForEpoch(_Message, frozen=True, tag="t"):
    """The first entry of each message over tcp:// after the Welcome: the rest is meant for the core of this epoch and
    for no other. (Over ipc:// the address says so.) Alone, it is a heartbeat."""

    epoch: int


# ---- core → API server ------------------------------------------------------------------------------------------


class Capabilities(_Part, frozen=True):
    """What the loaded engine can do; asked once, drives 400s and the model's description."""

    task: str  # "generate" | "embed"
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    dimensions: int = 0  # of a vector; 0 for a generating model
    matryoshka: bool = False  # vectors may be cut
    logprobs: int = 0  # the most alternatives per token; -1 = no logprobs at all
    prompt_logprobs: bool = False
    min_tokens: bool = False
    logit_bias: bool = False
    json_schema: bool = False
    regex: bool = False
    grammar: bool = False
    lora: bool = False
    engine: str = ""  # its name and version, for people
    temperature: float | None = None  # the model's own sampling defaults (generation_config), None = ours
    top_p: float | None = None
    top_k: int | None = None
    score: bool = False  # a Score is answered
    structural_tag: bool = False
    priority: bool = False  # a request's priority has an effect
    admin: tuple[str, ...] = ()  # the verbs that an Admin may have
    model_type: str = ""  # the model's own description of itself, where it has one
    architectures: tuple[str, ...] = ()
    seed: bool = True  # a request's seed decides its sampling
    tag_formats: bool = False  # structural tags in xgrammar's form, with a format that nests, are understood
    token_ids_logprob: bool = False


class Welcome(_Message, frozen=True, tag="w"):
    """The engine is loaded. Refused versions get Rejected instead."""

    wire_version: int
    epoch: int
    capabilities: Capabilities


class Rejected(_Message, frozen=True, tag="r"):
    """The handshake failed for good; the API server must not try again."""

    wire_version: int
    message: str


class Accepted(_Message, frozen=True, tag="k"):
    """These Generates are queued in the engine: a stream's headers may go out."""

    request_ids: tuple[int, ...]


class TokenLogprobs(_Part, frozen=True):
    """One token's own logprob and the best alternatives, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    asked: tuple[float, ...] = ()  # of the request's token_ids_logprob, in their order


class Output(_Message, frozen=True, tag="o"):
    """One request's share of one step (or of a few, merged)."""

    request_id: int
    new_token_ids: bytes = b""  # int32; holds the stop token too, which stop_token_id then names
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # with STOP: the token that ended it
    logprobs: tuple[TokenLogprobs, ...] | None = None  # one per new token
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None  # first Output only; its first entry is None
    cached_tokens: int = 0  # prompt tokens that were not computed; on the first Output
    queued_seconds: float = 0.0  # that the request waited in the engine before its first step; on the first Output


class Embedding(_Message, frozen=True, tag="v"):
    """The one answer to an Embed: float32 bytes."""

    request_id: int
    vector: bytes
    queued_seconds: float = 0.0


class Scores(_Message, frozen=True, tag="l"):
    """The one answer to a Score: the natural logarithm of each label's probability, among the whole vocabulary."""

    request_id: int
    logprobs: tuple[float, ...]
    queued_seconds: float = 0.0


class AdminDone(_Message, frozen=True, tag="n"):
    """The answer to an Admin that was done: a JSON object. One that was not gets a Failure."""

    request_id: int
    document: bytes = b"{}"


class Failure(_Message, frozen=True, tag="f"):
    """The end of a request that the engine could not serve."""

    request_id: int
    kind: FailureKind
    message: str


class Heartbeat(_Message, frozen=True, tag="b"):
    """What the core's row of shared memory says, for API servers that cannot map it; to whoever asked in Hello."""

    epoch: int
    state: int  # an EngineState
    running: int
    waiting: int
    requests: int = 0
    output_tokens: int = 0
    junk: int = 0
    seconds_since_output: float | None = None  # None = the engine does not tell
    tokens_used: int = 0
    token_capacity: int = 0
    tokens_per_second: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    stage: str = ""


class EngineDown(_Message, frozen=True, tag="d"):
    """The core's last word, if it can still speak: nothing more will come from this epoch."""

    message: str


ToCore = Hello | ForEpoch | Generate | Embed | Score | Admin | Abort | AbortByClientId
ToServer = Welcome | Rejected | Heartbeat | Accepted | Output | Embedding | Scores | AdminDone | Failure | EngineDown
Request = Generate | Embed | Score

encode = msgspec.msgpack.Encoder().encode
decode_to_core = msgspec.msgpack.Decoder(list[ToCore]).decode
decode_to_server = msgspec.msgpack.Decoder(list[ToServer]).decode


ID_BYTES = 4


def pack_ids(token_ids: list[int] | tuple[int, ...]) -> bytes:
    """Token ids as little-endian int32 bytes. Raises OverflowError outside int32: check ids against the model first."""
    return array.array("i", token_ids).tobytes()


def count_ids(packed: bytes) -> int:
    """How many ids are packed in it."""
    return len(packed) // ID_BYTES


def unpack_ids(packed: bytes) -> list[int]:
    """The inverse of pack_ids."""
    ids = array.array("i")
    ids.frombytes(packed)
    return ids.tolist()
