"""The responses store: what is put is there for every process, within the limits, and survives whoever wrote it."""

import asyncio
import json
import os
import sqlite3
import stat
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from apiserver.config import StoreSettings
from apiserver.protocol.responses_object import cancelled, lost
from apiserver.store import Piece, Store, StoreError, prepare
from apiserver.store.schema import open_database
from tests.ends import until
from tests.stores import database_of, stored


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    return prepare(StoreSettings(), tmp_path)


def with_store(settings: StoreSettings, test: Callable[[Store], Awaitable[None]]) -> None:
    async def run() -> None:
        store = Store(settings, lost)
        try:
            await asyncio.wait_for(test(store), 20)
        finally:
            await store.close()

    asyncio.run(run())


# ---- put, get, delete ----


def test_what_is_put_is_there_until_it_is_deleted(settings: StoreSettings) -> None:
    async def test(store: Store) -> None:
        response = stored("resp_1", text="a")
        await store.put(response, ["msg_1", "msg_2"], ended=True)
        assert await store.get("resp_1") == response
        assert await store.having(["msg_2", "msg_9", "msg_1"]) == [response]
        assert await store.delete("resp_1") == response
        assert await store.get("resp_1") is None
        assert await store.having(["msg_1"]) == []
        assert await store.delete("resp_1") is None

    with_store(settings, test)


def test_what_one_process_puts_another_finds_and_it_outlives_both(settings: StoreSettings) -> None:
    first, second = (lambda: database_of(settings)), (lambda: database_of(settings))
    database = first()
    database.put(stored("resp_1"), [], ended=True)
    database.close()
    database = second()
    assert database.get("resp_1") == stored("resp_1")
    database.close()


