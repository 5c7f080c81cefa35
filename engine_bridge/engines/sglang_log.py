"""What SGLang's processes write, line by line in our own log, and from it the stage that loading has come to.

SGLang tells its progress in its log and nowhere else. Its processes are spawned while our own stdout and stderr are the
write end of a pipe, so they inherit that; a thread reads the other end.
"""

import os
import re
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

from engine_bridge import log

_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:.]+(?P<rank>(?: [A-Z_]+\d+)*)\] ?")
_PERCENT = re.compile(r"(\d+)%")
_OURS = re.compile(r"[\d:. -]+[A-Z]+ +engine  ")
"""What a line of our own log begins with."""

_STAGES = (
    ("Init parallel begin", "starting the ranks"),
    ("Load weight begin", "loading weights"),
    ("Load weight end", "allocating the cache"),
    ("KV Cache is allocated", "allocating the cache"),
    ("Capture cuda graph begin", "capturing graphs"),
    ("Capture prefill CUDA graph begin", "capturing graphs"),
    ("Capture decode CUDA graph begin", "capturing graphs"),
    ("Tree cache initialized", "starting to serve"),
)
_BARS = (("downloading", "downloading"), ("loading", "loading weights"), ("capturing", "capturing graphs"))
_PER_BATCH = ("Prefill batch", "Decode batch")
"""A line for each: their figures are in /pool and /metrics."""
_SETTINGS = re.compile(f"(?:{_OURS.pattern})?server_args=")
"""Five thousand characters, twice, with whatever secrets are among them."""


class LogRelay:
    """One for an engine. `stage` is for people; `with relay.capture():` around whatever spawns processes."""

    def __init__(self, *, per_batch: bool = False) -> None:
        self._per_batch = per_batch
        self.stage = "importing SGLang"
        self.last_error = ""
        """The last line that named an exception: when a process has died, most likely why."""
        self._target = os.dup(2)
        self._thread: threading.Thread | None = None

    @contextmanager
    def capture(self) -> Generator[None]:
        """Descriptors 1 and 2 of this process are the pipe; call it once."""
        read, write = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(read,), name="sglang-log", daemon=True)
        self._thread.start()
        sys.stdout.flush()
        saved = [(number, os.dup(number)) for number in (1, 2)]
        for number, _ in saved:
            os.dup2(write, number)
        os.close(write)
        try:
            yield
        finally:
            sys.stdout.flush()
            for number, copy in saved:
                os.dup2(copy, number)
                os.close(copy)

    def drain(self, seconds: float) -> None:
        """What dead processes have left in the pipe; returns when there is no writer any more, or the time is over."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _read(self, descriptor: int) -> None:
        with open(descriptor, "rb", buffering=0) as pipe:
            rest = b""
            while chunk := pipe.read(65_536):
                *lines, rest = re.split(rb"(?<=[\r\n])", rest + chunk)
                for line in lines:
                    self._take(line)
            self._take(rest)

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if not text:
            return
        is_progress = line.endswith(b"\r") or "it/s]" in text or "s/it]" in text
        rank, text = _without_prefix(text)
        self._note_stage(text, is_progress=is_progress)
        is_per_batch = text.startswith(_PER_BATCH) and not self._per_batch
        if is_progress or is_per_batch or _SETTINGS.match(text):
            return
        if re.match(r"[A-Za-z_.]*(Error|Exception)\b", text):
            self.last_error = text
        shown = text if _OURS.match(text) else log.line("INFO", "engine", f"sglang{rank}: {text}")
        with suppress(OSError):  # nobody reads our log, or its disk is full: SGLang must not die of that
            os.write(self._target, f"{shown}\n".encode())

    def _note_stage(self, text: str, *, is_progress: bool) -> None:
        if is_progress:
            percent = _PERCENT.search(text)
            stage = next((stage for word, stage in _BARS if word in text.lower()), None)
            if percent is not None and stage is not None:
                self.stage = f"{stage}, {percent[1]} %"
            return
        for begin, stage in _STAGES:
            if text.startswith(begin):
                self.stage = stage


def _without_prefix(text: str) -> tuple[str, str]:
    match = _PREFIX.match(text)
    return (match["rank"], text[match.end() :]) if match is not None else ("", text)
