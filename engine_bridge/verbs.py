"""What is done to an engine as a whole, on an API server's word."""

import logging
from typing import Any

import msgspec

from engine_bridge.engines import Engine, EngineRefusal
from engine_bridge.wire import Admin, AdminDone, Failure, FailureKind

log = logging.getLogger("engine_bridge.verbs")


async def carry_out(engine: Engine, admin: Admin) -> AdminDone | Failure:
    """Its answer, however that ends."""
    try:
        document = await engine.admin(admin.verb, msgspec.json.decode(admin.arguments, type=dict[str, Any]))
        return AdminDone(admin.request_id, msgspec.json.encode(document))
    except (EngineRefusal, msgspec.DecodeError) as error:
        return Failure(admin.request_id, FailureKind.INVALID, str(error))
    except Exception:
        log.exception("the engine failed at '%s'", admin.verb)
        return Failure(admin.request_id, FailureKind.INTERNAL, "the engine failed at it")
