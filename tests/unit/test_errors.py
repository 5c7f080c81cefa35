"""An error can always be told: in few words, and in words that have a UTF-8 form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apiserver import errors
from apiserver.errors import ApiError, InvalidRequest, shown
from apiserver.protocol.openai import encode_json, error_document

ANY_TEXT = st.text(alphabet=st.characters())  # surrogates included


@given(ANY_TEXT, st.none() | ANY_TEXT)
def test_every_error_has_a_document(message: str, param: str | None) -> None:
    assert encode_json(error_document(InvalidRequest(message, param=param)))


def test_messages_and_params_are_cut() -> None:
    error = InvalidRequest("m" * 100_000, param="p" * 100_000)
    assert (len(error.message), len(str(error)), len(error.param or "")) == (1000, 1000, 200)


@given(st.text() | st.integers() | st.floats() | st.lists(st.text()) | st.dictionaries(st.text(), st.integers()))
def test_what_is_shown_of_a_value_is_short(value: object) -> None:
    assert len(shown(value)) <= 40
    assert shown(value).encode()


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (InvalidRequest("x"), 400, {}),
        (errors.ContextLengthExceeded("x", param="prompt"), 400, {}),
        (errors.Unauthorized("x"), 401, {"www-authenticate": "Bearer"}),
        (errors.NotFound("x"), 404, {}),
        (errors.MethodNotAllowed("x", allowed=("GET", "HEAD")), 405, {"allow": "GET, HEAD"}),
        (errors.RequestTimeout("x"), 408, {}),
        (errors.TooLarge("x"), 413, {"connection": "close"}),
        (errors.UnsupportedMediaType("x"), 415, {}),
        (errors.UnsupportedEncoding("x"), 415, {"accept-encoding": "identity"}),
        (errors.TooManyRequests("x", retry_after_seconds=5), 429, {"retry-after": "5"}),
        (errors.HeadersTooLarge("x"), 431, {}),
        (errors.Internal("x"), 500, {}),
        (errors.DeadlineExceeded("x"), 504, {}),
        (errors.Overloaded("x", retry_after_seconds=9), 503, {"retry-after": "9"}),
        (errors.Unavailable("x", retry_after_seconds=7), 503, {"retry-after": "7"}),
    ],
)
def test_each_error_has_its_status_and_its_headers(error: ApiError, status: int, headers: dict[str, str]) -> None:
    assert (error.status, error.headers) == (status, headers)
    assert error_document(error)["error"]["code"] == (error.code or status)
