"""A stand-in for SGLang's kernels, whose packages are for GPUs (and for CPUs with AMX).

SGLang imports names from here where SGLANG_USE_CPU_ENGINE is set. On a CPU without AMX it calls none of them for the
models of these tests: they take plain torch. If one is called after all, it says so.
"""

from collections.abc import Callable
from typing import NoReturn

__version__ = "0"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is not there: these tests run without SGLang's kernels")

    return missing
