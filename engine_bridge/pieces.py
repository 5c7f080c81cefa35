"""What leaves in one turn of the loop, cut so that no message is larger than the core takes over tcp://."""

from collections.abc import Callable, Iterator, Sequence

from engine_bridge.transport import MAX_MESSAGE_BYTES
from engine_bridge.wire import ToCore

Encode = Callable[[Sequence[ToCore]], bytes]


def cut(messages: Sequence[ToCore], encode: Encode) -> Iterator[bytes | ToCore]:
    """Nearly always one payload; each begins with the first message, the epoch. One that is too large by itself is
    given back as it is."""
    payload = encode(messages)
    if len(payload) <= MAX_MESSAGE_BYTES:
        yield payload
        return
    epoch, *own = messages
    if len(own) == 1:
        yield own[0]
        return
    half = len(own) // 2
    yield from cut([epoch, *own[:half]], encode)
    yield from cut([epoch, *own[half:]], encode)
