"""Engine cores that misbehave: `python -m tests.engines KIND EPOCH ROW_DESCRIPTOR`. For the supervisor's tests."""

import os
import subprocess
import sys
import time

from engine_bridge.status import EngineRow


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def leave_a_zombie() -> None:
    """A process of our group that nobody reaps, because its parent has left the group and sleeps."""
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        os.setsid()
        say(f"grandchild {os.getpid()}")
        time.sleep(60)
        os._exit(0)  # should the test not have ended it


def main(kind: str, epoch: int, descriptor: int) -> int:
    row = EngineRow.attach(descriptor)
    say(f"engine {os.getpid()} of epoch {epoch}")
    if kind == "fails_after_one" and epoch > 1:
        return 3
    if kind == "with_a_child":
        grandchild = subprocess.Popen(["sleep", "60"])
        say(f"grandchild {grandchild.pid}")
    if kind == "with_a_zombie":
        leave_a_zombie()
    row.beat(0, 0)
    row.note_output()
    row.mark_ready()
    began = time.monotonic()
    while True:
        age = time.monotonic() - began
        if kind == "crashes" and age > 0.3:
            os.abort()
        if not (kind == "stands_still" and epoch == 1 and age > 0.3):
            row.beat(1, 0)
        if not (kind == "stalls" and epoch == 1 and age > 0.3):
            row.note_output()
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
