"""Which requests carry which client_request_id, and whose they are: what an AbortByClientId looks for."""

from collections.abc import Sequence

from engine_bridge.engines import Key


class ClientIds:
    """Any number of requests may carry one id, of several owners."""

    def __init__(self) -> None:
        self._owners: dict[str, dict[Key, str]] = {}

    def add(self, client_request_id: str, key: Key, owner: str) -> None:
        self._owners.setdefault(client_request_id, {})[key] = owner

    def discard(self, client_request_id: str, key: Key) -> None:
        """It was added, and has ended."""
        owners = self._owners[client_request_id]
        del owners[key]
        if not owners:
            del self._owners[client_request_id]

    def find(self, client_request_id: str, owner: str | None) -> Sequence[Key]:
        """This owner's; None: everybody's."""
        owners = self._owners.get(client_request_id, {})
        return [key for key, its in owners.items() if owner is None or owner == its]
