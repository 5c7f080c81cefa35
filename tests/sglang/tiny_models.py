"""Tiny models with random weights and the tokenizers of real ones, made by transformers, once, in the user's cache."""

# pyright: reportMissingImports=false

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from apiserver import models
from tests.real_tokenizers import tokenizer_directory

CPU_FLAGS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-overlap-schedule", "--sleep-on-idle", "--max-total-tokens", "20000", "--max-running-requests", "64"),
    *("--dtype", "float32", "--constrained-json-disable-any-whitespace"),  # a random model loves white space
)
"""What makes SGLang run without a GPU; float32, so that its numbers can be compared."""
BERT_FLAGS = (*("--disable-radix-cache", "--chunked-prefill-size", "-1", "--mem-fraction-static", "0.3"),)
CONTEXT = 1024
_VERSION = "1"  # of what is made here


def directory(name: str) -> Path:
    """llama, qwen2 or bert, as a directory that transformers and SGLang read."""
    place = models.cache_root() / "sglang-tests" / f"{name}-{_VERSION}"
    if not (place / "config.json").exists():
        unfinished = place.with_name(f"{place.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        _MAKERS[name](unfinished)
        unfinished.rename(place)
    return place


def load(name: str) -> Any:
    """The same model in transformers."""
    import transformers

    kinds = {"llama": transformers.AutoModelForCausalLM, "qwen2": transformers.AutoModelForCausalLM}
    model = kinds.get(name, transformers.AutoModel).from_pretrained(directory(name), dtype="float32")
    return model.eval()


def _copy_tokenizer(name: str, place: Path) -> int:
    """Returns how many ids it has."""
    source = tokenizer_directory(name)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (source / file).exists():
            shutil.copyfile(source / file, place / file)
    document = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    ids = [*vocabulary.values(), *(token["id"] for token in document.get("added_tokens", []))]
    return max(ids) + 1


_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,  # near ties are rarer than with 0.02
}


def _make_llama(place: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    vocab_size = _copy_tokenizer("mistral", place)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size, num_key_value_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=0, **_SIZES
    )
    LlamaForCausalLM(config).save_pretrained(place)


def _make_qwen2(place: Path) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    vocab_size = _copy_tokenizer("qwen3", place)
    torch.manual_seed(1)
    end = _id_of(place, "<|im_end|>")
    config = Qwen2Config(
        vocab_size=vocab_size,
        num_key_value_heads=2,
        bos_token_id=_id_of(place, "<|endoftext|>"),
        eos_token_id=end,
        pad_token_id=_id_of(place, "<|endoftext|>"),
        tie_word_embeddings=True,
        **_SIZES,
    )
    Qwen2ForCausalLM(config).save_pretrained(place)


def _make_bert(place: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel

    vocab_size = _copy_tokenizer("minilm", place)
    torch.manual_seed(2)
    config = BertConfig(vocab_size=vocab_size, pad_token_id=0, **_SIZES)
    BertModel(config).save_pretrained(place)
    # SGLang 0.5.23 asks for this, transformers 5 does not write it any more.
    file = place / "config.json"
    document = json.loads(file.read_text()) | {"position_embedding_type": "absolute"}
    file.write_text(json.dumps(document, indent=2))


def _id_of(place: Path, text: str) -> int:
    document = json.loads((place / "tokenizer.json").read_text(encoding="utf-8"))
    return next(token["id"] for token in document["added_tokens"] if token["content"] == text)


_MAKERS: dict[str, Callable[[Path], None]] = {"llama": _make_llama, "qwen2": _make_qwen2, "bert": _make_bert}
