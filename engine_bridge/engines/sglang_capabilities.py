"""What a loaded SGLang can do, by its own settings and its model's."""

from typing import Any

from engine_bridge.engines.sglang_arguments import VERSION
from engine_bridge.wire import Capabilities

_MOST_LOGPROBS = 20


def capabilities_of(engine: Any, verbs: tuple[str, ...]) -> Capabilities:
    """What is known without a request; a vector's size may be another."""
    config, args = engine.tokenizer_manager.model_config, engine.server_args
    (info, *_) = engine._scheduler_init_result.scheduler_infos
    generates = bool(config.is_generation)
    has_grammar = generates and bool(info.get("has_grammar"))
    grammar = engine.tokenizer_manager.config_value("grammar_backend")  # as SGLang has resolved it
    defaults: dict[str, Any] = config.get_default_sampling_params() if generates else {}
    longest = int(info["max_req_input_len"])  # of these SGLang takes prompts one shorter
    return Capabilities(
        task="generate" if generates else "embed",
        max_model_len=longest if generates else longest - 1,
        vocab_size=int(config.vocab_size),
        eos_token_ids=tuple(sorted(config.hf_eos_token_id or ())),
        dimensions=0 if generates else int(config.hidden_size),
        matryoshka=bool(config.is_matryoshka),
        logprobs=_MOST_LOGPROBS if generates else -1,
        prompt_logprobs=generates,
        min_tokens=generates and bool(info.get("has_tokenizer")),
        logit_bias=generates,
        json_schema=has_grammar,
        regex=has_grammar,
        grammar=has_grammar,
        lora=bool(args.enable_lora),
        engine=f"sglang {VERSION}",
        temperature=defaults.get("temperature"),
        top_p=defaults.get("top_p"),
        top_k=defaults.get("top_k"),
        score=generates,
        structural_tag=has_grammar and grammar != "outlines",
        priority=bool(args.enable_priority_scheduling),
        admin=verbs,
        model_type=str(getattr(config.hf_config, "model_type", "")),
        architectures=tuple(config.hf_config.architectures or ()),
        seed=generates and bool(args.enable_deterministic_inference),
        tag_formats=has_grammar and grammar == "xgrammar",
        token_ids_logprob=generates,
    )
