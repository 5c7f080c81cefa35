"""Everything that we use of SGLang, in one place, to be looked at when its pinned version changes.

Importing this imports SGLang and torch, which takes seconds. All of it is Any: SGLang is an extra, and has no types
that it keeps to. `Engine` is its public interface; TokenizerManager (which `Engine.tokenizer_manager` is) and Scheduler
are not, and are used because Engine cannot embed token ids, abort, or build grammars without a tokenizer of its own.
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from typing import Any

from fastapi import HTTPException as _HttpException
from sglang.srt.constrained.base_grammar_backend import create_grammar_backend as _create_grammar_backend
from sglang.srt.entrypoints.engine import Engine as _Engine
from sglang.srt.entrypoints.engine import init_tokenizer_manager as _init_tokenizer_manager
from sglang.srt.managers import io_struct as _io_struct
from sglang.srt.managers import scheduler as _scheduler
from sglang.srt.sampling.sampling_params import SamplingParams as _SamplingParams

Engine: Any = _Engine
init_tokenizer_manager: Any = _init_tokenizer_manager
Scheduler: Any = _scheduler.Scheduler
SamplingParams: Any = _SamplingParams
HttpException: Any = _HttpException
io: Any = _io_struct
async_sock_recv: Any = _io_struct.async_sock_recv
scheduler_module: Any = _scheduler
create_grammar_backend: Any = _create_grammar_backend
