"""Who may call: API keys, in constant time, on the resolved route."""

import hmac
from collections.abc import Iterator, Sequence

from apiserver.api_keys import ApiKey, digest_of
from apiserver.errors import Unauthorized
from apiserver.http.call import Call


class KeyGuard:
    """Accepts `Authorization: Bearer KEY` (or the bare key, as sglang's bench sends it) and `x-api-key: KEY`.

    Either of the two is enough: SDKs that were given one key often send a placeholder in the other place.
    """

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = keys

    def check(self, call: Call) -> ApiKey | None:
        """The key that it brings. Raises Unauthorized. Without keys, everybody may, and brings None."""
        if not self._keys:
            return None
        sent = list(_sent_keys(call))
        if not sent:
            raise Unauthorized("No API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
        found = [self._find(digest_of(key)) for key in sent]
        position = next(filter(None, found), 0)
        if not position:
            raise Unauthorized("Wrong API key.", code="invalid_api_key")
        return self._keys[position - 1]

    def _find(self, digest: bytes) -> int:
        """From 1 on; 0 if it is none of ours. Digests have one length, and every key is compared: the time tells
        neither length nor position."""
        return sum(position * hmac.compare_digest(digest, key.digest) for position, key in enumerate(self._keys, 1))


def _sent_keys(call: Call) -> Iterator[bytes]:
    """Never an empty one: it must not meet a key that was configured empty by mistake."""
    authorization = call.header(b"authorization")
    if authorization is not None:
        scheme, _, rest = authorization.strip().partition(b" ")
        key = rest.strip() if scheme.lower() == b"bearer" else authorization.strip()
        if key:
            yield key
    key = call.header(b"x-api-key")
    if key is not None and key.strip():
        yield key.strip()
