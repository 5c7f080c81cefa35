"""A request as SGLang gets it, and what is refused before it gets there.

SGLang checks most of a request, but not its token ids: one outside the vocabulary is an IndexError in the scheduler,
which ends SGLang with everything around it.
"""

# pyright: reportUnknownMemberType=false

from typing import Any

from engine_bridge.engines import sglang_api as api
from engine_bridge.wire import Capabilities, Embed, FailureKind, Generate, Request, SamplingParams, Score, unpack_ids


class Refused(Exception):
    """This request is not served; the message says why."""

    def __init__(self, message: str, kind: FailureKind = FailureKind.INVALID) -> None:
        super().__init__(message)
        self.kind = kind


class _Tokenless(api.SamplingParams):
    """SGLang's, which do not mind that this side has no tokenizer: the scheduler has one."""

    def normalize(self, tokenizer: Any) -> None:
        super().normalize(self if tokenizer is None else tokenizer)


SamplingParamsClass = _Tokenless


def make_input(request: Request, rid: str, capabilities: Capabilities) -> Any:
    """What TokenizerManager.generate_request takes. Raises Refused."""
    prompt = unpack_ids(request.prompt_token_ids)
    _check_ids(prompt, "the prompt", capabilities)
    priority = request.priority if capabilities.priority else None
    if isinstance(request, Embed):
        _check_length(prompt, capabilities.max_model_len)
        return _embed(request, prompt, rid, priority, capabilities)
    _check_length(prompt, capabilities.max_model_len - 1)
    if capabilities.task != "generate":
        raise Refused("this model embeds, it does not generate")
    if isinstance(request, Score):
        return _score(request, prompt, rid, priority, capabilities)
    return _generate(request, prompt, rid, priority, capabilities)


def _generate(request: Generate, prompt: list[int], rid: str, priority: int | None, capabilities: Capabilities) -> Any:
    params = request.sampling_params
    _check_params(params, capabilities)
    wants_logprobs = params.logprobs is not None or params.prompt_logprobs is not None
    return api.io.GenerateReqInput(
        rid=rid,
        input_ids=prompt,
        sampling_params=_sampling(params, min(params.max_tokens, capabilities.max_model_len - len(prompt))),
        stream=True,
        return_logprob=wants_logprobs,
        logprob_start_len=0 if params.prompt_logprobs is not None else -1,
        top_logprobs_num=max(params.logprobs or 0, params.prompt_logprobs or 0),
        token_ids_logprob=list(params.token_ids_logprob) or None,
        lora_path=params.lora,
        priority=priority,
        cache_salt=request.cache_salt,
    )


def _sampling(params: SamplingParams, max_tokens: int) -> dict[str, Any]:
    """Every key is one that SGLang knows: an unknown one is a TypeError there."""
    sampling: dict[str, Any] = {
        "max_new_tokens": max_tokens,
        "min_new_tokens": min(params.min_tokens, max_tokens),
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k if params.top_k > 0 else -1,
        "min_p": params.min_p,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "repetition_penalty": params.repetition_penalty,
        "ignore_eos": params.ignore_eos,
    }
    if params.stop_token_ids:
        sampling["stop_token_ids"] = list(params.stop_token_ids)
    if params.logit_bias:
        sampling["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias}
    if params.seed is not None:
        sampling["sampling_seed"] = params.seed
    constraints = {
        "json_schema": params.json_schema,
        "regex": params.regex,
        "ebnf": params.grammar,
        "structural_tag": params.structural_tag,
    }
    return sampling | {name: text for name, text in constraints.items() if text is not None}


def _embed(request: Embed, prompt: list[int], rid: str, priority: int | None, capabilities: Capabilities) -> Any:
    if capabilities.task != "embed":
        raise Refused("this model generates text, it does not embed (SGLang's --is-embedding makes it)")
    wanted = request.dimensions
    if wanted in (None, capabilities.dimensions):
        wanted = None  # a model that cannot cut need not be asked to
    elif not capabilities.matryoshka:
        raise Refused(f"this model's vectors have {capabilities.dimensions} dimensions and cannot be cut")
    return api.io.EmbeddingReqInput(rid=rid, input_ids=prompt, dimensions=wanted, priority=priority)


def _score(request: Score, prompt: list[int], rid: str, priority: int | None, capabilities: Capabilities) -> Any:
    labels = list(request.label_token_ids)
    _check_ids(labels, "the labels", capabilities)
    return api.io.GenerateReqInput(
        rid=rid,
        input_ids=prompt,
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=-1,
        token_ids_logprob=labels,
        priority=priority,
    )


def _check_ids(token_ids: list[int], what: str, capabilities: Capabilities) -> None:
    if not token_ids:
        raise Refused(f"{what} has no tokens")
    if not 0 <= min(token_ids) <= max(token_ids) < capabilities.vocab_size:
        raise Refused(f"{what} has token ids outside the vocabulary of {capabilities.vocab_size}")


def _check_length(prompt: list[int], most: int) -> None:
    if len(prompt) > most:
        raise Refused(f"the prompt has {len(prompt)} tokens; this engine takes at most {most}")


def _check_params(params: SamplingParams, capabilities: Capabilities) -> None:
    constraints = (params.json_schema, params.regex, params.grammar, params.structural_tag)
    refusals = {
        "only one of json_schema, regex, grammar and structural_tag can be given": sum(
            text is not None for text in constraints
        )
        > 1,
        "this engine was started without a grammar backend": any(text is not None for text in constraints)
        and not capabilities.json_schema,
        "this engine was started without LoRA adapters (SGLang's --enable-lora)": params.lora is not None
        and not capabilities.lora,
        "seed needs SGLang's --enable-deterministic-inference; without it SGLang ignores seeds": params.seed is not None
        and not capabilities.seed,
        "this engine has no tokenizer for min_tokens": params.min_tokens > 0 and not capabilities.min_tokens,
    }
    for message, applies in refusals.items():
        if applies:
            raise Refused(message)
    biased = (token_id for token_id, _ in params.logit_bias)
    named = [*params.stop_token_ids, *biased, *params.token_ids_logprob]
    if named:
        _check_ids(named, "stop_token_ids, logit_bias or token_ids_logprob", capabilities)
