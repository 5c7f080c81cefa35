"""SGLang's native generate request, and the job that it means. Nearly every field may be a list, one a prompt."""

from typing import Any, TypeVar, cast

import msgspec

from apiserver.card import Card
from apiserver.errors import InvalidRequest
from apiserver.protocol.decoding import check_length, check_range, read_fields
from apiserver.protocol.generate_fields import HARMLESS_IN_GENERATE, IGNORED_IN_GENERATE, GenerateFields
from apiserver.protocol.native_sampling import LogprobView, NativeSampling, Sampling, below, native_sampling
from apiserver.protocol.prompts import prompts, token_ids
from apiserver.protocol.sampling import check_logprobs, check_n
from apiserver.requests import GenerateJob, Prompt

_MOST_RID = 256
_MOST_CACHE_SALT = 1024

T = TypeVar("T")


_PER_PROMPT = (
    "sampling_params",
    "rid",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "lora_path",
    "cache_salt",
    "extra_key",
)
_decoder = msgspec.json.Decoder(GenerateFields)


class GenerateRequest(msgspec.Struct, frozen=True, gc=False):
    """A request in the waist's words, with what only its answer needs."""

    fields: GenerateFields
    job: GenerateJob
    is_batch: bool
    rids: list[str] | None
    views: list[LogprobView | None]
    """One for each prompt; None where no logprobs were asked for."""


def read_generate(raw: bytes, card: Card) -> GenerateRequest:
    """Raises NotFound for another model, InvalidRequest for what is wrong or cannot be honoured."""
    fields = read_fields(raw, _decoder, card, harmless=HARMLESS_IN_GENERATE, ignored=IGNORED_IN_GENERATE)
    check_range("priority", fields.priority, -(2**63), 2**63 - 1)
    parsed, is_batch = _prompts(fields, card)
    views = _views(fields, len(parsed), card)
    rids = _rids(fields.rid, len(parsed))
    return GenerateRequest(fields, _job(fields, parsed, views, rids, card), is_batch, rids, views)


def _prompts(fields: GenerateFields, card: Card) -> tuple[list[Prompt], bool]:
    if (fields.text is None) == (fields.input_ids is None):
        raise InvalidRequest("Exactly one of text and input_ids must be given.", param="text")
    most = card.limits.max_batch_prompts
    if fields.text is not None:
        return prompts(cast(Any, fields.text), "text", most, True), isinstance(fields.text, list)
    ids = fields.input_ids
    return prompts(ids, "input_ids", most, True), bool(ids) and isinstance(ids[0], list)


def _rids(rid: str | list[str] | None, count: int) -> list[str] | None:
    if not isinstance(rid, list):
        check_length("rid", rid, _MOST_RID)
        return None if not rid else [rid]
    for one in rid:
        check_length("rid", one, _MOST_RID)
    if len(set(_spread(rid, count, "rid"))) != count:
        raise InvalidRequest("rid holds an id twice.", param="rid")
    return rid


def _views(fields: GenerateFields, count: int, card: Card) -> list[LogprobView | None]:
    wanted = _spread(fields.return_logprob, count, "return_logprob")
    starts = _spread(fields.logprob_start_len, count, "logprob_start_len")
    tops = _spread(fields.top_logprobs_num, count, "top_logprobs_num")
    asked = _asked_ids(fields.token_ids_logprob, count, card)
    views: list[LogprobView | None] = []
    for want, start, top, ids in zip(wanted, starts, tops, asked, strict=True):
        if not want:
            views.append(None)
            continue
        view = LogprobView(-1 if start is None else start, top or 0, ids)
        check_range("logprob_start_len", view.start, -1, 2**63 - 1)
        check_range("top_logprobs_num", view.top, 0, card.limits.max_logprobs)
        check_logprobs("return_logprob" if view.top == 0 else "top_logprobs_num", view.top, card.capabilities)
        if view.start >= 0 and not card.capabilities.prompt_logprobs:
            raise InvalidRequest(
                f"The engine ({card.capabilities.engine}) gives no logprobs of the prompt; send logprob_start_len -1.",
                param="logprob_start_len",
            )
        if ids and not card.capabilities.token_ids_logprob:
            raise InvalidRequest(
                f"The engine ({card.capabilities.engine}) gives no logprobs of tokens by id; send top_logprobs_num.",
                param="token_ids_logprob",
            )
        views.append(view)
    return views


