"""How long a request may take: what the operator allows, or less where the client says so."""

from apiserver.errors import InvalidRequest
from apiserver.http.call import Call
from apiserver.http.service import Service
from apiserver.pipeline.deadline import Deadline

HEADER = "x-request-timeout-ms"
_NAME = HEADER.encode()
_MOST_DIGITS = 10


def deadline_of(call: Call, service: Service) -> Deadline | None:
    """None where nobody has set one. Raises InvalidRequest for a header that is no whole number of milliseconds."""
    seconds = service.http.request_seconds
    sent = call.header(_NAME)
    if sent is not None:
        asked = _milliseconds(sent) / 1000
        seconds = min(seconds, asked) if seconds else asked
    return Deadline(seconds, service.metrics) if seconds else None


def _milliseconds(sent: bytes) -> int:
    digits = sent.strip()
    if not digits.isdigit() or len(digits) > _MOST_DIGITS or int(digits) == 0:
        raise InvalidRequest(f"{HEADER} must be a whole number of milliseconds, at least 1.", param=HEADER)
    return int(digits)
