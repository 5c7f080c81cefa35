"""The log stays readable while requests are refused by the thousand."""

import logging

import pytest

from apiserver.log import Seldom, set_up


def record(created: float, seldom: str | None, text: str = "no %s") -> logging.LogRecord:
    more = {} if seldom is None else {"seldom": seldom}
    return logging.makeLogRecord({"msg": text, "args": ("room",), "created": created, **more})


def told(records: list[logging.LogRecord]) -> list[str]:
    seldom = Seldom()
    return [record.getMessage() for record in records if seldom.filter(record)]


def test_of_one_kind_there_is_one_line_a_second_that_counts_the_others() -> None:
    assert told([record(at, "503") for at in (10.0, 10.1, 10.9, 11.0, 11.5, 20.0, 30.0)]) == [
        "no room",
        "no room (and 2 more since such a line)",
        "no room (and 1 more since such a line)",
        "no room",
    ]


def test_kinds_do_not_hide_each_other_and_others_are_always_told() -> None:
    records = [record(1.0, "503"), record(1.0, "504", "late: %s"), record(1.0, None), record(1.0, None)]
    assert told(records) == ["no room", "late: room", "no room", "no room"]


def test_a_process_that_logs_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        set_up("info", "api-7")
        for _ in range(3):
            logging.getLogger("apiserver").info("full", extra={"seldom": "503"})
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert capsys.readouterr().err.count("INFO    api-7  full\n") == 1
