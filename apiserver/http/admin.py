"""What is done to the engine as a whole, or to somebody else's request: by any API server, for the pool.

A verb that the engine has not got is a 400 that says so. SGLang's routes, which take a GET as well where its do.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from apiserver.errors import ApiError, Internal, InvalidRequest, Unavailable
from apiserver.http.access import wants_admin
from apiserver.http.call import Call
from apiserver.http.service import Service
from apiserver.protocol.decoding import check_length, check_range, decode
from engine_bridge.client import AdminFailed, EngineUnavailable
from engine_bridge.wire import ABORT_ALL, FailureKind

_encode = msgspec.json.Encoder().encode
_MOST_RID = 256
_PAUSE_MODES = ("abort", "retract", "in_place")
_MOST_SECONDS = 3600.0


class AbortFields(msgspec.Struct, kw_only=True):
    rid: str | None = None
    abort_all: bool | None = None


class PauseFields(msgspec.Struct, kw_only=True):
    mode: str | None = None


class LoadAdapterFields(msgspec.Struct, kw_only=True):
    lora_name: str
    lora_path: str
    pinned: bool | None = None


class UnloadAdapterFields(msgspec.Struct, kw_only=True):
    lora_name: str


class AnyFields(msgspec.Struct):
    """Of what is handed on as it is."""


_abort_decoder = msgspec.json.Decoder(AbortFields)
_pause_decoder = msgspec.json.Decoder(PauseFields)
_load_decoder = msgspec.json.Decoder(LoadAdapterFields)
_unload_decoder = msgspec.json.Decoder(UnloadAdapterFields)
_any_decoder = msgspec.json.Decoder(AnyFields)


class Admin:
    """One method a route."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def abort_request(self, call: Call) -> None:
        """End what is this caller's and carries an id, or everything; also what another API server has taken."""
        fields = decode(await _body(call), _abort_decoder)
        check_length("rid", fields.rid, _MOST_RID)
        if fields.abort_all:
            if not call.caller.may_administer:
                raise wants_admin(call.caller)
            await self._do(call, ABORT_ALL, {})
            return
        if not fields.rid:
            raise InvalidRequest("Which request? Send its rid, or abort_all.", param="rid")
        try:
            self._service.client.abort_by_client_id(fields.rid, call.caller.reach)
        except EngineUnavailable as error:
            raise Unavailable(str(error)) from error
        await call.respond(200, _encode({"success": True}))

    async def flush_cache(self, call: Call) -> None:
        """`?timeout=` is how many seconds the engine may wait until nothing runs."""
        await _body(call)
        await self._do(call, "flush_cache", {"timeout": seconds_asked(call, 0.0)})

    async def pause_generation(self, call: Call) -> None:
        mode = decode(await _body(call), _pause_decoder).mode or "abort"
        if mode not in _PAUSE_MODES:
            raise InvalidRequest(f"mode must be one of {', '.join(_PAUSE_MODES)}.", param="mode")
        if mode == "abort":
            await self._admin("pause_generation", {"mode": mode})
            await self._do(call, ABORT_ALL, {})
        else:
            await self._do(call, "pause_generation", {"mode": mode})

    async def continue_generation(self, call: Call) -> None:
        await self._pass_on(call, "continue_generation")

    async def load_adapter(self, call: Call) -> None:
        fields = decode(await _body(call), _load_decoder)
        await self._do(call, "load_lora_adapter", msgspec.to_builtins(fields))

    async def unload_adapter(self, call: Call) -> None:
        fields = decode(await _body(call), _unload_decoder)
        await self._do(call, "unload_lora_adapter", msgspec.to_builtins(fields))

    async def start_profile(self, call: Call) -> None:
        await self._pass_on(call, "start_profile")

    async def stop_profile(self, call: Call) -> None:
        await self._pass_on(call, "stop_profile")

    async def _pass_on(self, call: Call, verb: str) -> None:
        """With the body's object as it is."""
        body = await _body(call)
        decode(body, _any_decoder)
        try:
            arguments = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:  # in what the decoder above skips
            raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
        await self._do(call, verb, arguments)

    async def _do(self, call: Call, verb: str, arguments: Mapping[str, Any]) -> None:
        document = await self._admin(verb, arguments)
        await call.respond(200, _encode({"success": True, **document}))

    async def _admin(self, verb: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        sent = {name: value for name, value in arguments.items() if value is not None}  # null is what is left out
        try:
            return await self._service.client.admin(verb, sent)
        except EngineUnavailable as error:
            raise Unavailable(str(error)) from error
        except AdminFailed as error:
            raise _failure(error) from error


_POST, _BOTH = ("POST",), ("GET", "POST")
ADMIN_ROUTES = {
    "/abort_request": (Admin.abort_request, _POST, AbortFields),
    "/flush_cache": (Admin.flush_cache, _BOTH, AnyFields),
    "/pause_generation": (Admin.pause_generation, _POST, PauseFields),
    "/continue_generation": (Admin.continue_generation, _POST, AnyFields),
    "/load_lora_adapter": (Admin.load_adapter, _POST, LoadAdapterFields),
    "/unload_lora_adapter": (Admin.unload_adapter, _POST, UnloadAdapterFields),
    "/start_profile": (Admin.start_profile, _BOTH, AnyFields),
    "/stop_profile": (Admin.stop_profile, _BOTH, AnyFields),
}
"""Each path's handler, the methods that it takes, and what it reads of a body."""


def _failure(error: AdminFailed) -> ApiError:
    match error.failure.kind:
        case FailureKind.INVALID:
            return InvalidRequest(f"{error}.")
        case FailureKind.INTERNAL:
            return Internal(f"{error}.")
        case _:
            return Unavailable(f"{error}.")


async def _body(call: Call) -> bytes:
    """A JSON body, or none, which is an empty object."""
    body = await call.body()
    if not body.strip():
        return b"{}"
    call.require_json()
    return body


def seconds_asked(call: Call, default: float) -> float:
    """The query's `timeout`. Raises InvalidRequest for one that is no number of seconds."""
    query = parse_qs(call.scope["query_string"].decode("latin-1"))
    [text, *_] = query.get("timeout", [str(default)])
    try:
        seconds = float(text)
    except ValueError:
        raise InvalidRequest("timeout must be a number of seconds.", param="timeout") from None
    if seconds != seconds:  # NaN is no limit
        raise InvalidRequest("timeout must be a number of seconds.", param="timeout")
    check_range("timeout", seconds, 0, _MOST_SECONDS)
    return seconds
