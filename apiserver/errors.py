"""Every failure a client can see, with its status and code. Dialects spell them; nobody else makes a status.

ApiError
├── InvalidRequest        400  the client's mistake; `param` names the field
│   └── ContextLengthExceeded
├── Unauthorized          401
├── Forbidden             403  a right API key, but not for this
├── NotFound              404  no such route, model or response
├── MethodNotAllowed      405
├── RequestTimeout        408  the body did not arrive in time
├── TooLarge              413
├── UnsupportedMediaType  415
│   └── UnsupportedEncoding
├── TooManyRequests       429  of this API key; carries Retry-After
├── HeadersTooLarge       431
├── Internal              500  our mistake, or the engine's at this request; says nothing of our insides
├── NotImplementedHere    501
├── Unavailable           503  loading, overloaded, draining or dead; carries Retry-After
│   └── Overloaded
└── DeadlineExceeded      504  the answer was not ready by the request's deadline
"""

from collections.abc import Sequence
from typing import ClassVar

_MOST_MESSAGE = 1000
_MOST_PARAM = 200


class ApiError(Exception):
    """Base. `type` and `code` are OpenAI's words; other dialects map from them or from the status.

    Message and param are for the client to read: never its own text at length, and always something that has a UTF-8
    form, whatever they quote (an error that cannot be written down kills the answer: llama.cpp#9210).
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "InternalServerError"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        self.message = _readable(message, _MOST_MESSAGE)
        self.param = None if param is None else _readable(param, _MOST_PARAM)
        self.code = code
        self.request_id: str | None = None  # of the request that failed, set where the failure is answered
        super().__init__(self.message)

    @property
    def headers(self) -> dict[str, str]:
        """Headers that belong to this failure."""
        return {}


class InvalidRequest(ApiError):
    """The request itself is wrong; sending it again will not help."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    """Prompt, or prompt and max_tokens together, do not fit the model's context."""

    def __init__(self, message: str, *, param: str | None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class Unauthorized(ApiError):
    status = 401
    type = "authentication_error"

    @property
    def headers(self) -> dict[str, str]:
        return {"www-authenticate": "Bearer"}


class Forbidden(ApiError):
    status = 403
    type = "permission_error"


class NotFound(ApiError):
    status = 404
    type = "NotFoundError"


class MethodNotAllowed(ApiError):
    status = 405
    type = "invalid_request_error"

    def __init__(self, message: str, *, allowed: Sequence[str]) -> None:
        super().__init__(message)
        self._allowed = allowed

    @property
    def headers(self) -> dict[str, str]:
        return {"allow": ", ".join(self._allowed)}


class RequestTimeout(ApiError):
    status = 408
    type = "invalid_request_error"


class TooLarge(ApiError):
    status = 413
    type = "invalid_request_error"

    @property
    def headers(self) -> dict[str, str]:
        """The rest of the body is not read, so nothing can follow it."""
        return {"connection": "close"}


class UnsupportedMediaType(ApiError):
    """The body is no JSON, by its own account."""

    status = 415
    type = "invalid_request_error"


class UnsupportedEncoding(UnsupportedMediaType):
    """The body is compressed; `accepted` says what may be sent instead (RFC 7694)."""

    def __init__(self, message: str, *, accepted: str = "identity") -> None:
        super().__init__(message)
        self._accepted = accepted

    @property
    def headers(self) -> dict[str, str]:
        return {"accept-encoding": self._accepted}


class TooManyRequests(ApiError):
    """One API key asks too often, or too much at a time."""

    status = 429
    type = "rate_limit_error"

    def __init__(self, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(message, code="rate_limit_exceeded")
        self.retry_after_seconds = retry_after_seconds

    @property
    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self.retry_after_seconds)}


class HeadersTooLarge(ApiError):
    status = 431
    type = "invalid_request_error"


class Internal(ApiError):
    """A fault of ours or of the engine at this request; the log has the rest."""


class Unavailable(ApiError):
    """The service cannot take this now; the same request may succeed later."""

    status = 503
    type = "ServiceUnavailableError"

    def __init__(self, message: str, *, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds

    @property
    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self.retry_after_seconds)}


class Overloaded(Unavailable):
    """The pool, or the engine, has as much as it can take. Nothing was done for this request."""


class DeadlineExceeded(ApiError):
    """The answer was not ready by the request's deadline; what was begun is aborted. Anthropic has the same pair."""

    status = 504
    type = "timeout_error"


def shown(value: object, *, most: int = 40) -> str:
    """A value of the client's as an error message may quote it."""
    return _readable(value if isinstance(value, str) and value else repr(value), most)


def _readable(text: str, most: int) -> str:
    if len(text) > most:
        text = text[: most - 1] + "…"
    return text.encode(errors="replace").decode()
