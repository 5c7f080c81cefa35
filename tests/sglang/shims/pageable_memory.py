"""For SGLang's LoRA on a CPU: it asks torch for pinned memory, which only a GPU's driver can give, and only a GPU has a
use for. Where there is none, it gets memory of the usual kind. `sitecustomize` brings this in where PAGEABLE_MEMORY is
set."""

# pyright: reportMissingImports=false

import functools
import importlib.abc
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

_MAKERS = ("arange", "empty", "full", "ones", "tensor", "zeros")


class _BesideTorch(importlib.abc.MetaPathFinder):
    """Finds torch where it is, and changes it once it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            load = loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                _unpin(module)

            loader.exec_module = exec_module
        return spec


def _unpin(torch: Any) -> None:
    if torch.cuda.is_available():
        return
    torch.Tensor.pin_memory = lambda tensor, *_: tensor
    for name in _MAKERS:
        setattr(torch, name, _without_pins(getattr(torch, name)))


def _without_pins(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*arguments: Any, pin_memory: bool = False, **more: Any) -> Any:
        return make(*arguments, **more)

    return made


sys.meta_path.insert(0, _BesideTorch())
