"""Who may call: API keys, in constant time, on the resolved route."""

import hashlib
import hmac
from collections.abc import Sequence

from apiserver.errors import Unauthorized
from apiserver.http.call import Call


class KeyGuard:
    """Accepts `Authorization: Bearer KEY` (or the bare key, as sglang's bench sends it) and `x-api-key: KEY`."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def check(self, call: Call) -> None:
        """Raises Unauthorized. Without keys, everybody may."""
        if not self._digests:
            return
        sent = _sent_key(call)
        if sent is None:
            raise Unauthorized("No API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
        # Digests have one length, and every key is compared: the time tells neither length nor position.
        digest = hashlib.sha256(sent).digest()
        if sum(hmac.compare_digest(digest, known) for known in self._digests) == 0:
            raise Unauthorized("Wrong API key.", code="invalid_api_key")


def _sent_key(call: Call) -> bytes | None:
    authorization = call.header(b"authorization")
    if authorization is not None:
        scheme, _, rest = authorization.partition(b" ")
        return rest.strip() if scheme.lower() == b"bearer" else authorization.strip()
    return call.header(b"x-api-key")
