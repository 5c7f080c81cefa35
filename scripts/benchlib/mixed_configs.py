"""The configurations of our pool that `bench_mixed` compares, as flags of `apiserver serve`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from benchlib.pool import ServeFlags

MODES = ("arrival", "ready", "inline")
"""How preprocessing is ordered, or `inline`: never off the event loop."""

_BACKEND, _ORDER, _INLINE = "--tokenizer-backend", "--preprocess-order", "--preprocess-inline"


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration; None is whatever the pool does by itself."""

    api_server_count: int | None
    backend: str | None = None
    mode: str | None = None

    @property
    def name(self) -> str:
        count = self.api_server_count
        servers = "" if count is None else f"{count} API server{'' if count == 1 else 's'}"
        return ", ".join(part for part in (servers, self.backend, self.mode) if part) or "server"

    def flags(self) -> tuple[str, ...]:
        """What to say for the backend and the mode."""
        said: list[str] = []
        if self.backend is not None:
            said += [_BACKEND, self.backend]
        if self.mode == "inline":
            said.append(_INLINE)
        elif self.mode is not None:
            said += [_ORDER, self.mode]
        return tuple(said)


def expand(
    counts: Sequence[int], backends: Sequence[str], modes: Sequence[str], serve: ServeFlags
) -> tuple[list[Config], list[str]]:
    """Every combination that this `apiserver serve` has flags for, and what it does not have, in sentences."""
    notes: list[str] = []
    known_backends = [backend for backend in backends if serve.has(_BACKEND, backend)]
    known_modes = [mode for mode in modes if (serve.has(_INLINE) if mode == "inline" else serve.has(_ORDER, mode))]
    for flag, wanted, known in ((_BACKEND, backends, known_backends), (_ORDER, modes, known_modes)):
        missing = [value for value in wanted if value not in known]
        if missing:
            shown = _INLINE if missing == ["inline"] else f"{flag} {', '.join(missing)}"
            notes.append(f"this apiserver has no {shown}: not measured")
    choices = product(counts, known_backends or [None], known_modes or [None])
    return [Config(count, backend, mode) for count, backend, mode in choices], notes
