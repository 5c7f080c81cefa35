"""A compressed body, inflated within bounds: a bomb is refused as soon as it shows, and a large one stalls nobody."""

import asyncio
import zlib

from apiserver.errors import InvalidRequest, TooLarge

CODINGS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
"""Content codings that can be taken, and zlib's word for each."""
_PART_BYTES = 256 * 1024  # about a millisecond
_MOST_RATIO = 100  # of JSON; what repeats more than this was made to
_FREE_BYTES = 1024 * 1024  # within which the ratio does not matter


async def inflated(body: bytes, coding: bytes, most: int) -> bytes:
    """What it says, of at most so many bytes. Raises TooLarge for more of them, or for a suspicious ratio, and
    InvalidRequest for what is not of this coding."""
    stream = zlib.decompressobj(CODINGS[coding])
    allowed = min(most, max(_FREE_BYTES, _MOST_RATIO * len(body)))
    parts: list[bytes] = []
    size = 0
    rest = body
    try:
        while not stream.eof and (rest or not parts):
            parts.append(stream.decompress(rest, _PART_BYTES))
            rest = stream.unconsumed_tail
            size += len(parts[-1])
            if size > allowed:
                raise TooLarge(
                    f"The body inflates to more than {allowed} bytes; this server takes {most}, and no more than "
                    f"{_MOST_RATIO} times what was sent."
                )
            await asyncio.sleep(0)
    except zlib.error as error:
        raise InvalidRequest(f"The body is not what content-encoding says: {coding.decode()}.") from error
    if not stream.eof or stream.unused_data:
        raise InvalidRequest(f"The body's {coding.decode()} data does not end where the body ends.")
    return b"".join(parts)