def test_files_are_their_owners_alone(settings: StoreSettings, tmp_path: Path) -> None:
    database = database_of(settings)
    database.put(stored("resp_1"), [], ended=True)
    files = sorted(tmp_path.glob("responses.db*"))
    assert [path.name for path in files] == [f"responses.db{end}" for end in ("", "-owners", "-shm", "-wal")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    database.close()


def test_nothing_of_it_is_done_on_the_loops_thread(settings: StoreSettings) -> None:
    async def test(store: Store) -> None:
        assert settings.path is not None
        other = open_database(Path(settings.path))
        other.execute("BEGIN IMMEDIATE")  # whoever writes now waits
        putting = asyncio.create_task(store.put(stored("resp_1"), [], ended=True))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not putting.done()
        other.execute("COMMIT")
        other.close()
        await putting
        assert threading.active_count() >= 2

    with_store(settings, test)


def test_a_store_that_was_never_used_has_no_thread_and_no_file_open(settings: StoreSettings, tmp_path: Path) -> None:
    async def test(store: Store) -> None:
        assert not (tmp_path / "responses.db-owners").exists()

    with_store(settings, test)


# ---- chains ----


def test_a_chain_comes_oldest_first_and_says_where_it_is_broken(settings: StoreSettings) -> None:
    async def test(store: Store) -> None:
        chain = [stored("resp_1"), stored("resp_2", previous="resp_1"), stored("resp_3", previous="resp_2")]
        for response in chain:
            await store.put(response, [], ended=True)
        assert await store.chain("resp_3") == chain
        assert await store.chain("resp_9") == []
        await store.delete("resp_1")
        assert (await store.chain("resp_3"))[0].previous == "resp_1"

    with_store(settings, test)


def test_a_chain_of_hundreds_is_one_look_and_one_write(settings: StoreSettings) -> None:
    database = database_of(settings)
    names = [f"resp_{number}" for number in range(400)]
    for number, name in enumerate(names):
        database.put(stored(name, previous=names[number - 1] if number else None), [f"msg_{number}"], ended=True)
    statements: list[str] = []
    database._connection.set_trace_callback(statements.append)
    chain = database.chain(names[-1])
    assert [response.id for response in chain] == names
    assert [text.split()[0] for text in statements] == ["WITH", "BEGIN", "UPDATE", "COMMIT"]
    statements.clear()
    assert {response.id for response in database.having([f"msg_{number}" for number in range(400)])} == set(names)
    assert len(statements) == 1
    database._connection.set_trace_callback(None)
    database.delete(names[100])
    assert [response.id for response in database.chain(names[-1])] == names[101:]
    database.close()


def test_of_a_chain_what_a_dead_maker_left_is_ended_first(settings: StoreSettings) -> None:
    maker = database_of(settings)
    maker.put(stored("resp_1"), ["msg_1"], ended=True)
    maker.put(stored("resp_2", status="in_progress", previous="resp_1"), ["msg_2"], ended=False)
    maker.close()  # its lock goes with it, as at a death
    database = database_of(settings)
    assert [response.status for response in database.chain("resp_2")] == ["completed", "failed"]
    assert [response.status for response in database.having(["msg_2"])] == ["failed"]
    database.close()


# ---- limits ----


def test_the_oldest_go_for_the_newer_ones_and_what_is_continued_counts_as_new(settings: StoreSettings) -> None:
    database = database_of(replace(settings, max_bytes=60_000))
    for number in range(5):
        database.put(stored(f"resp_{number}", text="x" * 10_000), [f"msg_{number}"], ended=True)
    database.chain("resp_0")
    for number in range(5, 8):
        database.put(stored(f"resp_{number}", text="x" * 10_000), [], ended=True)
    left = [number for number in range(8) if database.get(f"resp_{number}") is not None]
    assert left == [0, 4, 5, 6, 7]
    assert database.having(["msg_1"]) == []
    database.close()


def test_one_that_is_larger_than_the_store_is_alone_in_it(settings: StoreSettings) -> None:
    database = database_of(replace(settings, max_bytes=10_000))
    database.put(stored("resp_1"), [], ended=True)
    database.put(stored("resp_2", text="x" * 20_000), [], ended=True)
    assert database.get("resp_1") is None
    assert database.get("resp_2") is not None
    database.close()


def test_more_than_can_be_evicted_at_once_goes_in_turns(settings: StoreSettings) -> None:
    database = database_of(settings)
    for number in range(200):
        database.put(stored(f"resp_{number}"), [], ended=True)
    database.close()
    database = database_of(replace(settings, max_bytes=3000))
    database.put(stored("resp_new"), [], ended=True)
    assert sum(database.get(f"resp_{number}") is not None for number in range(200)) <= 2
    database.close()


def test_events_and_endings_count_as_well(settings: StoreSettings) -> None:
    database = database_of(replace(settings, max_bytes=20_000))
    database.put(stored("resp_1"), [], ended=True)
    database.put(replace(stored("resp_2", status="in_progress"), frames=0), [], ended=False)
    database.append("resp_2", Piece(0, 1, b"x" * 15_000))
    assert database.get("resp_1") is not None
    database.end("resp_2", "completed", b"y" * 5_000, [], Piece(1, 1, b"z"))
    assert database.get("resp_1") is None
    database.close()


def test_what_is_still_being_made_does_not_go(settings: StoreSettings) -> None:
    database = database_of(replace(settings, max_bytes=3_000))
    for number in range(5):
        database.put(stored(f"resp_{number}", status="in_progress"), [], ended=False)
    assert all(database.get(f"resp_{number}") for number in range(5))
    database.close()


def test_what_is_too_old_is_gone_before_it_is_deleted(settings: StoreSettings) -> None:
    database = database_of(settings)
    database.put(stored("resp_1"), [], ended=True)
    database.close()
    database = database_of(replace(settings, max_age_seconds=1e-6))
    assert database.get("resp_1") is None
    assert database.chain("resp_1") == []
    database.expire()
    database.close()
    database = database_of(settings)
    assert database.get("resp_1") is None
    database.close()


def test_what_was_deleted_is_not_in_the_file_any_more(settings: StoreSettings, tmp_path: Path) -> None:
    database = database_of(settings)
    database.put(stored("resp_1", text="a secret of mine"), [], ended=True)
    database.delete("resp_1")
    database.close()
    assert not any(b"a secret of mine" in path.read_bytes() for path in tmp_path.glob("responses.db*"))


# ---- one that is being made ----


def test_its_stream_can_be_followed_from_any_event(settings: StoreSettings) -> None:
    database = database_of(settings)
    database.put(replace(stored("resp_1", status="in_progress"), frames=0), [], ended=False)
    assert database.follow("resp_1", 0) == ([], False)
    database.append("resp_1", Piece(0, 3, b"abc"))
    database.append("resp_1", Piece(3, 2, b"de"))
    assert database.follow("resp_1", 0) == ([(0, b"abc"), (3, b"de")], False)
    assert database.follow("resp_1", 2) == ([(0, b"abc"), (3, b"de")], False)
    assert database.follow("resp_1", 3) == ([(3, b"de")], False)
    database.end("resp_1", "completed", b"{}", ["msg_1"], Piece(5, 1, b"f"))
    assert database.follow("resp_1", 5) == ([(5, b"f")], True)
    found = database.get("resp_1")
    assert found is not None
    assert (found.status, found.frames, found.is_finished) == ("completed", 6, True)
    assert [response.id for response in database.having(["msg_1"])] == ["resp_1"]
    assert database.follow("resp_9", 0) is None
    database.close()


def test_a_deleted_ones_maker_writes_into_the_void(settings: StoreSettings) -> None:
    database = database_of(settings)
    database.put(replace(stored("resp_1", status="in_progress"), frames=0), [], ended=False)
    database.delete("resp_1")
    database.append("resp_1", Piece(0, 1, b"a"))
    database.end("resp_1", "completed", b"{}", ["msg_1"], Piece(1, 1, b"b"))
    assert database.get("resp_1") is None
    assert database.having(["msg_1"]) == []
    database.close()


def test_a_cancelled_one_stays_so_whatever_its_maker_says_but_its_last_words_are_heard(settings: StoreSettings) -> None:
    database = database_of(settings)
    for response_id in ("resp_1", "resp_2"):
        database.put(stored(response_id, status="in_progress"), [], ended=False)
        database.cancel(response_id, cancelled)
        found = database.get(response_id)
        assert found is not None
        assert (found.status, json.loads(found.document)["status"]) == ("cancelled", "cancelled")
    database.end("resp_1", "completed", b'{"late": true}', ["msg_1"], None)
    database.end("resp_2", "cancelled", b'{"partial": true}', ["msg_2"], None)
    first, second = database.get("resp_1"), database.get("resp_2")
    assert first is not None
    assert second is not None
    assert (first.status, json.loads(first.document).get("late")) == ("cancelled", None)
    assert (second.status, json.loads(second.document)) == ("cancelled", {"partial": True})
    assert [response.id for response in database.having(["msg_1", "msg_2"])] == ["resp_2"]
    database.cancel("resp_9", cancelled)
    database.close()


def test_a_finished_one_cannot_be_cancelled(settings: StoreSettings) -> None:
    database = database_of(settings)
    database.put(stored("resp_1"), [], ended=True)
    database.cancel("resp_1", cancelled)
    assert database.get("resp_1") == stored("resp_1")
    database.close()


# ---- what can go wrong ----


def test_a_file_that_is_no_store_is_refused_at_the_start(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"not a database, but long enough to be looked at as one" * 10)
    foreign = tmp_path / "foreign"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE mine (a)")
    connection.close()
    newer = tmp_path / "newer"
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    for path in (garbage, foreign, newer, tmp_path, tmp_path / "no" / "such" / "directory" / "file"):
        with pytest.raises(StoreError, match=str(path)):
            prepare(StoreSettings(path=str(path)), tmp_path)


def test_a_failing_store_raises_its_own_error_and_goes_on_afterwards(
    settings: StoreSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(store: Store) -> None:
        await store.put(stored("resp_1"), [], ended=True)
        with pytest.raises(StoreError):
            await store.put(stored("resp_1"), [], ended=True)  # the same id again
        assert await store.get("resp_1") is not None

    with_store(settings, test)
    assert "the responses store failed" in caplog.text


def test_a_store_whose_directory_is_gone_says_so(settings: StoreSettings, tmp_path: Path) -> None:
    gone = replace(settings, path=str(tmp_path / "gone" / "responses.db"))

    async def test(store: Store) -> None:
        with pytest.raises(StoreError):
            await store.get("resp_1")

    with_store(gone, test)


def test_what_is_too_old_goes_by_itself(settings: StoreSettings) -> None:
    async def test() -> None:
        store = Store(replace(settings, max_age_seconds=0.1), lost, expire_seconds=0.01)
        await store.put(stored("resp_1"), [], ended=True)
        assert settings.path is not None
        connection = open_database(Path(settings.path))
        await until(lambda: connection.execute("SELECT count(*) FROM responses").fetchone() == (0,))
        connection.close()
        await store.close()

    asyncio.run(test())


def test_a_store_that_cannot_delete_what_is_too_old_says_so_and_tries_again(
    settings: StoreSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        gone = replace(settings, path=str(tmp_path / "gone" / "responses.db"))
        store = Store(gone, lost, expire_seconds=0.01)
        with pytest.raises(StoreError):
            await store.get("resp_1")
        await until(lambda: len(caplog.records) >= 3)
        await store.close()

    asyncio.run(test())


def test_an_owner_is_alive_to_itself(settings: StoreSettings) -> None:
    database = database_of(settings)
    assert database._owners.is_alive(database._owners.own)
    assert not database._owners.is_alive(database._owners.own + 1)
    database.close()
    assert os.path.exists(f"{settings.path}-owners")