def _asked_ids(value: list[Any] | None, count: int, card: Card) -> list[tuple[int, ...]]:
    """For each prompt: ids for all of them, or a list of ids each."""
    param, most = "token_ids_logprob", card.limits.max_logit_bias
    if not value:
        return [()] * count
    if not isinstance(value[0], list):
        return [_some_ids(value, param, most)] * count
    return [_some_ids(ids, f"{param}[{number}]", most) for number, ids in enumerate(_spread(value, count, param))]


def _some_ids(value: Any, name: str, most: int) -> tuple[int, ...]:
    ids = token_ids(value, name, allow_empty=True)
    if len(ids) > most:
        raise InvalidRequest(f"{name} has {len(ids)} items; at most {most} are allowed.", param=name)
    return tuple(ids)


def _job(
    fields: GenerateFields, parsed: list[Prompt], views: list[LogprobView | None], rids: list[str] | None, card: Card
) -> GenerateJob:
    """One job for all prompts; where any field is a list, one for each besides."""
    asked = _spread(fields.sampling_params, len(parsed), "sampling_params")
    ns = {1 if one is None or one.n is None else one.n for one in asked}
    if len(ns) > 1:
        raise InvalidRequest("n must be the same for all prompts of a request.", param="sampling_params")
    loras = _spread(fields.lora_path, len(parsed), "lora_path")
    salts = _spread(fields.cache_salt, len(parsed), "cache_salt")
    keys = _spread(fields.extra_key, len(parsed), "extra_key")
    differs = len({view.token_ids for view in views if view is not None}) > 1
    differs = differs or any(isinstance(getattr(fields, name), list) for name in _PER_PROMPT)
    n = _check_n(ns.pop(), len(parsed), card)
    jobs: list[GenerateJob] = []
    for number, prompt in enumerate(parsed):
        path = f"sampling_params[{number}]" if isinstance(fields.sampling_params, list) else "sampling_params"
        own = asked[number] or NativeSampling()
        sampling = native_sampling(own, card, path, views[number], lora_path=loras[number])
        rid = None if rids is None else rids[number % len(rids)]
        salt = _salt(salts[number], keys[number])
        job = _one(sampling, path, n, client_request_id=rid, cache_salt=salt, priority=fields.priority or 0)
        if not differs:
            return msgspec.structs.replace(job, prompts=parsed)
        jobs.append(msgspec.structs.replace(job, prompts=[prompt]))
    return msgspec.structs.replace(jobs[0], prompts=parsed, each=tuple(jobs))


def _check_n(n: int, prompts: int, card: Card) -> int:
    try:
        return check_n(n, prompts, card.limits)
    except InvalidRequest as error:
        raise below("sampling_params", error) from error


def _one(
    sampling: Sampling, path: str, n: int, *, client_request_id: str | None, cache_salt: str | None, priority: int
) -> GenerateJob:
    return GenerateJob(
        prompts=[],
        sampling_params=sampling.params,
        max_tokens=sampling.max_tokens,
        max_tokens_param=f"{path}.max_new_tokens",
        n=n,
        n_param=f"{path}.n",
        stop=sampling.stop,
        include_stop=sampling.include_stop,
        skip_special_tokens=sampling.skip_special_tokens,
        with_token_ids=True,
        client_request_id=client_request_id,
        priority=priority,
        cache_salt=cache_salt,
    )


def _salt(cache_salt: str | None, extra_key: str | None) -> str | None:
    check_length("cache_salt", cache_salt, _MOST_CACHE_SALT)
    check_length("extra_key", extra_key, _MOST_CACHE_SALT)
    return cache_salt or extra_key or None


def _spread(value: T | list[T] | None, count: int, name: str) -> list[T | None]:
    """One for each prompt."""
    if not isinstance(value, list):
        return [value] * count
    listed = cast(list[T | None], value)
    if len(listed) != count:
        raise InvalidRequest(f"{name} has {len(listed)} items for {count} prompts.", param=name)
    return listed
