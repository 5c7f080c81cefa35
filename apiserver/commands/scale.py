"""`apiserver scale N`: find the running pool, tell it, and wait until it is so."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from apiserver.control import Document, ask
from apiserver.run_directory import run_directories

_WAIT_SECONDS = 30.0
_LOOK_SECONDS = 0.05


def run(count: int, *, port: int | None = None, pid: int | None = None) -> int:
    """Returns the exit code: 0 if as many serve as were asked for, else 1 with a line on stderr that says why."""
    pools = list(_running())
    chosen = [(path, pool) for path, pool in pools if _is_meant(pool, port, pid)]
    if len(chosen) != 1:
        return _complain(_why_not_one([pool for _, pool in pools], len(chosen), port, pid))
    path, before = chosen[0]
    try:
        return _scale(path, before, count)
    except OSError as error:
        return _complain(f"the pool {before['pid']} does not answer any more: {error}")


def _running() -> Iterator[tuple[Path, Document]]:
    """The run directories of pools that we may talk to, with what each says of itself."""
    for path in run_directories():
        with suppress(OSError):  # killed, or another user's
            yield path, ask(path, {"do": "status"})


def _is_meant(pool: Document, port: int | None, pid: int | None) -> bool:
    if pid is not None and pool["pid"] != pid:
        return False
    return port is None or pool["port"] == port


def _why_not_one(pools: list[Document], count: int, port: int | None, pid: int | None) -> str:
    if not pools:
        return "no running pool of yours found; is it another user's, in another container, or is TMPDIR another?"
    known = "\n".join(f"  --pid {pool['pid']}  {pool['address']}" for pool in pools)
    if count == 0:
        wanted = f"port {port}" if pid is None else f"pid {pid}"
        return f"no running pool of yours with {wanted}; there are\n{known}"
    return f"which of your pools? Say --port or --pid\n{known}"


def _scale(path: Path, before: Document, count: int) -> int:
    answer = ask(path, {"do": "scale", "count": count})
    if "error" in answer:
        return _complain(str(answer["error"]))
    deadline = time.monotonic() + _WAIT_SECONDS
    # Those that are to go may drain for long: that is no reason to wait.
    while answer["serving"] < count or answer["api_server_count"] != count:
        if answer["api_server_count"] != count:
            return _complain(f"the pool went on with {answer['api_server_count']}; its log says why")
        if time.monotonic() > deadline:
            return _complain(f"only {answer['serving']} of {count} serve after {_WAIT_SECONDS:.0f} s; see its log")
        time.sleep(_LOOK_SECONDS)
        answer = ask(path, {"do": "status"})
    leaving = f"; {answer['leaving']} still drain" if answer["leaving"] else ""
    servers = "API server" if count == 1 else "API servers"
    sys.stdout.write(f"{answer['address']}: {count} {servers}, {before['api_server_count']} before{leaving}\n")
    return 0


def _complain(text: str) -> int:
    sys.stderr.write(f"apiserver scale: {text}\n")
    return 1
