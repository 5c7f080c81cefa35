"""For SGLang's tests on a CPU: lets torchvision be imported where its own compiled part cannot be loaded.

SGLang imports torchvision whatever it serves. The package index has torchvision built for CUDA only; beside a torch for
CPUs that part does not load, and then its Python part fails at the first operator that it looks up. Their names are
declared here, without anything behind them: nothing in these tests looks at an image. Where it loads, nothing is done.
It is on PYTHONPATH, since SGLang's processes are spawned and not forked.
"""

# pyright: reportMissingImports=false

import ctypes
import importlib.abc
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

_BOXES = "(Tensor boxes, Tensor scores, float threshold) -> Tensor"
_ANY = "(Tensor any) -> Tensor"
_OPERATORS = {
    **dict.fromkeys(("nms", "qnms"), _BOXES),
    **dict.fromkeys(("roi_align", "qroi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"), _ANY),
    **dict.fromkeys(("_roi_align_backward", "_roi_pool_backward", "_ps_roi_align_backward"), _ANY),
    **dict.fromkeys(("_ps_roi_pool_backward", "_deform_conv2d_backward", "box_iou_rotated"), _ANY),
}


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Finds nothing; looks at torchvision just before it is imported."""

    def __init__(self) -> None:
        self._declared: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name == "torchvision" and self._declared is None:
            spec = PathFinder.find_spec(name)
            if spec is not None and spec.origin is not None and not _loads(Path(spec.origin).parent):
                self._declare()
        return None

    def _declare(self) -> None:
        import torch

        # A torch.library.Library, which must be kept: what it declares is gone when it is.
        self._declared = torch.library.Library("torchvision", "DEF")
        for operator, schema in _OPERATORS.items():
            self._declared.define(f"{operator}{schema}")


def _loads(directory: Path) -> bool:
    import torch  # its shared objects are what torchvision's are linked with

    assert torch
    compiled = list(directory.glob("_C*.so"))
    try:
        for part in compiled:
            ctypes.CDLL(str(part))
    except OSError:
        return False
    return bool(compiled)


sys.meta_path.insert(0, _BeforeTorchvision())
if os.environ.get("PAGEABLE_MEMORY"):
    import pageable_memory

    assert pageable_memory
