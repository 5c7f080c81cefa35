"""What a reply amounts to: an outcome that is allowed, or a finding."""

import json
from dataclasses import dataclass

from chaoslib.ask import Ask, Said
from chaoslib.connection import Reply

_SHOWN = 160


@dataclass(frozen=True, slots=True)
class Verdict:
    """`outcome` is a column of the table; `finding` says what must not be."""

    outcome: str
    finding: str | None = None
    said: Said | None = None


def judge(ask: Ask, reply: Reply, *, was_doomed: bool) -> Verdict:
    """`was_doomed`: the API server at the other end was killed, or retired, while the connection was open."""
    if reply.status not in (0, 200):
        return _of_refusal(ask, reply, was_doomed=was_doomed)
    try:
        said = ask.read(bytes(reply.body), reply.complete) if reply.status else Said()
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        return Verdict("unreadable", f"the answer cannot be read: {error!r}: {_shown(bytes(reply.body))}")
    wrong = _difference(ask, said, whole=reply.complete and said.error is None and not said.pending)
    if wrong is not None:
        return Verdict("wrong text", wrong)
    if not reply.complete:
        return _of_break(reply, said, was_doomed=was_doomed)
    if said.error is not None:
        return Verdict("error event" if ask.stream else "stored as failed", None, said)
    if not said.finished and not said.pending:
        return Verdict("no end", f"complete, but it says no end: {_shown(bytes(reply.body[-400:]))}", said)
    return Verdict("ok", None, said)


def _of_refusal(ask: Ask, reply: Reply, *, was_doomed: bool) -> Verdict:
    outcome = str(reply.status)
    if not reply.complete and not reply.left and not was_doomed:
        return Verdict("lost", f"the connection was lost in a {outcome}")
    allowed = ask.allowed | ({500} if ask.trouble == "error" else set())
    if reply.status not in allowed:
        return Verdict(outcome, f"{outcome} is not allowed here: {_shown(bytes(reply.body))}")
    if reply.complete and ask.method != "HEAD":
        try:
            json.loads(reply.body)
        except ValueError:
            return Verdict(outcome, f"the error is no JSON: {_shown(bytes(reply.body))}")
    if reply.status == 503 and "retry-after" not in reply.headers:
        return Verdict(outcome, "503 without Retry-After")
    return Verdict(outcome)


def _of_break(reply: Reply, said: Said, *, was_doomed: bool) -> Verdict:
    if reply.left:
        return Verdict("left", None, said)
    if was_doomed:
        return Verdict("lost with its API server", None, said)
    got = f"after {len(reply.body)} bytes of a {reply.status}" if reply.status else "without an answer"
    seconds = reply.ended - reply.began
    what = f"the connection was lost {got}, {seconds:.3f} s after request {reply.number} on it was sent"
    return Verdict("lost", f"{what}, and its API server was not killed")


def _difference(ask: Ask, said: Said, *, whole: bool) -> str | None:
    expected = ask.expected
    if expected is None:
        return None
    for index, text in said.texts.items():
        wanted = expected.texts.get(index)
        if wanted is None:
            return f"choice {index} was not asked for: {_shown(text)}"
        if (whole and text != wanted) or not wanted.startswith(text):
            return f"choice {index}: {_shown(text)} instead of {_shown(wanted)}"
    if not whole:
        return None
    missing = [index for index, text in expected.texts.items() if text and index not in said.texts]
    if missing:
        return f"no text of choice {missing[0]}"
    if said.calls != expected.calls:
        return f"calls {said.calls} instead of {expected.calls}"
    return None


def _shown(text: str | bytes) -> str:
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return repr(text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} … {text[-_SHOWN // 2 :]}")
