"""Stored responses when things end: an API server, the pool, the engine, the store itself."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai.types.responses import Response

from tests.conftest import StartPool
from tests.pool import ECHO_TEMPLATE, Pool, wait_for
from tests.responses_grammar import check, parsed
from tests.streams import OpenRequest

pytestmark = pytest.mark.e2e

RESPONSES = "/v1/responses"
SLOW = ["--mode", "echo", "--step-ms", "10"]
LONG: dict[str, Any] = {"input": "x" * 3000}


def post(pool: Pool, **fields: Any) -> dict[str, Any]:
    """On a connection of its own."""
    return httpx.post(pool.url + RESPONSES, json=fields, timeout=30.0).raise_for_status().json()


def get(pool: Pool, response_id: str) -> dict[str, Any]:
    return httpx.get(f"{pool.url}{RESPONSES}/{response_id}", timeout=30.0).raise_for_status().json()


def ended(pool: Pool, response_id: str, seconds: float = 10.0) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        document = get(pool, response_id)
        return document if document["status"] != "in_progress" else None

    document = wait_for(look, seconds, "the response's end")
    Response.model_validate(document, strict=True)
    return document


def maker_pid(pool: Pool) -> int:
    """The API server that has a request in the engine; there must be one."""

    def look() -> int | None:
        makers = [process["pid"] for process in pool.pool()["processes"] if process["engine_requests"]]
        assert len(makers) <= 1
        return makers[0] if makers else None

    return wait_for(look)


def read(path: Path, response_id: str) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as connection:
        (document,) = connection.execute("SELECT document FROM responses WHERE id = ?", (response_id,)).fetchone()
    return json.loads(document)


# ---- the death of an API server -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_killed_api_server_made_in_the_background_has_failed_for_the_others(
    start_pool: StartPool, stream: bool
) -> None:
    with start_pool("--api-server-count", "3", "--chat-template", ECHO_TEMPLATE, engine=SLOW) as pool:
        if stream:
            with OpenRequest(pool.url, RESPONSES, {**LONG, "background": True, "stream": True}) as opened:
                read_so_far = b""
                while read_so_far.count(b"\n\n") < 8:
                    read_so_far += opened.read_some()
            response_id = parsed(read_so_far[: read_so_far.index(b"\n\n") + 2])[0]["response"]["id"]
        else:
            response_id = post(pool, **LONG, background=True)["id"]
        assert get(pool, response_id)["status"] == "in_progress"
        os.kill(maker_pid(pool), signal.SIGKILL)
        document = ended(pool, response_id)
        assert document["status"] == "failed"
        assert "died" in document["error"]["message"]
        if stream:
            events = parsed(httpx.get(f"{pool.url}{RESPONSES}/{response_id}?stream=true", timeout=30).content)
            assert check(events[-1:], first=len(events) - 1)["response"] == document
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
        pool.wait_idle()


def test_a_streams_response_has_failed_when_its_api_server_was_killed(start_pool: StartPool) -> None:
    flags = ("--api-server-count", "2", "--chat-template", ECHO_TEMPLATE)
    body = {**LONG, "stream": True}
    with start_pool(*flags, engine=SLOW) as pool, OpenRequest(pool.url, RESPONSES, body) as stream:
        first = b""
        while b"\n\n" not in first:
            first += stream.read_some()
        response_id = parsed(first[: first.index(b"\n\n") + 2])[0]["response"]["id"]
        os.kill(maker_pid(pool), signal.SIGKILL)
        assert ended(pool, response_id)["status"] == "failed"


# ---- the end of the pool --------------------------------------------------------------------------------------------


def test_a_drain_waits_for_what_runs_in_the_background_and_the_next_pool_has_it(
    start_pool: StartPool, tmp_path: Path
) -> None:
    path = tmp_path / "kept.db"
    flags = ("--api-server-count", "2", "--chat-template", ECHO_TEMPLATE, "--responses-store", str(path))
    with start_pool(*flags, engine=SLOW) as pool:
        response_id = post(pool, input="x" * 100, background=True)["id"]
        assert pool.stop() == 0
        assert "did not finish" not in pool.log
    assert path.stat().st_mode & 0o777 == 0o600
    with start_pool(*flags, engine=SLOW) as pool:
        document = get(pool, response_id)
        assert (document["status"], document["output"][0]["content"][0]["text"]) == ("completed", "x" * 100)
        more = post(pool, input="y", previous_response_id=response_id)
        assert more["output"][0]["content"][0]["text"] == "x" * 200 + "y"


def test_what_has_not_finished_by_the_drains_limit_has_failed(start_pool: StartPool, tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    flags = ("--api-server-count", "2", "--chat-template", ECHO_TEMPLATE, "--responses-store", str(path))
    with start_pool(*flags, "--drain-timeout", "0.3", engine=SLOW) as pool:
        response_id = post(pool, **LONG, background=True)["id"]
        maker_pid(pool)
        assert pool.stop() == 0
    document = read(path, response_id)
    assert (document["status"], document["error"]["code"]) == ("failed", "server_error")
    assert document["output"][0]["content"][0]["text"].strip("x") == ""


def test_what_a_killed_pool_was_making_has_failed_for_the_next(start_pool: StartPool, tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    flags = ("--api-server-count", "2", "--chat-template", ECHO_TEMPLATE, "--responses-store", str(path))
    with start_pool(*flags, engine=SLOW) as pool:
        response_id = post(pool, **LONG, background=True)["id"]
        maker = maker_pid(pool)
        pool.stop(signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{maker}").exists())
    assert read(path, response_id)["status"] == "in_progress"
    with start_pool(*flags, engine=SLOW) as pool:
        assert ended(pool, response_id)["status"] == "failed"


def test_without_a_path_nothing_is_left_behind(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "1") as pool:
        post(pool, input="x", max_output_tokens=1)
        (worker,) = pool.worker_pids()
        open_files = {Path(file.path) for file in psutil.Process(worker).open_files()}
        stores = {path for path in open_files if path.name.startswith("responses.db")}
        assert len(stores) == 4
        assert {path.stat().st_mode & 0o777 for path in stores} == {0o600}
        assert pool.stop() == 0
    assert not any(path.exists() for path in stores)


def test_api_servers_that_are_replaced_one_by_one_keep_what_they_make(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", "--chat-template", ECHO_TEMPLATE, engine=SLOW) as pool:
        response_id = post(pool, input="x" * 200, background=True)["id"]
        maker = maker_pid(pool)
        pool.process.send_signal(signal.SIGHUP)
        document = ended(pool, response_id, 20.0)
        assert (document["status"], document["output"][0]["content"][0]["text"]) == ("completed", "x" * 200)
        wait_for(lambda: maker not in pool.worker_pids(), 20.0)


# ---- the store fails ------------------------------------------------------------------------------------------------


class Broken:
    """The store's table is away for as long as the block lasts: every use of it fails."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._rename("responses", "away")

    def __exit__(self, *_: object) -> None:
        self._rename("away", "responses")

    def _rename(self, old: str, new: str) -> None:
        with closing(sqlite3.connect(self._path, timeout=10)) as connection:
            connection.execute("PRAGMA legacy_alter_table = ON")
            connection.execute(f"ALTER TABLE {old} RENAME TO {new}")


