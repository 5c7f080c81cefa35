"""LoRA adapters: loaded, asked for by name, and as effective as the merged weights in transformers."""

# pyright: reportMissingImports=false

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine_bridge.engines import EngineRefusal
from engine_bridge.wire import FailureKind
from tests.engine_contract import Bench, bench_of
from tests.sglang.shared import Running
from tests.sglang.tiny_models import load

FLAGS = ("--enable-lora", "--lora-backend", "torch_native", "--max-lora-rank", "8")
TARGETS = ("--lora-target-modules", "q_proj", "v_proj")
RANK, ALPHA = 4, 16
PROMPT = (1, 1183, 6333, 1070, 5611)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A strong one, in PEFT's form."""
    import torch
    from safetensors.torch import save_file

    place = tmp_path_factory.mktemp("lora")
    torch.manual_seed(5)
    weights: dict[str, torch.Tensor] = {}
    for layer in range(2):
        for target, out in (("q_proj", 64), ("v_proj", 32)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, 64) * 0.3
            weights[f"{name}.lora_B.weight"] = torch.randn(out, RANK) * 0.3
    save_file(weights, place / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    (place / "adapter_config.json").write_text(json.dumps(config))
    return place


@pytest.fixture
def running(start: Callable[..., Running]) -> Running:
    return start("llama", *FLAGS, *TARGETS)


def on(running: Running, test: Callable[[Bench], Awaitable[None]]) -> None:
    async def with_bench() -> None:
        async with bench_of(running.shared()) as bench:
            await test(bench)

    running.run(with_bench())


def merged(adapter: Path) -> list[int]:
    """The greedy ids of transformers, with the adapter added to the weights."""
    import torch
    from safetensors.torch import load_file

    model = load("llama")
    weights = load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name in {key.rsplit(".lora_", 1)[0] for key in weights}:
            module = model.get_submodule(name.removeprefix("base_model.model."))
            up, down = weights[f"{name}.lora_B.weight"], weights[f"{name}.lora_A.weight"]
            module.weight += up @ down * (ALPHA / RANK)
        ids = model.generate(torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False, eos_token_id=None)
    return ids[0, len(PROMPT) :].tolist()


def test_an_adapter_is_loaded_used_by_name_and_unloaded(running: Running, adapter: Path) -> None:
    async def check(bench: Bench) -> None:
        greedy = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
        plain = await bench.token_ids(bench.generate(PROMPT, **greedy))
        assert (await bench.failure(bench.generate(PROMPT, **greedy, lora="mine"))).kind is FailureKind.INVALID
        await bench.engine.admin("load_lora_adapter", {"lora_name": "mine", "lora_path": str(adapter)})
        adapted = await bench.token_ids(bench.generate(PROMPT, **greedy, lora="mine"))
        assert adapted == merged(adapter)
        assert adapted != plain
        assert await bench.token_ids(bench.generate(PROMPT, **greedy)) == plain
        await bench.engine.admin("unload_lora_adapter", {"lora_name": "mine"})
        assert (await bench.failure(bench.generate(PROMPT, **greedy, lora="mine"))).kind is FailureKind.INVALID

    on(running, check)


def test_an_adapter_that_is_not_there_is_refused(running: Running) -> None:
    async def check(bench: Bench) -> None:
        assert bench.capabilities.lora
        with pytest.raises(EngineRefusal, match="adapter"):
            await bench.engine.admin("load_lora_adapter", {"lora_name": "no", "lora_path": "/no/such/adapter"})
        with pytest.raises(EngineRefusal, match="lora_path"):
            await bench.engine.admin("load_lora_adapter", {"lora_name": "no"})

    on(running, check)
