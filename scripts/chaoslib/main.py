"""The command line of scripts/chaos."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchlib import program
from benchlib.arguments import list_of, positive_float

from chaoslib.report import panels, render
from chaoslib.run import chaos

_SITES = ("generate", "embed", "remote")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="chaos", description="Pools under mixed load while they are broken.")
    parser.add_argument("--seed", type=int, default=1, help="of the requests and the faults (default 1)")
    parser.add_argument(
        "--minutes", type=positive_float, default=10.0, metavar="M", help="of load and faults; default 10"
    )
    parser.add_argument("--sites", type=list_of(str), default=list(_SITES), help=f"default {','.join(_SITES)}")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep what the pools and their faults wrote there")
    parser.add_argument("--label", default="", help="a name for this run, in the JSON and the picture")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write settings, machine and all that was found")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the memory (needs matplotlib)")
    options = parser.parse_args(arguments)
    if unknown := set(options.sites) - set(_SITES):
        parser.error(f"no such site: {', '.join(sorted(unknown))}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if there are findings."""
    return program.run(
        "chaos", parse(arguments), chaos, render=render, panels=panels, has_failed=lambda d: bool(d["findings"])
    )
