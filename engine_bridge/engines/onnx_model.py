"""An ONNX file of a sentence embedding model: packed token ids in, one float32 vector each out. Knows no requests."""

import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_bridge.engines import EngineError

Vectors = NDArray[np.float32]

POOLINGS = ("mean", "cls", "last")

_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
_POOLED_OUTPUTS = ("sentence_embedding", "pooled_output", "embeddings", "text_embeds")
_TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
# Positions that these families keep for themselves: their config counts them, their texts cannot use them.
_RESERVED_POSITIONS = {"roberta": 2, "xlm-roberta": 2, "camembert": 2, "mpnet": 2}
_MOST_IDS = 1 << 22


class OnnxModel:
    """A loaded model. Raises EngineError if the file cannot be loaded or is not of this kind."""

    def __init__(
        self,
        path: Path,
        *,
        pooling: str | None,
        normalize: bool,
        max_model_len: int | None,
        threads: int | None,
    ) -> None:
        try:
            runtime: Any = importlib.import_module("onnxruntime")  # an extra, and without types
        except ImportError as error:
            raise EngineError("onnx: onnxruntime is missing; pip install 'apiserver-pool[cpu]'") from error
        self.version = str(runtime.__version__)
        self._session = _open_session(runtime, path, threads=threads)
        self._quiet = runtime.RunOptions()
        self._quiet.log_severity_level = 4  # what fails is reported by us
        self._inputs = {each.name: _TYPES.get(each.type, np.int64) for each in self._session.get_inputs()}
        if "input_ids" not in self._inputs or self._inputs.keys() - _INPUTS:
            raise EngineError(
                f"onnx: {path} takes {', '.join(self._inputs)}; only {', '.join(sorted(_INPUTS))} are known"
            )
        self._output, rank = _choose_output(path, self._session.get_outputs(), wants_states=pooling is not None)
        self._pooling = (pooling or _pooling(path)) if rank == 3 else None
        self._normalize = normalize
        config = _read_json(path, "config.json")
        self.max_model_len = _max_model_len(path, config, wanted=max_model_len)
        self.vocab_size = int(config.get("vocab_size") or self._count_ids())
        self.dimensions = self.embed([np.zeros(1, np.int32).tobytes()]).shape[1]  # also the warm-up

    def embed(self, texts: Sequence[bytes]) -> Vectors:
        """The texts' vectors, one a row, in one run. Each text is int32 ids, packed, at least one."""
        ids = [np.frombuffer(text, np.int32) for text in texts]
        lengths = np.array([len(each) for each in ids])
        input_ids = np.zeros((len(ids), lengths.max()), np.int64)
        for row, each in zip(input_ids, ids, strict=True):
            row[: len(each)] = each
        mask = np.arange(input_ids.shape[1]) < lengths[:, None]
        output = self._run(input_ids, mask)
        vectors = np.asarray(_pool(output, mask, lengths, self._pooling), np.float32)
        return unit(vectors) if self._normalize else vectors

    def cut(self, vector: Vectors, dimensions: int) -> Vectors:
        """The vector's first dimensions, scaled to length 1 again where this model's vectors are."""
        return unit(vector[:dimensions]) if self._normalize else vector[:dimensions]

    def is_finite(self, vector: Vectors) -> bool:
        """Whether no element is NaN or infinite."""
        return bool(np.isfinite(vector).all())

    def _run(self, input_ids: NDArray[np.int64], mask: NDArray[np.bool_]) -> NDArray[Any]:
        feeds = {"input_ids": input_ids, "attention_mask": mask, "token_type_ids": np.zeros_like(input_ids)}
        inputs = {name: feeds[name].astype(kind, copy=False) for name, kind in self._inputs.items()}
        return self._session.run([self._output], inputs, self._quiet)[0]

    def _count_ids(self) -> int:
        """The vocabulary's size, by trying: the embedding's lookup fails from there on."""
        low, high = 1, _MOST_IDS  # 0 is an id; `low` are known to be ids, `high` is none
        while low < high:
            middle = (low + high) // 2
            try:
                self._run(np.array([[middle]]), np.ones((1, 1), np.bool_))
            except Exception:  # onnxruntime's own classes, which are many
                high = middle
            else:
                low = middle + 1
        return low


def unit(vectors: Vectors) -> Vectors:
    """Each vector scaled to length 1; one of zeros stays one of zeros."""
    with np.errstate(all="ignore"):  # what is not finite stays so, and is found by is_finite
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
        return vectors / np.maximum(lengths, np.float32(1e-12))


def _pool(
    output: NDArray[Any], mask: NDArray[np.bool_], lengths: NDArray[np.int64], pooling: str | None
) -> NDArray[Any]:
    match pooling:
        case None:
            return output
        case "cls":
            return output[:, 0]
        case "last":
            return output[np.arange(len(output)), lengths - 1]
        case _:
            weights = mask[:, None, :].astype(output.dtype)
            return (weights @ output)[:, 0] / lengths[:, None].astype(output.dtype)


def _open_session(runtime: Any, path: Path, *, threads: int | None) -> Any:
    options = runtime.SessionOptions()
    # The API servers share the machine: one CPU is theirs, and no thread spins between steps.
    options.intra_op_num_threads = threads or min(max(len(os.sched_getaffinity(0)) - 1, 1), 8)
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes, which are many
        reason = str(error).strip().splitlines()[-1]
        raise EngineError(f"onnx: cannot load {path}: {reason}") from error


def _choose_output(path: Path, outputs: Sequence[Any], *, wants_states: bool) -> tuple[str, int]:
    """The name and rank of the output to use: pooled vectors if the model makes them, else states to pool."""
    ranks = {each.name: len(each.shape) for each in outputs}
    pooled = [name for name in _POOLED_OUTPUTS if ranks.get(name) == 2]
    states = [name for name, rank in ranks.items() if rank == 3]
    chosen = states + pooled if wants_states else pooled + states
    if not chosen:
        raise EngineError(f"onnx: {path} has neither token states nor a sentence embedding among its outputs")
    return chosen[0], ranks[chosen[0]]


def _pooling(path: Path) -> str:
    config = _read_json(path, "1_Pooling/config.json")
    if not config or config.get("pooling_mode_mean_tokens"):
        return "mean"
    if config.get("pooling_mode_cls_token"):
        return "cls"
    if config.get("pooling_mode_lasttoken"):
        return "last"
    raise EngineError(f"onnx: the pooling of {path} is none of {', '.join(POOLINGS)}; choose one")


def _max_model_len(path: Path, config: dict[str, Any], *, wanted: int | None) -> int:
    positions = config.get("max_position_embeddings")
    if positions is None:
        return wanted or 512
    most = int(positions) - _RESERVED_POSITIONS.get(str(config.get("model_type")), 0)
    if wanted is not None and wanted > most:
        raise EngineError(f"onnx: max_model_len {wanted} exceeds the {most} positions of {path}")
    return wanted or most


def _read_json(model: Path, name: str) -> dict[str, Any]:
    """A file beside the model, or one level up from onnx/, where exports put theirs; empty if there is none."""
    folders = [model.parent, model.parent.parent] if model.parent.name == "onnx" else [model.parent]
    for folder in folders:
        try:
            return json.loads((folder / name).read_text("utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise EngineError(f"onnx: cannot read {folder / name}: {error}") from error
    return {}
