"""Clients that ask all the time, at a steady rate: what a deployment looks like while something is done to it."""

import http.client
import json
import threading
import time
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tests.pool import wait_for

READ_SECONDS = 20.0


class Traffic:
    """`clients` threads that ask together `rate` times a second while the block lasts. Half of them keep their
    connection, the others open one for each request. `failures` is what went wrong, `answers` counts what went well."""

    def __init__(self, url: str, body: dict[str, Any], *, clients: int = 8, rate: float = 200.0) -> None:
        self._netloc = urlsplit(url).netloc
        self._body = json.dumps(body)
        self._pause = clients / rate
        self._stop = threading.Event()
        self.failures: list[str] = []
        self.answers = 0
        self._began = 0.0
        self._threads = [threading.Thread(target=self._ask, args=(number % 2 == 0,)) for number in range(clients)]

    def __enter__(self) -> "Traffic":
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        wait_for(lambda: self.answers > 50 or self.failures, what="traffic")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def rate(self) -> float:
        """Answers a second, so far."""
        return self.answers / (time.monotonic() - self._began)

    def wait_for_more(self, answers: int) -> None:
        before = self.answers
        wait_for(lambda: self.answers >= before + answers, 20, f"{answers} more answers")

    def _ask(self, keeps: bool) -> None:
        connection = http.client.HTTPConnection(self._netloc, timeout=READ_SECONDS)
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._pause, time.monotonic() - 1)
            try:
                connection.request("POST", "/v1/chat/completions", self._body, {"content-type": "application/json"})
                response = connection.getresponse()
                text = response.read()
                if response.status == 200:
                    self.answers += 1
                else:
                    self.failures.append(f"{response.status} {text!r}")
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
            if not keeps:
                connection.close()
        connection.close()
