"""What can be done to SGLang as a whole: the wire's admin verbs."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from engine_bridge.engines import EngineRefusal
from engine_bridge.engines import sglang_api as api

_LORA_VERBS = ("load_lora_adapter", "unload_lora_adapter")


class _Arguments(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A verb's arguments: SGLang's names for them, with SGLang's defaults."""


class FlushCache(_Arguments, frozen=True):
    timeout: float | None = 1.0  # seconds to wait for what runs; what has just ended counts there for a moment


class PauseGeneration(_Arguments, frozen=True):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueGeneration(_Arguments, frozen=True):
    torch_empty_cache: bool = True


class LoadLoraAdapter(_Arguments, frozen=True):
    lora_name: str
    lora_path: str
    pinned: bool = False


class UnloadLoraAdapter(_Arguments, frozen=True):
    lora_name: str


class StartProfile(_Arguments, frozen=True):
    output_dir: str | None = None
    start_step: int | None = None
    num_steps: int | None = None
    activities: list[str] | None = None
    profile_by_stage: bool = False
    with_stack: bool | None = None
    record_shapes: bool | None = None
    profile_prefix: str | None = None


class UpdateWeightVersion(_Arguments, frozen=True):
    new_version: str
    abort_all_requests: bool = True


class Nothing(_Arguments, frozen=True):
    pass


class Admin:
    """The verbs, on one TokenizerManager."""

    def __init__(self, manager: Any, *, has_lora: bool) -> None:
        self._manager = manager
        verbs: dict[str, tuple[type[_Arguments], Callable[[Any], Awaitable[Any]]]] = {
            "flush_cache": (FlushCache, self._flush_cache),
            "pause_generation": (PauseGeneration, self._pause),
            "continue_generation": (ContinueGeneration, self._continue),
            "load_lora_adapter": (LoadLoraAdapter, self._load_lora),
            "unload_lora_adapter": (UnloadLoraAdapter, self._unload_lora),
            "start_profile": (StartProfile, self._start_profile),
            "stop_profile": (Nothing, self._stop_profile),
            "update_weight_version": (UpdateWeightVersion, self._update_weight_version),
            "internal_state": (Nothing, self._internal_state),
        }
        self._verbs = {name: verb for name, verb in verbs.items() if has_lora or name not in _LORA_VERBS}

    @property
    def verbs(self) -> tuple[str, ...]:
        return tuple(self._verbs)

    async def do(self, verb: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what JSON can hold. Raises EngineRefusal."""
        if verb not in self._verbs:
            raise EngineRefusal(f"this engine cannot do '{verb}'")
        kind, action = self._verbs[verb]
        try:
            result = await action(msgspec.convert(dict(arguments), kind))
        except msgspec.ValidationError as error:
            raise EngineRefusal(f"{verb}: {error}") from error
        except (ValueError, AssertionError, RuntimeError) as error:  # what SGLang says no with
            raise EngineRefusal(f"{verb}: {error}") from error
        # Whatever else SGLang has put in becomes a string: this is for people and dashboards.
        return msgspec.json.decode(msgspec.json.encode(result, enc_hook=_as_json), type=dict[str, Any])

    async def _flush_cache(self, arguments: FlushCache) -> dict[str, Any]:
        flushed = await self._manager.flush_cache(timeout_s=arguments.timeout)
        if not flushed.success:
            raise EngineRefusal(f"flush_cache: {flushed.message or 'requests are running or waiting'}")
        return {"message": flushed.message}

    async def _pause(self, arguments: PauseGeneration) -> dict[str, Any]:
        await self._manager.pause_generation(api.io.PauseGenerationReqInput(mode=arguments.mode))
        return {"paused": True, "mode": arguments.mode}

    async def _continue(self, arguments: ContinueGeneration) -> dict[str, Any]:
        request = api.io.ContinueGenerationReqInput(torch_empty_cache=arguments.torch_empty_cache)
        await self._manager.continue_generation(request)
        return {"paused": False}

    async def _load_lora(self, arguments: LoadLoraAdapter) -> dict[str, Any]:
        request = api.io.LoadLoRAAdapterReqInput(**msgspec.structs.asdict(arguments))
        return _done(await self._manager.load_lora_adapter(request))

    async def _unload_lora(self, arguments: UnloadLoraAdapter) -> dict[str, Any]:
        request = api.io.UnloadLoRAAdapterReqInput(**msgspec.structs.asdict(arguments))
        return _done(await self._manager.unload_lora_adapter(request))

    async def _start_profile(self, arguments: StartProfile) -> dict[str, Any]:
        return _done(await self._manager.start_profile(api.io.ProfileReq(**msgspec.structs.asdict(arguments))))

    async def _stop_profile(self, arguments: Nothing) -> dict[str, Any]:
        return _done(await self._manager.stop_profile())

    async def _update_weight_version(self, arguments: UpdateWeightVersion) -> dict[str, Any]:
        request = api.io.UpdateWeightVersionReqInput(**msgspec.structs.asdict(arguments))
        if arguments.abort_all_requests:
            self._manager.abort_request(abort_all=True)
        await self._manager.update_weight_version(request)
        return {"new_version": arguments.new_version}

    async def _internal_state(self, arguments: Nothing) -> dict[str, Any]:
        """The first rank's state and load, flat, as SGLang's own server shows it; and every rank's load."""
        (state, *_) = await self._manager.get_internal_state()
        loads = [load.to_dict() for load in await self._manager.get_loads()]
        return {**(loads[0] if loads else {}), **state, "loads": loads}


def _done(output: Any) -> dict[str, Any]:
    """SGLang's own answer. Raises EngineRefusal where that is no."""
    message = getattr(output, "error_message", None) or getattr(output, "message", "") or ""
    if not output.success:
        raise EngineRefusal(str(message) or "SGLang did not do it")
    adapters = getattr(output, "loaded_adapters", None)
    return {"message": str(message)} | ({"loaded_adapters": sorted(adapters)} if adapters is not None else {})


def _as_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    item = getattr(value, "item", None)  # numpy's and torch's scalars
    return item() if item is not None and getattr(value, "ndim", 0) == 0 else str(value)
