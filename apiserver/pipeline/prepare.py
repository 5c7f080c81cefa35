"""A job's prompts → what the engine gets. Plain functions of a preprocessor, so that they can run in the lane too."""

from collections.abc import Sequence

import msgspec

from apiserver.card import Card
from apiserver.events import PreparedPrompt
from apiserver.pipeline.answer_start import prompt_end
from apiserver.pipeline.constrain import constrain
from apiserver.pipeline.labels import LabelFinder
from apiserver.pipeline.preprocess import Preprocessor, Room, fill_max_tokens
from apiserver.requests import DetokenizeJob, EmbedJob, GenerateJob, RenderJob, ScoreJob, TokenizeJob
from apiserver.timings import Timings
from engine_bridge.wire import SamplingParams


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """The prompts of a job; for generation the sampling params of each, and for scores the ids of its labels."""

    prompts: list[PreparedPrompt]
    params: Sequence[SamplingParams] = ()
    labels: Sequence[tuple[int, ...]] = ()


def prepare_generate(preprocessor: Preprocessor, job: GenerateJob, card: Card, timings: Timings) -> Prepared:
    """Raises InvalidRequest for whatever the engine must not see."""
    prompts: list[PreparedPrompt] = []
    for one in job.each or (job,):
        prompts += _generate_prompts(preprocessor, one, card, timings)
    params = [
        _constrained(preprocessor, job, prompt, fill_max_tokens(job.of(number), prompt.token_count, card), card)
        for number, prompt in enumerate(prompts)
    ]
    return Prepared(prompts, params)


def _constrained(
    preprocessor: Preprocessor, job: GenerateJob, prompt: PreparedPrompt, params: SamplingParams, card: Card
) -> SamplingParams:
    structure = job.structure
    if structure is None:
        return params
    end = prompt_end(structure, preprocessor.tokenizer, prompt)
    return constrain(params, structure, end, card.capabilities)


def _generate_prompts(
    preprocessor: Preprocessor, job: GenerateJob, card: Card, timings: Timings
) -> list[PreparedPrompt]:
    params = job.sampling_params
    preprocessor.check_ids(list(params.stop_token_ids), "stop_token_ids", card.vocab_size)
    preprocessor.check_ids(list(params.token_ids_logprob), "token_ids_logprob", card.vocab_size)
    preprocessor.check_ids([token_id for token_id, _ in params.logit_bias], "logit_bias", card.vocab_size)
    room = Room(card.max_model_len, reserved=0 if job.max_tokens == 0 else 1)
    prompts = [preprocessor.prepare(prompt, card, room, job.truncation, timings) for prompt in job.prompts]
    if job.echo or params.logprobs is not None:  # the text itself, or the offsets that go on from its end
        prompts = [_with_text(preprocessor, prompt, job.skip_special_tokens) for prompt in prompts]
    return prompts


def prepare_render(preprocessor: Preprocessor, job: RenderJob, card: Card, timings: Timings) -> Prepared:
    """As prepare_generate, with the text of prompts that came as ids: somebody wants to read it."""
    prepared = prepare_generate(preprocessor, job.generate, card, timings)
    prompts = [_with_text(preprocessor, prompt, skip_special_tokens=False) for prompt in prepared.prompts]
    return Prepared(prompts, prepared.params)


def prepare_each(preprocessor: Preprocessor, job: EmbedJob | ScoreJob, card: Card, timings: Timings) -> Prepared:
    """Raises InvalidRequest for whatever the engine must not see."""
    if isinstance(job, EmbedJob):
        return _prepare_embed(preprocessor, job, card, timings)
    return _prepare_score(preprocessor, job, card, timings)


def _prepare_embed(preprocessor: Preprocessor, job: EmbedJob, card: Card, timings: Timings) -> Prepared:
    room = Room(card.max_model_len, reserved=0)
    truncations = job.truncations or (job.truncation,) * len(job.prompts)
    prompts = [
        preprocessor.prepare(prompt, card, room, truncation, timings)
        for prompt, truncation in zip(job.prompts, truncations, strict=True)
    ]
    return Prepared(prompts)


def _prepare_score(preprocessor: Preprocessor, job: ScoreJob, card: Card, timings: Timings) -> Prepared:
    for label in job.labels:
        preprocessor.check_ids(label, "label_token_ids", card.vocab_size)
    room = Room(card.max_model_len, reserved=1)  # the label would be one token more
    prompts = [preprocessor.prepare(prompt, card, room, job.truncation, timings) for prompt in job.prompts]
    count = len(prompts)
    if job.label_texts:
        finder = LabelFinder(preprocessor)
        texts = [job.label_texts[number % len(job.label_texts)] for number in range(count)]
        named = zip(prompts, job.prompts, texts, strict=True)
        labels = [finder.find(prompt, asked.param, each) for prompt, asked, each in named]
    else:
        labels = [tuple(job.labels[number % len(job.labels)]) for number in range(count)]
    return Prepared(prompts, labels=labels)


def prepare_tokenize(
    preprocessor: Preprocessor, job: TokenizeJob, card: Card, timings: Timings
) -> list[PreparedPrompt]:
    """No engine has to take these: they may be empty, and of any length."""
    prompts = [preprocessor.prepare(prompt, card, None, None, timings) for prompt in job.prompts]
    if job.with_token_texts:
        prompts = [_with_token_texts(preprocessor, prompt) for prompt in prompts]
    return prompts


def prepare_detokenize(preprocessor: Preprocessor, job: DetokenizeJob, card: Card, timings: Timings) -> list[str]:
    """The texts. Raises InvalidRequest for ids that are not the model's."""
    for prompt in job.prompts:
        preprocessor.check_ids(prompt.token_ids, prompt.param, card.vocab_size)
    return [
        preprocessor.decode(prompt.token_ids, skip_special_tokens=job.skip_special_tokens) for prompt in job.prompts
    ]


def _with_text(preprocessor: Preprocessor, prompt: PreparedPrompt, skip_special_tokens: bool) -> PreparedPrompt:
    """What ids say; a prompt that came as text stays as the client wrote it."""
    if prompt.text is not None:
        return prompt
    text = preprocessor.decode(prompt.token_ids, skip_special_tokens=skip_special_tokens)
    return PreparedPrompt(prompt.packed, text)


def _with_token_texts(preprocessor: Preprocessor, prompt: PreparedPrompt) -> PreparedPrompt:
    token_bytes = preprocessor.tokenizer.token_bytes
    texts = [token_bytes(token_id).decode(errors="replace") for token_id in prompt.token_ids]
    return PreparedPrompt(prompt.packed, prompt.text, texts)
