"""What this engine cannot do is refused, never ignored: a field that is known and has no effect is a lie."""

from apiserver.errors import InvalidRequest
from engine_bridge.wire import Capabilities, SamplingParams


def check_capable(params: SamplingParams, capabilities: Capabilities) -> None:
    """Raises InvalidRequest naming the first field that the engine cannot honour."""
    for param, wanted, able in (
        ("logprobs", params.logprobs is not None, capabilities.logprobs >= 0),
        ("prompt_logprobs", params.prompt_logprobs is not None, capabilities.prompt_logprobs),
        ("token_ids_logprob", bool(params.token_ids_logprob), capabilities.token_ids_logprob),
        ("min_tokens", params.min_tokens > 0, capabilities.min_tokens),
        ("logit_bias", bool(params.logit_bias), capabilities.logit_bias),
        ("response_format", params.json_schema is not None, capabilities.json_schema),
        ("regex", params.regex is not None, capabilities.regex),
        ("grammar", params.grammar is not None, capabilities.grammar),
        ("structural_tag", params.structural_tag is not None, capabilities.structural_tag),
        ("seed", params.seed is not None, capabilities.seed),
        ("lora_path", params.lora is not None, capabilities.lora),
    ):
        if wanted and not able:
            raise InvalidRequest(f"The engine ({capabilities.engine}) cannot honour {param}.", param=param)
    most = capabilities.logprobs
    for param, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if count is not None and count > most:
            raise InvalidRequest(f"{param} is {count}; this engine gives at most {most}.", param=param)
