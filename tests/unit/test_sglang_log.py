"""SGLang's log in ours, and the stage that it tells. No SGLang takes part: the lines are its own, of 0.5.23."""

import os
import re
import subprocess
import sys

import pytest

from engine_bridge.engines.sglang_log import LogRelay

LINES = """\
[2026-11-30 16:15:03] server_args={'model_path': 'x', 'api_key': 'secret'}
[2026-11-30 16:15:09 TP0] Init parallel begin.
[2026-11-30 16:15:10 DP1 TP0] Load weight begin. avail mem=21.72 GB
[2026-11-30 16:15:11] Prefill batch, #new-seq: 1, #new-token: 4
11-30 16:15:12 INFO    engine  one of our own

torch.cuda.OutOfMemoryError: no room
"""


def relayed(text: str, capfd: pytest.CaptureFixture[str], *, per_batch: bool = False) -> tuple[LogRelay, list[str]]:
    """What a spawned process writes, as it comes out."""
    relay = LogRelay(per_batch=per_batch)
    with relay.capture():
        program = f"import sys; sys.stdout.write({text!r})"
        subprocess.run([sys.executable, "-c", program], check=True)
    relay.drain(10.0)
    return relay, [without_time(line) for line in capfd.readouterr().err.splitlines()]


def without_time(line: str) -> str:
    time, text = line[:15], line[15:]
    assert re.fullmatch(r"\d\d-\d\d \d\d:\d\d:\d\d ", time)
    return text


def test_its_lines_are_ours_without_its_settings_and_batches(capfd: pytest.CaptureFixture[str]) -> None:
    relay, lines = relayed(LINES, capfd)
    assert lines == [
        "INFO    engine  sglang TP0: Init parallel begin.",
        "INFO    engine  sglang DP1 TP0: Load weight begin. avail mem=21.72 GB",
        "INFO    engine  one of our own",
        "INFO    engine  sglang: torch.cuda.OutOfMemoryError: no room",
    ]
    assert relay.stage == "loading weights"
    assert relay.last_error == "torch.cuda.OutOfMemoryError: no room"


def test_its_batches_are_told_to_who_asks(capfd: pytest.CaptureFixture[str]) -> None:
    _, lines = relayed(LINES, capfd, per_batch=True)
    assert "INFO    engine  sglang: Prefill batch, #new-seq: 1, #new-token: 4" in lines


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        (
            "Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:01<00:02,  1.1it/s]\r",
            "loading weights, 40 %",
        ),
        ("Capturing batches (bs=8):  75%|### | 3/4 [00:01<00:00,  3.1it/s]", "capturing graphs, 75 %"),
        ("[2026-11-30 16:15:10] Capture cuda graph begin. This can take minutes.\n", "capturing graphs"),
        ("[2026-11-30 16:15:10] KV Cache is allocated. dtype: torch.bfloat16\n", "allocating the cache"),
        ("Downloading:  10%|# | 1/9 [00:01<00:00,  3.1it/s]\r", "downloading, 10 %"),
        ("Fetching:  10%|# | 1/9 [00:01<00:00,  3.1it/s]\r", "importing SGLang"),
    ],
)
def test_the_stage_is_read_from_lines_and_bars(capfd: pytest.CaptureFixture[str], text: str, stage: str) -> None:
    relay, lines = relayed(text, capfd)
    assert relay.stage == stage
    assert bool(lines) == text.startswith("[")


def test_descriptors_are_put_back(capfd: pytest.CaptureFixture[str]) -> None:
    relay = LogRelay()
    relay.drain(0.1)  # nothing was captured: nothing to wait for
    with relay.capture():
        os.write(1, b"inside\n")
    relay.drain(10.0)
    os.write(1, b"outside\n")
    captured = capfd.readouterr()
    assert without_time(captured.err) == "INFO    engine  sglang: inside\n"
    assert captured.out == "outside\n"


def test_a_log_that_cannot_be_written_does_not_stop_who_writes_to_it() -> None:
    """As on a full disk: SGLang's processes would be killed by their next line."""
    saved = os.dup(2)
    with open("/dev/full", "wb", buffering=0) as full:
        os.dup2(full.fileno(), 2)
        try:
            relay = LogRelay()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    with relay.capture():
        program = (
            "import sys\nfor _ in range(3): print(1000 * 'x', flush=True)\nprint('ValueError: the last', flush=True)"
        )
        subprocess.run([sys.executable, "-c", program], check=True)
    relay.drain(10.0)
    assert relay.last_error == "ValueError: the last"
