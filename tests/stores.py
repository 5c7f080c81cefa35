"""A store of a test's own, and another process that writes it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from apiserver.config import StoreSettings
from apiserver.protocol.responses_object import lost
from apiserver.store import Stored
from apiserver.store.database import Database

OTHER_PROCESS = """
import sys, time
from pathlib import Path
from apiserver.config import StoreSettings
from apiserver.protocol.responses_object import lost
from apiserver.store import Piece
from apiserver.store.database import Database, Stored

database = Database(Path(sys.argv[1]), StoreSettings(), lost)
for name, frames in (("resp_plain", None), ("resp_stream", 0)):
    document = b'{"id":"%b","status":"in_progress","output":[]}' % name.encode()
    database.put(Stored(name, None, "in_progress", document, b"[]", True, frames), [], ended=False)
database.append("resp_stream", Piece(0, 2, b"event: a\\ndata: {}\\n\\nevent: b\\ndata: {}\\n\\n"))
print("ready", flush=True)
sys.stdin.readline()
"""


def stored(response_id: str, *, previous: str | None = None, text: str = "", status: str = "completed") -> Stored:
    document = json.dumps({"id": response_id, "status": status, "output": [], "text": text}).encode()
    return Stored(response_id, previous, status, document, b"[]", background=True, frames=None)


def database_of(settings: StoreSettings) -> Database:
    assert settings.path is not None
    return Database(Path(settings.path), settings, lost)


class OtherProcess:
    """An API server of another pool, as far as the store can tell. A block; `kill` is SIGKILL."""

    def __init__(self, settings: StoreSettings) -> None:
        command = [sys.executable, "-c", OTHER_PROCESS, str(settings.path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "OtherProcess":
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
