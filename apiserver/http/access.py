"""Who may call: API keys, in constant time, on the resolved route."""

import hashlib
import hmac
from collections.abc import Iterator, Sequence

from apiserver.errors import Unauthorized
from apiserver.http.call import Call


class KeyGuard:
    """Accepts `Authorization: Bearer KEY` (or the bare key, as sglang's bench sends it) and `x-api-key: KEY`.

    Either of the two is enough: SDKs that were given one key often send a placeholder in the other place.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def check(self, call: Call) -> None:
        """Raises Unauthorized. Without keys, everybody may."""
        if not self._digests:
            return
        sent = list(_sent_keys(call))
        if not sent:
            raise Unauthorized("No API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
        # Digests have one length, and every key is compared: the time tells neither length nor position.
        digests = [hashlib.sha256(key).digest() for key in sent]
        if sum(hmac.compare_digest(digest, known) for digest in digests for known in self._digests) == 0:
            raise Unauthorized("Wrong API key.", code="invalid_api_key")


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
