"""API keys with names: from a file that SIGHUP reads again, in the log and the metrics, with limits of their own."""

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import StartPool
from tests.e2e.refusals import COMPLETIONS, HI, error_of
from tests.pool import Pool, wait_for
from tests.raw_http import RawConnection, Reply, request
from tests.streams import OpenRequest

pytestmark = pytest.mark.e2e

BODY: dict[str, Any] = {"prompt": "a", "max_tokens": 2}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def asked(pool: Pool, key: str, path: str = COMPLETIONS) -> httpx.Response:
    """On a connection of its own, so of any worker."""
    return httpx.post(pool.url + path, json=BODY, headers=bearer(key), timeout=20)


def keys_in(file: Path, text: str) -> str:
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


def test_a_changed_key_file_counts_in_every_worker_and_a_broken_one_changes_nothing(
    start_pool: StartPool, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    flags = ("--api-server-count", "2", "--api-key-file", keys_in(file, "alice: sk-1\nbob: sk-2\n"), "--access-log")
    with start_pool(*flags) as pool:
        assert "Bearer KEY" in pool.log
        assert [asked(pool, key).status_code for key in ("sk-1", "sk-2", "sk-3", "alice")] == [200, 200, 401, 401]
        keys_in(file, "carol: sk-3\nbob: sk-2\n")
        reload(pool)
        statuses = {key: {asked(pool, key).status_code for _ in range(6)} for key in ("sk-1", "sk-2", "sk-3")}
        assert statuses == {"sk-1": {401}, "sk-2": {200}, "sk-3": {200}}
        keys_in(file, "not a key\n")
        pool.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "everything stays as it is" in pool.log, what="the complaint")
        assert asked(pool, "sk-3").status_code == 200
        assert pool.metric("key_requests_total", key="alice") == 1
        assert pool.metric("key_requests_total", key="bob") == 7
        assert pool.metric("key_requests_total", key="carol") == 7
        assert pool.metric("key_requests_active") == 0
        wait_for(lambda: f"{COMPLETIONS} 200 key=carol" in pool.log, what="the name in the log")
        for key in ("sk-1", "sk-2", "sk-3", "not a key"):
            assert key not in pool.log
            assert key not in pool.get("/metrics").text


def reload(pool: Pool) -> None:
    pids = set(workers(pool))
    pool.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "rolling restart is complete" in pool.log, 30, "the end of the restart")
    wait_for(lambda: not pids & set(workers(pool)), 20, "new workers only")


def workers(pool: Pool) -> list[int]:
    document = httpx.get(pool.url + "/pool", headers=bearer("sk-2"), timeout=10).json()
    return [process["pid"] for process in document["processes"]]


def test_a_key_from_the_environment_guards_too(start_pool: StartPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APISERVER_API_KEY", "sk-env")
    with start_pool("--api-server-count", "1") as pool:
        assert asked(pool, "sk-env").status_code == 200
        assert asked(pool, "sk-other").status_code == 401
        assert pool.metric("key_requests_total", key="environment") == 1
        assert "sk-env" not in pool.log


ENDLESS: dict[str, Any] = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "rid": "same"}


def abort(pool: Pool, key: str, body: dict[str, Any]) -> int:
    return httpx.post(pool.url + "/abort_request", json=body, headers=bearer(key), timeout=20).status_code


def test_an_abort_reaches_only_what_is_its_own_keys_and_an_admins_everything(start_pool: StartPool) -> None:
    keys = ("--api-key", "sk-a", "sk-b", "--admin-api-key", "sk-root")
    with start_pool("--api-server-count", "2", *keys, engine=["--step-ms", "5"]) as pool, ExitStack() as stack:

        def running() -> int:
            return int(pool.metric("num_requests_running"))

        def begin(*owners: str) -> None:
            for owner in owners:
                sent = stack.enter_context(OpenRequest(pool.url, COMPLETIONS, {**ENDLESS, "stream": True}, key=owner))
                sent.read_some()

        begin("sk-a", "sk-b", "sk-b", "sk-root")
        wait_for(lambda: running() == 4, what="four requests")
        assert abort(pool, "sk-a", {"rid": "same"}) == 200
        wait_for(lambda: running() == 3, what="an abort of the one of this key")
        assert abort(pool, "sk-a", {"rid": "same"}) == 200
        assert abort(pool, "sk-a", {"abort_all": True}) == 403
        assert abort(pool, "sk-b", {"rid": "same"}) == 200
        wait_for(lambda: running() == 1, what="aborts of both of the other key")
        begin("sk-a", "sk-b")
        wait_for(lambda: running() == 3, what="more requests")
        assert abort(pool, "sk-root", {"rid": "same"}) == 200
        wait_for(lambda: running() == 0, what="aborts of everybody's")
        begin("sk-a", "sk-b")
        assert abort(pool, "sk-root", {"abort_all": True}) == 200
        wait_for(lambda: running() == 0, what="the end of all")


