"""What a process was making when it died, as the others find it; and many processes at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from apiserver.config import StoreSettings
from apiserver.protocol.responses_object import cancelled
from apiserver.store import prepare
from apiserver.store.schema import open_database
from tests.stores import OTHER_PROCESS, OtherProcess, database_of


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    return prepare(StoreSettings(), tmp_path)


def test_what_a_killed_process_was_making_has_failed_and_not_before(settings: StoreSettings) -> None:
    database = database_of(settings)
    with OtherProcess(settings) as other:
        alive = database.get("resp_plain")
        assert alive is not None
        assert not alive.is_finished
        other.kill()
        dead = database.get("resp_plain")
        assert dead is not None
        assert (dead.status, json.loads(dead.document)["status"]) == ("failed", "failed")
        assert json.loads(dead.document)["error"]["code"] == "server_error"
        assert database.get("resp_plain") == dead
    database.close()


def test_the_stream_of_a_killed_process_ends_with_one_event_that_says_so(settings: StoreSettings) -> None:
    database = database_of(settings)
    with OtherProcess(settings) as other:
        before = database.follow("resp_stream", 0)
        assert before is not None
        assert not before.ended
        other.kill()
        for _ in range(2):
            after = database.follow("resp_stream", 0)
            assert after is not None
            assert after.ended
            assert [first for first, _ in after.pieces] == [0, 2]
            name, data = after.pieces[1][1].decode().strip().split("\n")
            assert name == "event: response.failed"
            event = json.loads(data.removeprefix("data: "))
            assert (event["sequence_number"], event["response"]["status"]) == (2, "failed")
    database.close()


def test_one_that_was_cancelled_before_its_maker_died_stays_cancelled(settings: StoreSettings) -> None:
    database = database_of(settings)
    with OtherProcess(settings) as other:
        database.cancel("resp_stream", cancelled)
        other.kill()
        found = database.follow("resp_stream", 2)
        assert found is not None
        assert b"event: response.incomplete" in found.pieces[-1][1]
        dead = database.get("resp_stream")
        assert dead is not None
        assert dead.status == "cancelled"
    database.close()


def test_a_killed_writer_leaves_a_whole_database(settings: StoreSettings) -> None:
    with OtherProcess(settings) as other:
        other.kill()
    assert settings.path is not None
    connection = open_database(Path(settings.path))
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_processes_that_write_at_once_wait_for_each_other(settings: StoreSettings) -> None:
    assert settings.path is not None
    script = OTHER_PROCESS.split("for name")[0] + (
        "for number in range(100):\n"
        "    name = f'resp_{sys.argv[2]}_{number}'\n"
        "    database.put(Stored(name, None, 'completed', b'{}', b'[]', False, None), [], ended=True)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, settings.path, str(number)]) for number in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    connection = open_database(Path(settings.path))
    assert connection.execute("SELECT count(*) FROM responses").fetchone() == (300,)
    assert connection.execute("SELECT owners FROM pool").fetchone() == (3,)
    connection.close()


def test_of_two_that_find_it_one_ends_it(settings: StoreSettings) -> None:
    database = database_of(settings)
    with OtherProcess(settings) as other:
        other.kill()
        found = database.get("resp_stream")
        database._bury("resp_stream", database._owners.own - 1)  # as one that had looked before
        assert database.get("resp_stream") == found
    database.close()
