"""How every benchmark ends: tables on stdout, a JSON file, a picture, an exit code; and how it is stopped."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import uvloop

from benchlib import plot
from benchlib.arguments import settings_of
from benchlib.errors import BenchError
from benchlib.parsing import ReplyError
from benchlib.plot import Panel
from benchlib.report import provenance, provenance_line, write_json

Document = dict[str, Any]
Bench = Callable[[argparse.Namespace], Coroutine[Any, Any, Document]]

FAILED, NOTHING_MEASURED, INTERRUPTED = 1, 2, 130


def run(
    name: str,
    options: argparse.Namespace,
    bench: Bench,
    *,
    render: Callable[[Document], str],
    panels: Callable[[Document], Sequence[Panel]] = lambda document: (),
    has_failed: Callable[[Document], bool] = lambda document: False,
) -> int:
    """Measure and show; 0, 1 if something that was measured failed, 2 if nothing could be measured.

    `bench` gives what it found; the name, the settings, the machine and the commit are added here.
    """
    origin = provenance()  # before: the checkout may change while we run
    try:
        if options.plot is not None:
            plot.require()
        found = uvloop.run(_stoppable(bench(options)))
    except (OSError, ValueError, ReplyError, BenchError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return NOTHING_MEASURED
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    document = {"bench": name, "label": options.label, **origin, "settings": settings_of(options), **found}
    line = provenance_line(document)
    print(f"{render(document)}\n\n{line}")
    if options.json is not None:
        write_json(options.json, document)
    if options.plot is not None:
        plot.draw(options.plot, panels(document), title=options.label or name, footnote=line)
    return FAILED if has_failed(document) else 0


async def _stoppable(work: Coroutine[Any, Any, Document]) -> Document:
    """SIGTERM unwinds as Ctrl-C does, so that no pool that we have started stays behind."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task
