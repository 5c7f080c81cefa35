"""LoRA adapters in the real SGLang: loaded, asked for, and unloaded, through the pool."""

# pyright: reportMissingImports=false

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pool import Pool, running_pool
from tests.sglang.test_pool import wait_ready
from tests.sglang.tiny_models import CPU_FLAGS, directory, load

RANK, ALPHA = 8, 16
TARGETS = {"q_proj": 64, "k_proj": 32, "v_proj": 32, "o_proj": 64}  # rows of each, in the tiny Llama
LORA_FLAGS = (
    *("--enable-lora", "--lora-backend", "torch_native", "--max-loras-per-batch", "2"),
    *("--max-lora-rank", str(RANK), "--lora-target-modules", *TARGETS),
)
PROMPT = list(range(1000, 1010))
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """An adapter with random weights, as peft writes them; and the weights."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)
    place = tmp_path_factory.mktemp("adapter")
    weights: dict[str, Any] = {}
    for layer in range(2):
        for target, rows in TARGETS.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, 64) * 0.3
            weights[f"{name}.lora_B.weight"] = torch.randn(rows, RANK) * 0.3
    save_file(weights, place / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    (place / "adapter_config.json").write_text(json.dumps({**settings, "target_modules": list(TARGETS)}))
    return place, weights


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEABLE_MEMORY", "1")  # see the shim
        output = tmp_path_factory.mktemp("lora") / "pool.log"
        flags = ("--engine", "sglang", "--api-server-count", "2")
        engine = [*CPU_FLAGS, *LORA_FLAGS]
        with running_pool(output, *flags, model=str(directory("llama")), engine=engine, ready=False) as started:
            yield wait_ready(started)


def generated(pool: Pool, **more: Any) -> list[int]:
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    answer = pool.post("/generate", {"input_ids": PROMPT, "sampling_params": sampling, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["output_ids"]


def greedy(weights: dict[str, Any]) -> list[int]:
    """By transformers, with the adapter's product added to the model's own weights."""
    import torch

    model = load("llama")
    for layer, block in enumerate(model.model.layers):
        for target in TARGETS if weights else ():
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            product = weights[f"{name}.lora_B.weight"] @ weights[f"{name}.lora_A.weight"]
            getattr(block.self_attn, target).weight.data += ALPHA / RANK * product
    with torch.no_grad():
        whole = model.generate(torch.tensor([PROMPT]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None)
    return whole[0, len(PROMPT) :].tolist()


def test_an_adapter_is_loaded_asked_for_and_unloaded(pool: Pool, adapter: tuple[Path, dict[str, Any]]) -> None:
    place, weights = adapter
    plain = greedy({})
    assert generated(pool) == plain
    loaded = pool.post("/load_lora_adapter", {"lora_name": "mine", "lora_path": str(place)})
    assert loaded.status_code == 200, loaded.text
    adapted = greedy(weights)
    assert adapted != plain
    assert generated(pool, lora_path="mine") == adapted
    assert generated(pool) == plain
    (model,) = pool.openai.models.list()
    completion: Any = pool.openai.completions.create(
        model=model.id,
        prompt=PROMPT,
        max_tokens=NEW_TOKENS,
        temperature=0,
        extra_body={"lora_path": "mine", "ignore_eos": True, "return_token_ids": True},
    )
    assert completion.choices[0].token_ids == adapted
    assert pool.post("/unload_lora_adapter", {"lora_name": "mine"}).status_code == 200
    # SGLang remembers where it was, and loads it again for whoever asks.
    assert generated(pool, lora_path="mine") == adapted
    assert pool.post("/generate", {"input_ids": PROMPT, "lora_path": "nobody"}).status_code == 400
    assert generated(pool) == plain


def test_an_adapter_that_is_not_there_hurts_nobody(pool: Pool, tmp_path: Path) -> None:
    refused = pool.post("/load_lora_adapter", {"lora_name": "none", "lora_path": str(tmp_path)})
    assert refused.status_code == 400, refused.text
    assert generated(pool) == greedy({})