def test_a_changed_file_of_admin_keys_counts_after_a_reload(start_pool: StartPool, tmp_path: Path) -> None:
    file = tmp_path / "admins"
    flags = ("--api-server-count", "2", "--api-key", "sk-2", "--admin-api-key-file", keys_in(file, "root: sk-r1\n"))
    with start_pool(*flags, "--access-log") as pool:
        assert [asked(pool, key, "/flush_cache").status_code for key in ("sk-r1", "sk-2", "sk-r2")] == [200, 403, 401]
        keys_in(file, "root: sk-r2\n")
        reload(pool)
        assert [asked(pool, key, "/flush_cache").status_code for key in ("sk-r1", "sk-2", "sk-r2")] == [401, 403, 200]
        wait_for(lambda: "/flush_cache 200 key=root" in pool.log, what="the name in the log")
        assert "sk-r" not in pool.log


def at_once(pool: Pool, key: str, times: int) -> list[Reply]:
    body = b'{"prompt":"a","max_tokens":10}'
    with ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(pool.url)) for _ in range(times)]
        for connection in connections:
            connection.send(request("POST", COMPLETIONS, body, x_api_key=key))
        return [connection.reply() for connection in connections]


def test_a_key_that_has_too_much_in_progress_gets_a_429_and_others_do_not(start_pool: StartPool) -> None:
    flags = ("--api-server-count", "2", "--api-key", "sk-a", "sk-b", "--max-inflight-per-key", "3")
    with start_pool(*flags, engine=["--step-ms", "50"]) as pool:
        replies = at_once(pool, "sk-a", 12)
        statuses = [reply.status for reply in replies]
        assert (set(statuses), statuses.count(200)) == ({200, 429}, 3)
        refused = next(reply for reply in replies if reply.status == 429)
        assert refused.error["type"] == "rate_limit_error"
        assert refused.error["code"] == "rate_limit_exceeded"
        assert "key-1" in refused.error["message"]
        assert refused.headers["retry-after"] == ["1"]
        assert [reply.status for reply in at_once(pool, "sk-b", 3)] == [200] * 3
        assert asked(pool, "sk-a").status_code == 200
        assert pool.metric("key_requests_active") == 0
        assert pool.metric("key_rejections_total", key="key-1") == statuses.count(429)
        assert pool.metric("admission_rejections_total", reason="key_inflight") == statuses.count(429)


def test_a_response_in_the_background_counts_against_its_key_until_it_is_made(start_pool: StartPool) -> None:
    """Its request is answered at once: a key could have had any number of them in progress."""
    flags = ("--api-server-count", "2", "--api-key", "sk-a", "--max-inflight-per-key", "2")
    body = {"input": "a", "max_output_tokens": 2000, "background": True, "ignore_eos": True}
    with start_pool(*flags, engine=["--step-ms", "20"]) as pool:

        def begun() -> httpx.Response:
            return httpx.post(pool.url + "/v1/responses", json=body, headers=bearer("sk-a"), timeout=20)

        made = [begun() for _ in range(2)]
        assert [answer.status_code for answer in made] == [200, 200]
        assert "in progress" in error_of(begun(), 429)["message"]
        assert asked(pool, "sk-a").status_code == 429
        assert pool.metric("key_requests_active", key="key-1") == 2
        first, second = (f"{pool.url}/v1/responses/{answer.json()['id']}" for answer in made)
        assert httpx.post(first + "/cancel", headers=bearer("sk-a")).status_code == 200
        assert httpx.delete(second, headers=bearer("sk-a")).status_code == 200
        wait_for(lambda: pool.metric("key_requests_active", key="key-1") == 0, what="a key without work")
        assert asked(pool, "sk-a").status_code == 200


def test_a_key_that_asks_too_often_gets_a_429_and_may_still_look(start_pool: StartPool) -> None:
    flags = ("--api-server-count", "2", "--api-key", "sk-a", "sk-b", "--max-requests-per-minute-per-key", "5")
    with start_pool(*flags) as pool:
        responses = [asked(pool, "sk-a") for _ in range(15)]  # a minute may end in between, once
        refused = [response for response in responses if response.status_code == 429]
        assert len(responses) - len(refused) in range(5, 11)
        for response in refused:
            error_of(response, 429)
            assert 1 <= int(response.headers["retry-after"]) <= 60
        assert httpx.get(pool.url + "/v1/models", headers=bearer("sk-a")).status_code == 200
        assert asked(pool, "sk-b").status_code == 200
        assert pool.metric("admission_rejections_total", reason="key_rate") == len(refused)


def test_a_refused_key_does_not_keep_the_pool_from_others(start_pool: StartPool) -> None:
    """The key's limit is looked at before the pool's."""
    flags = (
        "--api-server-count",
        "1",
        "--api-key",
        "sk-a",
        "sk-b",
        "--max-inflight-per-key",
        "1",
        "--max-inflight",
        "2",
    )
    with start_pool(*flags, engine=["--step-ms", "20"]) as pool:
        assert {reply.status for reply in at_once(pool, "sk-a", 10)} == {200, 429}
        assert pool.metric("admission_rejections_total", reason="max_inflight") == 0
        assert httpx.post(
            pool.url + "/v1/chat/completions", json={"messages": HI, "max_tokens": 2}, headers=bearer("sk-b")
        ).is_success
