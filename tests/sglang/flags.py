"""What SGLang's own parser was told, for engine_bridge/sglang_flags.json.

    PYTHONPATH=.:tests/sglang/shims SGLANG_USE_CPU_ENGINE=1 .sglang/venv/bin/python -m tests.sglang.flags

writes it there, when SGLang's version has changed.
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

import argparse
from pathlib import Path

import msgspec
import sglang
from sglang.srt.server_args import ServerArgs
from sglang.version import __version__

from engine_bridge.sglang_flags import DESCRIPTION, Description, Flag, digest_of

_FILES = (
    "kernels/ops/kv_canary/consts.py",
    "srt/arg_groups/arg_utils.py",
    "srt/arg_groups/argparse_actions.py",
    "srt/arg_groups/choices.py",
    "srt/arg_groups/field_order.py",
    "srt/arg_groups/fields/*.py",
    "srt/function_call/parser_names.py",
    "srt/model_executor/cuda_graph_config.py",
    "srt/parser/reasoning_parser_names.py",
    "srt/server_args.py",
)
"""Whatever says which options there are, of what shape, and with which choices."""
PACKAGE = Path(str(sglang.__file__)).parent


def sglangs_parser() -> argparse.ArgumentParser:
    """As SGLang's prepare_server_args makes it."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    return parser


def describe() -> Description:
    parser = sglangs_parser()
    assert (parser.prefix_chars, parser.fromfile_prefix_chars, parser.allow_abbrev) == ("-", None, True)
    assert parser._mutually_exclusive_groups == []
    files = [str(path.relative_to(PACKAGE)) for pattern in _FILES for path in sorted(PACKAGE.glob(pattern))]
    digest = digest_of(PACKAGE, files)
    assert digest is not None
    return Description(parser.prog, str(__version__), files, digest, [_flag(action) for action in parser._actions])


def _flag(action: argparse.Action) -> Flag:
    assert action.option_strings, "a word without a name"
    is_plain = action.type in (None, str, int, float)
    # A set's order, which argparse's sentence has, differs from run to run: SGLang says it itself.
    choices = list(action.choices) if isinstance(action.choices, list | tuple) and is_plain else None
    name = action.type.__name__ if action.type in (int, float) else ""
    is_help = isinstance(action, argparse._HelpAction)
    return Flag(list(action.option_strings), action.nargs, name, choices, is_help)


def text_of(description: Description) -> str:
    """JSON with a line for each flag, so that a new version's differences can be read."""
    head, _, _ = msgspec.json.encode(msgspec.structs.replace(description, flags=[])).decode().rpartition("]")
    flags = ",\n".join(msgspec.json.encode(flag).decode() for flag in description.flags)
    return f"{head}\n{flags}\n]}}\n"


if __name__ == "__main__":
    DESCRIPTION.write_text(text_of(describe()), encoding="utf-8")
