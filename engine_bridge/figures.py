"""The engine's row, over the wire: read where the engine is, written where the API servers are.

Times do not travel as they are: CLOCK_MONOTONIC belongs to one machine. Nor does the pid.
"""

import time

from engine_bridge.status import EngineRow, EngineState, Field
from engine_bridge.wire import Heartbeat

_STATES = {int(state): state for state in EngineState}


def heartbeat_of(row: EngineRow, epoch: int) -> Heartbeat:
    last_output = row.get(Field.LAST_OUTPUT)
    return Heartbeat(
        epoch=epoch,
        state=row.get(Field.STATE),
        running=row.get(Field.RUNNING),
        waiting=row.get(Field.WAITING),
        requests=row.get(Field.REQUESTS),
        output_tokens=row.get(Field.OUTPUT_TOKENS),
        junk=row.get(Field.JUNK),
        seconds_since_output=(time.monotonic_ns() - last_output) / 1e9 if last_output else None,
        tokens_used=row.get(Field.TOKENS_USED),
        token_capacity=row.get(Field.TOKEN_CAPACITY),
        tokens_per_second=row.get(Field.TOKENS_PER_SECOND),
        prompt_tokens=row.get(Field.PROMPT_TOKENS),
        cached_tokens=row.get(Field.CACHED_TOKENS),
        stage=row.stage,
    )


def write(row: EngineRow, heartbeat: Heartbeat, heard_at: int) -> None:
    """Make the local row say it; `heard_at` is when the heartbeat came, CLOCK_MONOTONIC ns of this machine."""
    if heartbeat.epoch != row.get(Field.EPOCH):
        row.set(Field.EPOCH, heartbeat.epoch)
        row.set(Field.READY_SINCE, 0)
    row.set(Field.HEARTBEAT, heard_at)
    row.set(Field.RUNNING, heartbeat.running)
    row.set(Field.WAITING, heartbeat.waiting)
    row.set(Field.REQUESTS, heartbeat.requests)
    row.set(Field.OUTPUT_TOKENS, heartbeat.output_tokens)
    row.set(Field.JUNK, heartbeat.junk)
    idle = heartbeat.seconds_since_output
    row.set(Field.LAST_OUTPUT, heard_at - int(idle * 1e9) if idle is not None else 0)
    row.set(Field.TOKENS_USED, heartbeat.tokens_used)
    row.set(Field.TOKEN_CAPACITY, heartbeat.token_capacity)
    row.set(Field.TOKENS_PER_SECOND, heartbeat.tokens_per_second)
    row.set(Field.PROMPT_TOKENS, heartbeat.prompt_tokens)
    row.set(Field.CACHED_TOKENS, heartbeat.cached_tokens)
    row.stage = heartbeat.stage
    state = _STATES.get(heartbeat.state, EngineState.LOADING)  # a later core may have more of them: it does not serve
    if state is EngineState.READY and not row.has_been_ready:
        row.mark_ready()
    row.state = state


def write_unreachable(row: EngineRow) -> None:
    """No API server of this pool hears of the engine."""
    row.state = EngineState.UNREACHABLE
    row.set(Field.RUNNING, 0)
    row.set(Field.WAITING, 0)