def test_a_store_that_fails_is_told_and_harms_nothing_else(start_pool: StartPool, tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    flags = ("--api-server-count", "1", "--chat-template", ECHO_TEMPLATE, "--responses-store", str(path))
    with start_pool(*flags, engine=SLOW) as pool:
        kept = post(pool, input="Hi")["id"]
        with Broken(path):
            for fields in ({}, {"stream": True}, {"background": True}):
                response = httpx.post(pool.url + RESPONSES, json={"input": "Hi", **fields})
                assert response.status_code == 500
                assert "stored" in response.json()["error"]["message"]
            assert pool.get(f"{RESPONSES}/{kept}").status_code == 500
            assert post(pool, input="Hi", store=False)["status"] == "completed"
        assert get(pool, kept)["status"] == "completed"
        pool.wait_idle()


def test_a_stream_whose_end_cannot_be_stored_says_so_and_the_end_is_stored_when_it_can_be(
    start_pool: StartPool, tmp_path: Path
) -> None:
    path = tmp_path / "kept.db"
    flags = ("--api-server-count", "1", "--chat-template", ECHO_TEMPLATE, "--responses-store", str(path))
    text = "x" * 150
    with start_pool(*flags, engine=[*SLOW, "--fault", "error:1:100"]) as pool, ExitStack() as stack:
        in_background = post(pool, input=text, background=True)["id"]
        stream, failing = (
            stack.enter_context(OpenRequest(pool.url, RESPONSES, {"input": prompt, "stream": True}))
            for prompt in (text, "\x01" + text)
        )
        assert (stream.status, failing.status) == (200, 200)
        with Broken(path):
            events = parsed(stream.read_all())
            assert check(events)["type"] == "error"
            assert check(parsed(failing.read_all()))["type"] == "response.failed"
            pool.wait_idle()
        response_id = events[0]["response"]["id"]
        for document in (ended(pool, response_id), ended(pool, in_background)):
            assert (document["status"], document["output"][0]["content"][0]["text"]) == ("completed", text)


def test_a_followed_stream_whose_store_fails_ends_with_an_error(start_pool: StartPool, tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    flags = ("--api-server-count", "2", "--chat-template", ECHO_TEMPLATE, "--responses-store", str(path))
    body = {"input": "x" * 150, "background": True, "stream": True}
    with start_pool(*flags, engine=SLOW) as pool, OpenRequest(pool.url, RESPONSES, body) as stream:
        first = b""
        while b"output_text.delta" not in first:
            first += stream.read_some()
        with Broken(path):
            events = parsed(stream.read_all())
            assert events[-1]["type"] == "error"
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            pool.wait_idle()
        document = ended(pool, events[0]["response"]["id"], 20.0)
        assert document["status"] == "failed"


def test_a_store_that_cannot_be_is_known_in_the_first_second(tmp_path: Path) -> None:
    began = time.monotonic()
    command = [sys.executable, "-m", "apiserver", "serve", "sim", "--engine", "sim", "--port", "0"]
    for more, says in (
        (["--responses-store", str(tmp_path / "no" / "where.db")], "responses store"),
        (["--responses-store", "x.db", "--no-responses-store"], "exclude each other"),
        (["--responses-max-bytes", "0"], "above 0"),
        (["--responses-max-age", "0"], "above 0"),
    ):
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode != 0
        assert says in done.stderr
        assert "Traceback" not in done.stderr
    assert time.monotonic() - began < 60


# ---- a real model ---------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_a_real_models_answer_keeps_the_schema(start_pool: StartPool) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "population": {"type": "integer"}},
        "required": ["city", "population"],
        "additionalProperties": False,
    }
    text: Any = {"format": {"type": "json_schema", "name": "city", "schema": schema, "strict": True}}
    with start_pool("--api-server-count", "2", "--max-model-len", "512", model="smollm2") as pool:
        made = pool.openai.responses.create(
            model="smollm2", input="Name a city.", text=text, max_output_tokens=80, temperature=0
        )
        assert made.status == "completed"
        assert set(json.loads(made.output_text)) == {"city", "population"}
        body = {"input": "Name a city.", "text": text, "max_output_tokens": 80, "temperature": 0, "stream": True}
        events = parsed(pool.client.post(RESPONSES, json=body).content)
        assert check(events)["response"]["output"][0]["content"][0]["text"] == made.output_text
        more = pool.openai.responses.create(
            model="smollm2", input="And its country?", previous_response_id=made.id, max_output_tokens=10
        )
        assert more.usage is not None
        assert made.usage is not None
        assert more.usage.input_tokens > made.usage.input_tokens
