"""Who may call: API keys, in constant time, on the resolved route."""

import hmac
from collections.abc import Iterator, Sequence

from apiserver.api_keys import ANYBODY, ApiKey, Caller, digest_of
from apiserver.errors import ApiError, Forbidden, Unauthorized
from apiserver.http.call import Call


class KeyGuard:
    """Accepts `Authorization: Bearer KEY` (or the bare key, as sglang's bench sends it) and `x-api-key: KEY`.

    Either of the two is enough: SDKs that were given one key often send a placeholder in the other place. An admin key
    opens everything; where there is one, nothing else opens an admin's route. Without any other key, the rest is open.
    """

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = keys
        self.has_admins = any(key.is_admin for key in keys)
        self.needs_key = not all(key.is_admin for key in keys)
        """On routes that are not for admins alone."""

    def check(self, call: Call, *, admins_only: bool) -> Caller:
        """Raises Unauthorized, or Forbidden for a key that is right elsewhere."""
        if not self._keys:
            return ANYBODY
        caller, sent = self._caller_of(call)
        if admins_only and self.has_admins:
            if not caller.may_administer:
                raise wants_admin(caller) if caller.key is not None else _unauthorized(sent)
        elif self.needs_key and caller.key is None:
            raise _unauthorized(sent)
        return caller

    def _caller_of(self, call: Call) -> tuple[Caller, bool]:
        """And whether it brings any key at all."""
        found = [self._find(digest_of(key)) for key in _sent_keys(call)]
        keys = [self._keys[position - 1] for position in found if position]
        # Of two right keys the admin's counts: the other may be what a client always sends.
        key = next((key for key in keys if key.is_admin), keys[0] if keys else None)
        return Caller(key, key is not None and (key.is_admin or not self.has_admins)), bool(found)

    def _find(self, digest: bytes) -> int:
        """From 1 on; 0 if it is none of ours. Digests have one length, and every key is compared: the time tells
        neither length nor position."""
        return sum(position * hmac.compare_digest(digest, key.digest) for position, key in enumerate(self._keys, 1))


def wants_admin(caller: Caller) -> ApiError:
    """This is for an admin key, and another one came, or none."""
    if caller.key is None:
        return Unauthorized("This needs an admin key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
    return Forbidden(f"The API key '{caller.key.name}' may not do this: it needs an admin key.")


def _unauthorized(sent: bool) -> Unauthorized:
    if sent:
        return Unauthorized("Wrong API key.", code="invalid_api_key")
    return Unauthorized("No API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")


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
