"""Any source becomes the same few files: at once where it has them, through a child and a cache where it has not."""

import json
import os
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer

from apiserver.tokenizer import byte, source
from apiserver.tokenizer.convert import convert
from apiserver.tokenizer.source import TokenizerError, join_templates, prepare
from apiserver.tokenizer.template import ChatTemplate


def write_model(directory: Path, **files: Any) -> Path:
    """A model directory with the byte tokenizer, and the given JSON files."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(byte.byte_tokenizer_json())
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def write_gguf(path: Path, **values: Any) -> Path:
    vocab = json.loads(byte.byte_tokenizer_json())["model"]["vocab"] | byte.SPECIAL_TOKENS
    kinds = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*vocab, "th"])
    writer.add_token_types(kinds)
    writer.add_token_merges(["t h"])
    for name, value in {"context_length": 64, "bos_token_id": 257, "eos_token_id": 258, **values}.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(subprocess, "run", refuse)


@pytest.mark.usefixtures("no_child")
class TestDirectory:
    def test_is_read_where_it_lies(self, tmp_path: Path) -> None:
        model = write_model(
            tmp_path / "model",
            tokenizer_config={
                "bos_token": None,
                "eos_token": "<|im_end|>",
                "pad_token": {"content": "<|endoftext|>", "lstrip": False},
                "chat_template": "{{ messages }}",
                "model_max_length": 131072,
            },
            generation_config={"eos_token_id": [258, 256]},
            config={"eos_token_id": 7, "max_position_embeddings": 40960},
        )
        files = prepare(str(model), tmp_path / "cache")
        assert files.tokenizer_json == model / "tokenizer.json"
        assert files.chat_template == "{{ messages }}"
        assert files.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
        assert files.eos_token_ids == (258, 256)
        assert files.model_max_length == 40960
        assert not (tmp_path / "cache").exists()

    def test_may_hold_nothing_else(self, tmp_path: Path) -> None:
        files = prepare(str(write_model(tmp_path)), tmp_path)
        assert files.chat_template is None
        assert files.special_tokens == {}
        assert files.eos_token_ids == ()
        assert files.model_max_length is None

    @pytest.mark.parametrize(
        ("configs", "expected"),
        [
            ({"config": {"eos_token_id": 256}}, (256,)),
            ({"generation_config": {}, "config": {"eos_token_id": [256, 258]}}, (256, 258)),
            ({"generation_config": {"eos_token_id": 256}, "config": {"eos_token_id": 7}}, (256,)),
            ({"tokenizer_config": {"eos_token": "<|im_end|>"}}, (258,)),
            ({"tokenizer_config": {"eos_token": "<|im_end|>"}, "config": {"eos_token_id": 256}}, (258, 256)),
            ({"special_tokens_map": {"eos_token": {"content": "<|endoftext|>"}}}, (256,)),
            ({"tokenizer_config": {"eos_token": "<not a token>"}, "config": {"eos_token_id": None}}, ()),
        ],
    )
    def test_end_tokens(self, configs: dict[str, Any], expected: tuple[int, ...], tmp_path: Path) -> None:
        assert prepare(str(write_model(tmp_path, **configs)), tmp_path).eos_token_ids == expected

    @pytest.mark.parametrize(
        ("configs", "expected"),
        [
            ({"tokenizer_config": {"model_max_length": 1000000000000000019884624838656}}, None),
            ({"tokenizer_config": {"model_max_length": 1e30}, "config": {"max_position_embeddings": 512}}, 512),
            ({"tokenizer_config": {"model_max_length": 512}, "config": {"max_position_embeddings": 514}}, 512),
            ({"config": {"text_config": {"max_position_embeddings": 8192}}}, 8192),
        ],
    )
    def test_length(self, configs: dict[str, Any], expected: int | None, tmp_path: Path) -> None:
        assert prepare(str(write_model(tmp_path, **configs)), tmp_path).model_max_length == expected

    def test_a_template_file_wins(self, tmp_path: Path) -> None:
        model = write_model(tmp_path, tokenizer_config={"chat_template": "from the configuration"})
        (model / "chat_template.jinja").write_text("from the file")
        assert prepare(str(model), tmp_path).chat_template == "from the file"

    def test_named_templates_become_one(self, tmp_path: Path) -> None:
        named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
        model = write_model(tmp_path, tokenizer_config={"chat_template": named})
        assert prepare(str(model), tmp_path).chat_template == join_templates({"default": "plain", "tool_use": "tools"})

    def test_additional_templates_become_one(self, tmp_path: Path) -> None:
        model = write_model(tmp_path)
        (model / "chat_template.jinja").write_text("plain")
        (model / "additional_chat_templates").mkdir()
        (model / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
        assert prepare(str(model), tmp_path).chat_template == join_templates({"default": "plain", "tool_use": "tools"})

    @pytest.mark.parametrize("name", ["tokenizer_config", "config", "generation_config", "special_tokens_map"])
    def test_broken_json_is_named(self, name: str, tmp_path: Path) -> None:
        (write_model(tmp_path) / f"{name}.json").write_text("{")
        with pytest.raises(TokenizerError, match=rf"{name}\.json is not JSON: "):
            prepare(str(tmp_path), tmp_path)

    @pytest.mark.parametrize("content", ["{}", '{"model": {}}'])
    def test_added_tokens_may_be_absent(self, content: str, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text(content)
        (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "x"}')
        assert prepare(str(tmp_path), tmp_path).eos_token_ids == ()

    def test_a_file_that_is_not_text_is_named(self, tmp_path: Path) -> None:
        (write_model(tmp_path) / "chat_template.jinja").write_bytes(b"\xff\xfe")
        with pytest.raises(TokenizerError, match=r"chat_template\.jinja cannot be read: "):
            prepare(str(tmp_path), tmp_path)

    def test_a_broken_tokenizer_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"id"')
        with pytest.raises(TokenizerError, match=r"tokenizer\.json is not a tokenizer\.json: "):
            prepare(str(tmp_path), tmp_path)

    @pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c", "two words", ""])
    def test_no_path_and_no_hub_id(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(TokenizerError, match="neither a path that exists nor the name of a model on the hub"):
            prepare(name, tmp_path)


class TestConversion:
    def test_a_directory_with_other_files_is_converted_by_transformers(self, tmp_path: Path) -> None:
        model = tmp_path / "model"
        model.mkdir()
        vocab = json.loads(byte.byte_tokenizer_json())["model"]["vocab"] | {"<|endoftext|>": 256, "th": 257}
        (model / "vocab.json").write_text(json.dumps(vocab))
        (model / "merges.txt").write_text("#version: 0.2\nt h\n")
        (model / "config.json").write_text('{"model_type": "gpt2", "max_position_embeddings": 1024}')
        (model / "generation_config.json").write_text('{"eos_token_id": [256, 10]}')
        named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
        config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", "chat_template": named}
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        files = prepare(str(model), tmp_path / "cache")
        assert Tokenizer.from_file(str(files.tokenizer_json)).encode("thé<|endoftext|>").ids == [257, 195, 169, 256]
        assert files.special_tokens["eos_token"] == "<|endoftext|>"
        assert files.eos_token_ids == (256, 10)
        assert files.model_max_length == 1024
        assert files.chat_template == join_templates({"default": "plain", "tool_use": "tools"})

    def test_a_tokenizer_json_is_taken_as_it_is(self, tmp_path: Path) -> None:
        model = write_model(tmp_path / "model", tokenizer_config={"eos_token": "<|im_end|>", "chat_template": "x"})
        convert(str(model), tmp_path / "out")
        assert (tmp_path / "out" / "tokenizer.json").read_text() == byte.byte_tokenizer_json()
        assert (tmp_path / "out" / "chat_template.jinja").read_text() == "x"
        assert json.loads((tmp_path / "out" / "tokenizer_meta.json").read_text()) == {
            "special_tokens": {"eos_token": "<|im_end|>"},
            "eos_token_ids": [258],
            "model_max_length": None,
            "vocab_size": 259,
            "add_bos": False,
        }

    def test_a_gguf_file_is_converted_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write_gguf(tmp_path / "m.gguf", chat_template="{{ bos_token }}é", add_bos_token=True)
        files = prepare(str(path), tmp_path / "cache")
        assert files.chat_template == "{{ bos_token }}é"
        assert files.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
        assert files.eos_token_ids == (258, 256)
        assert files.model_max_length == 64
        assert Tokenizer.from_file(str(files.tokenizer_json)).encode("é<|im_end|>").ids == [257, 195, 169, 258]
        facts = json.loads((files.tokenizer_json.parent / source.META).read_text())
        assert facts["add_bos"]
        assert facts["vocab_size"] == 260
        assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [files.tokenizer_json.parent.name]

        monkeypatch.setattr(subprocess, "run", None)
        assert prepare(str(path), tmp_path / "cache") == files
        monkeypatch.chdir(tmp_path)
        assert prepare("m.gguf", tmp_path / "cache") == files

    def test_a_changed_file_is_converted_anew(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "m.gguf", chat_template="one")
        assert prepare(str(path), tmp_path / "cache").chat_template == "one"
        before = path.stat()
        write_gguf(path, chat_template="two")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        assert prepare(str(path), tmp_path / "cache").chat_template == "two"

    def test_two_at_once_make_one_entry(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write_gguf(tmp_path / "m.gguf")
        run = subprocess.run

        def overtaken(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(subprocess, "run", run)
            prepare(str(path), tmp_path / "cache")  # another supervisor, which finishes first
            return run(*arguments, **options)

        monkeypatch.setattr(subprocess, "run", overtaken)
        assert prepare(str(path), tmp_path / "cache").eos_token_ids == (258, 256)
        assert len(list((tmp_path / "cache").iterdir())) == 1

    def test_a_half_written_entry_is_replaced(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "m.gguf")
        entry = prepare(str(path), tmp_path / "cache").tokenizer_json.parent
        (entry / source.META).unlink()
        assert prepare(str(path), tmp_path / "cache").eos_token_ids == (258, 256)

    def test_a_failure_is_one_line_and_leaves_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "m.gguf").write_bytes(b"what is this?")
        with pytest.raises(TokenizerError, match=r"m\.gguf cannot be read as a GGUF file: .+") as caught:
            prepare(str(tmp_path / "m.gguf"), tmp_path / "cache")
        assert "\n" not in str(caught.value)
        assert list((tmp_path / "cache").iterdir()) == []

    def test_a_directory_without_a_tokenizer_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
        with pytest.raises(TokenizerError, match=r"transformers cannot load a tokenizer from .+; pass --tokenizer"):
            prepare(str(tmp_path / "model"), tmp_path / "cache")

    @pytest.mark.parametrize("reachable", [True, False])
    def test_a_hub_model_is_fetched_or_found_in_the_cache(
        self, reachable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = write_model(tmp_path / "snapshot", tokenizer_config={"chat_template": "from the hub"})
        asked: list[bool] = []

        def model_info(*arguments: object, timeout: float) -> None:
            if not reachable:
                raise OSError("no route")

        def snapshot_download(name: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
            assert name == "somebody/model"
            asked.append(local_files_only)
            return str(model)

        monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
        convert("somebody/model", tmp_path / "out")
        assert asked == [not reachable]
        assert (tmp_path / "out" / "chat_template.jinja").read_text() == "from the hub"

    def test_an_unreachable_hub_is_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: nothing listens there
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        with pytest.raises(TokenizerError, match=r"the hub gives no model: it cannot be reached: .+") as caught:
            prepare("nobody/nothing", tmp_path / "cache")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("token", ["", "hf_mine"])
    def test_a_name_that_the_hub_does_not_know_is_not_the_networks_fault(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
    ) -> None:
        with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as hub:  # it knows no such path: 404
            threading.Thread(target=hub.serve_forever).start()
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
            monkeypatch.setenv("HF_TOKEN", token)
            try:
                with pytest.raises(TokenizerError, match="the hub gives no model of that name") as caught:
                    prepare("nobody/nothing", tmp_path / "cache")
            finally:
                hub.shutdown()
        assert ("needs HF_TOKEN" in str(caught.value)) == (not token)

    def test_a_hanging_child_is_given_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(source, "_CHILD_SECONDS", 0.001)
        with pytest.raises(TokenizerError, match="no result after"):
            prepare(str(write_gguf(tmp_path / "m.gguf")), tmp_path / "cache")

    def test_the_command_line_says_how_it_is_used(self) -> None:
        child = subprocess.run(
            [sys.executable, "-m", "apiserver.tokenizer.convert"], capture_output=True, text=True, check=False
        )
        assert child.returncode == 1
        assert child.stderr == "usage: python -m apiserver.tokenizer.convert SOURCE DIRECTORY\n"


def test_the_supervisor_imports_none_of_it() -> None:
    code = (
        "import sys, apiserver.tokenizer.source\n"
        "heavy = {'transformers', 'gguf', 'numpy', 'tokenizers', 'huggingface_hub', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert child.stderr == ""


@pytest.mark.parametrize("default", ["plain {{ tools }}", "\n  plain\n", "{% if true %}\n  x{% endif %}\n"])
@pytest.mark.parametrize("tool_use", ["tools {{ tools }}", "  \ntools  \n\n", "{% set x = 1 %}\n{{ x }}\n"])
def test_a_joined_template_is_the_one_or_the_other(default: str, tool_use: str) -> None:
    def render(template: str, tools: list[dict[str, Any]] | None) -> str:
        return ChatTemplate(template, {}).render(
            [{"role": "user", "content": "x"}],
            tools=tools,
            add_generation_prompt=False,
            continue_final_message=False,
            variables={},
        )

    joined = join_templates({"tool_use": tool_use, "default": default, "rag": "unused"})
    assert joined is not None
    assert render(joined, None) == render(default, None)
    assert render(joined, []) == render(tool_use, [])
    assert render(joined, [{"type": "function"}]) == render(tool_use, [{"type": "function"}])


@pytest.mark.parametrize(
    ("named", "expected"), [({}, None), ({"default": "a"}, "a"), ({"tool_use": "b"}, "b"), ({"rag": "c"}, None)]
)
def test_a_single_template_stays_as_it_is(named: dict[str, str], expected: str | None) -> None:
    assert join_templates(named) == expected
