"""Schemathesis over the document that the server publishes: as it generates inputs, and as it judges answers."""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop
from benchlib.pool import ROOT, PoolSpec, started
from benchlib.report import provenance, provenance_line

from fuzzlib.state import faults, idle

_VERSION = "4.32.5"
_FOLDER = ROOT / ".venv-fuzz"  # of its own: its pytest plugin and pydantic's shall not be in the tests' processes
_CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
_EXCLUDED = (
    "/pause_generation",  # it would hold up everybody else
    "/health_generate",  # with a timeout of nothing it says 503, as it should
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fuzz_openapi", description=__doc__)
    parser.add_argument("--examples", type=int, default=100, help="the most inputs to one operation, of each phase")
    parser.add_argument("--seconds", type=int, default=0, help="the most for one task; 0: as long as it takes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", default="generate,embed", help="what the simulated engines do, one after the other")
    parser.add_argument(
        "--schemathesis", type=Path, help="its command; without, it is installed beside the checkout's own"
    )
    options = parser.parse_args(arguments)
    command = options.schemathesis or _installed()
    origin = provenance()
    failed = uvloop.run(_run(command, options))
    print(f"\nschemathesis {_VERSION}, seed {options.seed}; {provenance_line(origin)}")
    for one in failed:
        print(f"FOUND {one}")
    return 1 if failed else 0


def _installed() -> Path:
    command = _FOLDER / "bin" / "st"
    if not command.exists():
        subprocess.run([sys.executable, "-m", "venv", _FOLDER], check=True)
        python = str(_FOLDER / "bin" / "python")
        constraints = str(ROOT / "constraints.txt")
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "-c", constraints, f"schemathesis=={_VERSION}"], check=True
        )
    return command


async def _run(command: Path, options: argparse.Namespace) -> list[str]:
    failed: list[str] = []
    for task in options.tasks.split(","):
        flags = ("--max-model-len", "512", "--tool-call-parser", "hermes")
        engine = ("--task", task, "--step-ms", "0.1")
        spec = PoolSpec(model="sim", api_server_count=4, flags=flags, engine_arguments=engine)
        async with started(spec) as pool:
            before = await idle(pool.url)
            status = await _schemathesis(command, pool.url, options)
            failed += [f"{task}: {fault}" for fault in faults(before, await idle(pool.url))]
            failed += [f"{task}: the log has {line}" for _, line in pool.lines if "Traceback" in line][:1]
        if status:
            failed.append(f"{task}: schemathesis ended with {status}")
    return failed


async def _schemathesis(command: Path, url: str, options: argparse.Namespace) -> int:
    arguments = ["run", f"{url}/openapi.json", "--checks", _CHECKS, "--seed", str(options.seed)]
    arguments += ["--max-examples", str(options.examples), "--phases", "examples,coverage,fuzzing", "--workers", "2"]
    arguments += ["--continue-on-failure", "--suppress-health-check", "all", "--request-timeout", "30"]
    arguments += ["--warnings", "off", "--no-color"]
    if options.seconds:
        arguments += ["--max-time", str(options.seconds)]
    for path in _EXCLUDED:
        arguments += ["--exclude-path", path]
    process = await asyncio.create_subprocess_exec(str(command), *arguments)
    return await process.wait()
