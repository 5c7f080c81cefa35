"""Flags and configuration files: the same names, one outcome."""

from pathlib import Path

import pytest

from apiserver.commands.engine import core_argv
from apiserver.config import RemoteEngineSettings
from apiserver.flags import ServeSettings, make_parsers, parse_engine, parse_serve
from apiserver.plan import resolve

ALL_CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
ENGINE_CONFIGS = [path for path in ALL_CONFIGS if path.name.startswith("engine-")]
CONFIGS = [path for path in ALL_CONFIGS if path not in ENGINE_CONFIGS]


def parsed(*words: str) -> ServeSettings:
    return parse_serve(make_parsers(), ["serve", *words])


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the parser says when it exits."""
    with pytest.raises(SystemExit) as end:
        parsed(*words)
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_every_configuration_that_we_ship_loads(config: Path) -> None:
    settings = parsed("--config", str(config))
    assert settings.model
    assert settings.listen.port == 8000


@pytest.mark.parametrize("config", ENGINE_CONFIGS, ids=lambda path: path.name)
def test_every_configuration_of_an_engine_alone_loads(config: Path) -> None:
    settings = parse_engine(make_parsers(), ["engine", "--config", str(config)])
    assert settings.model
    assert settings.listen.startswith("tcp://")
    assert settings.keys


def test_the_names_of_vllm_and_sglang_work() -> None:
    settings = parsed(
        "m", "-asc", "3", "--host", "::1", "--port", "9", "--served-model-name", "a", "b", "--max-model-len", "10"
    )
    assert (settings.api_server_count, settings.listen.host, settings.listen.port) == (3, "::1", 9)
    assert (settings.served_model_name, settings.max_model_len) == (("a", "b"), 10)
    settings = parsed("--model-path", "m", "--tokenizer-worker-num", "5", "--context-length", "7")
    assert (settings.model, settings.api_server_count, settings.max_model_len) == ("m", 5, 7)


def test_an_idle_connection_is_kept_for_longer_than_proxies_keep_theirs() -> None:  # kserve#5446, llm-d#1564
    assert parsed("m").http.keep_alive_seconds > 90


def test_aliases_are_a_list_in_the_file_and_on_the_command_line(tmp_path: Path) -> None:
    assert parsed("m", "--model-alias", "claude-*", "mine").model_alias == ("claude-*", "mine")
    config = tmp_path / "c.yaml"
    config.write_text("model: m\nmodel-alias: ['claude-*']\n")
    assert parsed("--config", str(config)).model_alias == ("claude-*",)
    assert parsed("m").model_alias == ()


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("model: m\nport: 1\napi_server_count: 2\nstrict-fields: true\napi-key: [one, two]\n")
    settings = parsed("--config", str(config), "--port", "3")
    assert (settings.model, settings.listen.port, settings.api_server_count) == ("m", 3, 2)
    assert settings.strict_fields
    assert settings.access.api_keys == ("one", "two")


def test_what_stands_after_the_dashes_goes_to_the_engine_untouched(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("model: m\nengine_args: [--step-ms, 5]\n")
    assert parsed("m", "--", "--port", "x").engine_arguments == ("--port", "x")
    assert parsed("--config", str(config), "--", "--mode", "echo").engine_arguments == (
        "--step-ms",
        "5",
        "--mode",
        "echo",
    )


def test_vllms_json_list_of_origins_is_read() -> None:
    assert parsed("m", "--allowed-origins", '["https://a", "https://b"]').access.allowed_origins == (
        "https://a",
        "https://b",
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no-such-thing: 1", "no-such-thing"),
        ("port: many", "port"),
        ("strict-fields: maybe", "strict-fields"),
        ("engine: steam", "engine"),
        ("- a list", "mapping"),
        ("port: [", "c.yaml"),
    ],
)
def test_a_wrong_setting_in_the_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, complaint: str
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"{text}\n")
    assert complaint in refused(capsys, "m", "--config", str(config))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "which MODEL"),
        (("m", "--api-server-count", "0"), "--api-server-count"),
        (("m", "--ssl-certfile", "x"), "--ssl-keyfile"),
        (("m", "--root-path", "x"), "--root-path"),
        (("m", "--api-key", ""), "--api-key"),
        (("m", "--admin-api-key", ""), "--admin-api-key"),
        (("m", "--config", "/no/such/file"), "--config"),
        (("m", "--no-such-flag"), "--no-such-flag"),
    ],
)
def test_wrong_arguments_are_told_in_a_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str
) -> None:
    assert complaint in refused(capsys, *words)


def test_parsers_are_chosen_by_the_template_unless_they_are_named() -> None:
    settings = parsed("m", "--enable-auto-tool-choice")
    assert (settings.tool_call_parser, settings.reasoning_parser) == ("auto", "auto")
    settings = parsed("m", "--tool-call-parser", "hermes", "--reasoning-parser", "none")
    assert (settings.tool_call_parser, settings.reasoning_parser) == ("hermes", "none")


def test_what_becomes_of_a_dead_engine_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    care = parsed("m").engine_care
    assert (care.restart, care.restart_limit, care.stall_seconds, care.heartbeat_seconds) == ("on-failure", 5, 120, 5)
    words = ("--engine-restart", "never", "--engine-restart-limit", "2", "--engine-restart-window", "60")
    care = parsed("m", *words, "--engine-heartbeat-timeout", "9", "--engine-load-timeout", "7").engine_care
    assert (care.restart, care.restart_limit, care.restart_window_seconds) == ("never", 2, 60)
    assert (care.heartbeat_seconds, care.load_seconds) == (9, 7)
    assert "there is --engine-restart never" in refused(capsys, "m", "--engine-restart-limit", "0")
    for name in ("heartbeat-timeout", "stall-timeout", "load-timeout", "restart-window"):
        for value in ("0.5", "nan", "-1"):
            text = refused(capsys, "m", f"--engine-{name}={value}")
            assert f"--engine-{name} must be at least 1 second" in text
    assert "--max-requests-per-worker" in refused(capsys, "m", "--max-requests-per-worker=-1")


def test_an_engine_on_another_machine() -> None:
    remote = parsed("m", "--engine-address", "tcp://h:1", "--keys", "k", "--engine-link-timeout", "3").remote
    assert remote == RemoteEngineSettings("tcp://h:1", "k", 3.0)
    assert parsed("m").remote is None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--keys", "k"), "--keys are for --engine-address"),
        (("--engine-address", "tcp://h:1", "--", "--x"), "belong to apiserver engine"),
        (("--engine-address", "tcp://h:1", "--engine-link-timeout", "0.5"), "at least 1 second"),
    ],
)
def test_flags_that_do_not_fit_an_engine_elsewhere(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str
) -> None:
    assert complaint in refused(capsys, "m", *words)


def test_the_engine_alone_is_told_the_same_things(capsys: pytest.CaptureFixture[str]) -> None:
    settings = parse_engine(
        make_parsers(),
        ["engine", "m", "--listen", "tcp://*:1", "--keys", "k", "--context-length", "7", "--", "--port", "x"],
    )
    assert (settings.model, settings.engine, settings.listen, settings.keys) == ("m", "auto", "tcp://*:1", "k")
    assert (settings.max_model_len, settings.link_timeout, settings.engine_arguments) == (7, 10.0, ("--port", "x"))
    with pytest.raises(SystemExit):
        parse_engine(make_parsers(), ["engine", "m", "--listen", "tcp://*:1", "--link-timeout", "0"])
    assert "at least 1 second" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_engine(make_parsers(), ["engine", "m"])
    assert "--listen tcp://HOST:PORT are needed" in capsys.readouterr().err


def test_the_core_of_an_engine_alone_gets_what_it_needs() -> None:
    words = ["engine", "sim", "--engine", "sim", "--listen", "tcp://*:1", "--keys", "k", "--max-model-len", "7"]
    argv = core_argv(parse_engine(make_parsers(), [*words, "--", "--mode", "echo"]))
    assert argv[1:3] == ["-m", "engine_bridge"]
    at = argv.index("--")
    assert argv[at + 1 :] == ["--max-model-len", "7", "--mode", "echo"]
    assert argv[argv.index("--address") + 1] == "tcp://*:1"
    assert argv[argv.index("--keys") + 1] == "k"


def test_an_engine_alone_is_told_its_context_by_its_own_flag() -> None:
    words = ["engine", "Qwen/Qwen3-8B", "--listen", "tcp://*:1", "--max-model-len", "70"]
    argv = core_argv(parse_engine(make_parsers(), words))
    assert argv[argv.index("--") + 1 :] == ["--context-length", "70"]


def test_a_demo_model_served_from_elsewhere_needs_only_its_tokenizer() -> None:
    plan = resolve(parsed("minilm", "--engine-address", "tcp://127.0.0.1:1"))
    assert (plan.name, plan.engine) == ("minilm", "onnx")
    assert plan.tokenizer is not None
    assert (Path(plan.tokenizer) / "tokenizer.json").is_file()


def test_a_directory_without_weights_serves_an_engine_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    plan = resolve(parsed(str(tmp_path / "my-model"), "--engine-address", "tcp://127.0.0.1:1"))
    assert (plan.name, plan.engine, plan.tokenizer) == ("my-model", "remote", str(tmp_path / "my-model"))
    (tmp_path / "model.gguf").touch()
    assert resolve(parsed(str(tmp_path / "model.gguf"), "--engine-address", "tcp://127.0.0.1:1")).name == "model"
    plan = resolve(parsed("org/name", "--tokenizer", "t", "--engine-address", "tcp://127.0.0.1:1"))
    assert (plan.name, plan.tokenizer) == ("org/name", "t")
