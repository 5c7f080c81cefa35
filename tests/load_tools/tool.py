"""`sglang.bench_serving`, unmodified, as a process of SGLang's own venv; and what it has written about its run."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.pool import Pool

_SHIMS = Path(__file__).parents[1] / "sglang" / "shims"
_SECONDS = 180.0  # importing SGLang takes 6 s of CPU; the load itself a few


def bench_serving(pool: Pool, *flags: str, directory: Path) -> dict[str, Any]:
    """The line that it writes with --output-details. Fails with the tool's own words if it does."""
    python = os.environ["LOAD_TOOLS_PYTHON"]  # of scripts/test-load-tools
    output = directory / "bench_serving.jsonl"
    _, host, port = pool.url.replace("//", "").split(":")
    command = [python, "-m", "sglang.bench_serving", "--host", host, "--port", port]
    command += ["--output-file", str(output), "--output-details", *flags]
    # Nothing of ours on its path, and no look-up on the hub: what it needs is in `flags`.
    settings = {"PYTHONPATH": str(_SHIMS), "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
    )
    assert ended.returncode == 0, ended.stdout
    assert output.exists(), ended.stdout
    return json.loads(output.read_text(encoding="utf-8"))
