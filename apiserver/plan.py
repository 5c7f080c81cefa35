"""What is served: the model's files, its tokenizer and chat template, and the engine's command line."""

import sys
from dataclasses import dataclass
from pathlib import Path

from apiserver import models
from apiserver.fit import Vocabulary
from apiserver.flags import ServeSettings
from apiserver.launch_error import LaunchError
from apiserver.pipeline.escape import Escaper
from apiserver.pipeline.preprocess import Preprocessor
from apiserver.tokenizer import Encoder, Tokenizer
from apiserver.tokenizer.backends import TokenizerChoice, choose
from apiserver.tokenizer.byte import CHAT_TEMPLATE, byte_tokenizer_json
from apiserver.tokenizer.source import TokenizerFiles, prepare
from apiserver.tokenizer.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class Plan:
    """What is served: the engine with its model, and where the tokenizer is (None: one token a byte)."""

    name: str
    path: str
    engine: str
    tokenizer: str | None
    chat_template: str | None = None
    engine_arguments: tuple[str, ...] = ()


def resolve(settings: ServeSettings) -> Plan:
    """Which files, fetched if need be. Raises ModelError."""
    if settings.engine == "sim":
        return Plan(settings.model, settings.model, "sim", settings.tokenizer)
    if settings.remote is not None:
        return _resolve_text(settings)
    model = models.resolve(settings.model, engine=None if settings.engine == "auto" else settings.engine)
    models.check_installed(model.engine)
    if model.demo is not None:
        models.fetch(model.demo.name)
    demo = model.demo
    if demo is None:
        return Plan(model.name, model.path, model.engine, settings.tokenizer or model.tokenizer)
    template = models.data_file(demo.chat_template) if demo.chat_template is not None else None
    tokenizer = settings.tokenizer or model.tokenizer
    return Plan(model.name, model.path, model.engine, tokenizer, template, demo.engine_arguments)


def _resolve_text(settings: ServeSettings) -> Plan:
    """Only what turns text into ids: the weights are where the engine is. Raises ModelError."""
    name, engine = settings.model, "remote" if settings.engine == "auto" else settings.engine
    demo = models.DEMO_MODELS.get(name)
    if demo is None:
        path = Path(name).expanduser()
        short = path.resolve().name if path.is_dir() else path.stem if path.is_file() else name
        return Plan(short, name, engine, settings.tokenizer or str(path))
    if settings.tokenizer is None and demo.tokenizer is None:
        models.fetch(name)  # its tokenizer is inside
    tokenizer = settings.tokenizer or models.resolve(name).tokenizer
    template = models.data_file(demo.chat_template) if demo.chat_template is not None else None
    return Plan(name, name, demo.engine, tokenizer, template)


@dataclass(frozen=True, slots=True)
class ModelText:
    """What the model's text is made of: the tokenizer choice, its files, and the chat template's source."""

    choice: TokenizerChoice
    files: TokenizerFiles | None
    template: str | None
    escape_special_tokens: bool = False

    def preprocessor(self) -> Preprocessor:
        """A new one, with backends and a template environment of its own. Raises TemplateError or LaunchError."""
        tokenizer, encoder = self.choice.make()
        escaper = self._escaper(tokenizer, encoder) if self.escape_special_tokens else None
        return Preprocessor(tokenizer, encoder, self.chat_template(), self._special_tokens, escaper)

    def _escaper(self, tokenizer: Tokenizer, encoder: Encoder) -> Escaper:
        try:
            return Escaper(tokenizer, encoder)
        except ValueError as error:
            raise LaunchError(f"--escape-special-tokens: {error}") from error

    def chat_template(self) -> ChatTemplate | None:
        """Compiled, with an environment of its own. Raises TemplateError."""
        return ChatTemplate(self.template, self._special_tokens) if self.template is not None else None

    def vocabulary(self, tokenizer: Tokenizer) -> Vocabulary:
        """What an engine must be able to take."""
        ends = self.files.eos_token_ids if self.files is not None else ()
        return Vocabulary.of(tokenizer.vocab_size, tokenizer.added_tokens, ends)

    @property
    def _special_tokens(self) -> dict[str, str]:
        return self.files.special_tokens if self.files is not None else {}


def read_text(settings: ServeSettings, plan: Plan) -> ModelText:
    """Raises TokenizerError, or LaunchError for a chat template that cannot be read."""
    if plan.tokenizer is None:  # only the simulated engine speaks without one: one token a byte
        choice, files, template = TokenizerChoice(byte_tokenizer_json(), "hf", "one token a byte"), None, CHAT_TEMPLATE
    else:
        cache = models.cache_root() / "tokenizers"
        files = prepare(plan.tokenizer, cache)
        choice = choose(files.tokenizer_json, settings.tokenizer_backend, cache)
        template = files.chat_template
    better = settings.chat_template or plan.chat_template
    template = _read_template(better) if better is not None else template
    return ModelText(choice, files, template, settings.escape_special_tokens)


def _read_template(source: str) -> str:
    """A file, or the template itself (as vLLM has it)."""
    if "{{" in source or "{%" in source:
        return source
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # the second: no UTF-8, or a NUL in the path
        raise LaunchError(f"--chat-template {source}: {error}") from error


def engine_argv(
    settings: ServeSettings,
    model: Plan,
    text: ModelText,
    vocab_size: int,
    address: str,
    epoch: int,
    row_descriptor: int,
) -> list[str]:
    """The engine core's command line; what the user wrote after `--` comes last, so it wins."""
    ours: list[str] = []
    if model.engine == "sim":
        ours += ["--vocab-size", str(vocab_size)]
        if text.files is not None and text.files.eos_token_ids:
            ours += ["--eos-token-id", str(text.files.eos_token_ids[0])]
    if settings.max_model_len is not None:
        ours += ["--context-length" if model.engine == "sglang" else "--max-model-len", str(settings.max_model_len)]
    if settings.tokenizer is not None and model.engine == "sglang":
        ours += ["--tokenizer-path", settings.tokenizer]
    ours += model.engine_arguments
    return [
        sys.executable,
        "-m",
        "engine_bridge",
        "--engine",
        model.engine,
        "--model",
        model.path,
        "--address",
        address,
        "--epoch",
        str(epoch),
        "--status-fd",
        str(row_descriptor),
        *(() if settings.affinity is None else ("--cpus", ",".join(map(str, settings.affinity.engine)))),
        "--",
        *ours,
        *settings.engine_arguments,
    ]
