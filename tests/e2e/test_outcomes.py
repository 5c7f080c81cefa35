"""Every API that generates, whole and streamed, by every way to end. The table is in docs/conformance.md.

An outcome that an API has not got is asked for all the same where it can be: what comes then is plain text.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from apiserver.http.app import DIALECTS as ROUTES
from apiserver.http.app import RESPONSES_ROUTES
from apiserver.protocol.exchange import Dialect as RouteDialect
from apiserver.protocol.exchange import Unary
from apiserver.protocol.forms import Forms, QuestionForms
from tests.e2e.outcome_dialects import DIALECTS, TOOL_NAME, Ask, Dialect, Outcome, outcome_of
from tests.e2e.outcomes import OUTCOMES, table, written
from tests.pool import ECHO_TEMPLATE, Pool, running_pool, wait_for
from tests.streams import OpenRequest

pytestmark = pytest.mark.e2e

FAILS_AT_ONCE, FAILS_LATER = "\x01", "\x02"
SAID_BEFORE_IT_FAILS = 5
ABORT_SECONDS = 2.0
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln 🎉"}}\n</tool_call>'
THOUGHT = "<think>\nHm.\n</think>\n\nYes."

either_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Four API servers and a sim that says what it was told, a token in 3 ms, read by Qwen's parsers."""
    faults = (f"error:{ord(FAILS_AT_ONCE)}:0", f"error:{ord(FAILS_LATER)}:{SAID_BEFORE_IT_FAILS}")
    engine = ["--mode", "echo", "--step-ms", "3", *(word for fault in faults for word in ("--fault", fault))]
    flags = ("--api-server-count", "4", "--chat-template", ECHO_TEMPLATE, "--max-model-len", "16384")
    flags += ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    with running_pool(tmp_path_factory.mktemp("outcomes") / "pool.log", *flags, engine=engine) as running:
        yield running
        assert "Traceback" not in running.log


def ask(pool: Pool, dialect: Dialect, wanted: Ask) -> Outcome:
    response = pool.post(dialect.path, dialect.ask(wanted))
    if response.status_code == 200:
        streams = response.headers["content-type"].startswith("text/event-stream")
        assert streams == wanted.stream
    return outcome_of(dialect, response)


# ---- the table ------------------------------------------------------------------------------------------------------


def generates(route: RouteDialect) -> bool:
    """Whether a route can stream, which is what routes that generate can."""
    if isinstance(route, Forms):
        return any(generates(form) for form in route.forms)
    return isinstance(route, type) and not issubclass(route, Unary)


def test_every_route_that_generates_is_in_the_table() -> None:
    generating = {path for path, route in ROUTES.items() if generates(route)}
    assert {*generating, RESPONSES_ROUTES[0]} == {dialect.path for dialect in DIALECTS}
    assert not any(isinstance(route, QuestionForms) and generates(route) for route in ROUTES.values())


def test_the_document_has_the_table() -> None:
    assert written() == table(), "python -m tests.e2e.outcomes writes it"
    assert all(outcome in OUTCOMES for dialect in DIALECTS for outcome in dialect.none)


# ---- ends of their own ----------------------------------------------------------------------------------------------


@either_way
@every_dialect
def test_an_answer_that_ends_of_itself_says_so(pool: Pool, dialect: Dialect, stream: bool) -> None:
    outcome = ask(pool, dialect, Ask("Grüße 🎉", stream))
    assert (outcome.error, list(outcome.choices)) == (None, [0])
    assert (outcome.choice().text, outcome.choice().finish) == ("Grüße 🎉", dialect.words["stop"])


@either_way
@every_dialect
def test_a_stop_string_ends_an_answer_and_is_no_part_of_it(pool: Pool, dialect: Dialect, stream: bool) -> None:
    outcome = ask(pool, dialect, Ask("Hello STOP and more", stream, stop="STOP"))
    if "stop string" in dialect.none:
        assert outcome.choice().text == "Hello STOP and more"
        return
    assert outcome.choice().finish == dialect.words["stop string"]
    cut = "Hello STOP" if "vLLM's generate" in dialect.name else "Hello "  # ids cannot be cut within
    assert outcome.choice().text == cut


@either_way
@every_dialect
def test_an_answer_that_is_cut_says_so(pool: Pool, dialect: Dialect, stream: bool) -> None:
    outcome = ask(pool, dialect, Ask("Hello there", stream, max_tokens=4))
    assert (outcome.choice().text, outcome.choice().finish) == ("Hell", dialect.words["length"])


@either_way
@every_dialect
def test_a_tool_call_is_a_call_or_text(pool: Pool, dialect: Dialect, stream: bool) -> None:
    outcome = ask(pool, dialect, Ask(f"I look.\n{CALL}", stream, tools=True))
    choice = outcome.choice()
    if "tool call" in dialect.none:
        assert (choice.text, choice.calls, choice.finish) == (f"I look.\n{CALL}", [], "stop")
        return
    assert choice.text.strip() == "I look."
    assert choice.finish == dialect.words["tool call"]
    [(name, arguments)] = choice.calls
    assert (name, json.loads(arguments)) == (TOOL_NAME, {"city": "Köln 🎉"})


@either_way
@every_dialect
def test_reasoning_is_apart_or_text(pool: Pool, dialect: Dialect, stream: bool) -> None:
    choice = ask(pool, dialect, Ask(THOUGHT, stream)).choice()
    if "reasoning" in dialect.none:
        assert (choice.text, choice.reasoning) == (THOUGHT, "")
        return
    assert (choice.reasoning.strip(), choice.text.strip()) == ("Hm.", "Yes.")
    assert choice.finish == dialect.words["stop"]


@either_way
@every_dialect
def test_two_choices_are_two_answers(pool: Pool, dialect: Dialect, stream: bool) -> None:
    outcome = ask(pool, dialect, Ask("Hello", stream, n=2))
    wanted = [0] if "n = 2" in dialect.none else [0, 1]
    assert sorted(outcome.choices) == wanted
    for choice in outcome.choices.values():
        assert (choice.text, choice.finish) == ("Hello", dialect.words["stop"])


# ---- failures -------------------------------------------------------------------------------------------------------


@either_way
@every_dialect
def test_an_engine_that_fails_before_the_first_token_is_an_error(pool: Pool, dialect: Dialect, stream: bool) -> None:
    outcome = ask(pool, dialect, Ask(f"{FAILS_AT_ONCE}abcdefgh", stream))
    assert outcome.error is not None
    assert "the engine failed at this request" in outcome.error
    assert all((choice.text, choice.finish) == ("", None) for choice in outcome.choices.values())


@either_way
@every_dialect
def test_an_engine_that_fails_in_the_middle_ends_the_answer_with_an_error(
    pool: Pool, dialect: Dialect, stream: bool
) -> None:
    outcome = ask(pool, dialect, Ask(f"{FAILS_LATER}abcdefgh", stream))
    assert outcome.error is not None
    assert "the engine failed at this request" in outcome.error
    if stream:
        assert (outcome.choice().text, outcome.choice().finish) == (f"{FAILS_LATER}abcd", None)
    else:
        assert not outcome.choices


@either_way
@every_dialect
def test_who_leaves_takes_its_work_out_of_the_engine(pool: Pool, dialect: Dialect, stream: bool) -> None:
    def running() -> Any:
        return pool.engine()["running"]

    with OpenRequest(pool.url, dialect.path, dialect.ask(Ask("x" * 5000, stream))) as request:
        if stream:
            assert request.read_some()
        wait_for(lambda: running() == 1, 5, "the request in the engine")
    pool.wait_idle(ABORT_SECONDS)
