"""What would be sent to the engine: POST /v1/chat/completions/render and /v1/completions/render.

The request is the completion's own, so whatever would be a 400 there is the same 400 here. The answer has, for each
prompt, its text and ids, the room it leaves, and the sampling params with everything filled in.
"""

from typing import Any, ClassVar

from apiserver.card import Card
from apiserver.errors import ApiError
from apiserver.events import Result
from apiserver.protocol import openai
from apiserver.protocol.chat_request import ChatFields, chat_job, read_chat
from apiserver.protocol.completion_request import CompletionFields, completion_job, read_completion
from apiserver.protocol.exchange import Body, Unary
from apiserver.requests import GenerateJob, RenderJob


class _Render(Unary):
    """What the two have in common: everything but how the request is read."""

    def __init__(self, model: str, job: GenerateJob, card: Card) -> None:
        self._model = model
        self._max_model_len = card.max_model_len
        self._job = RenderJob(job)

    @property
    def job(self) -> RenderJob:
        return self._job

    def body(self, result: Result) -> Body:
        prompts: list[dict[str, Any]] = []
        for index, prompt in enumerate(result.prompts):
            params = result.sampling_params[index]
            prompts.append(
                {
                    "index": index,
                    "prompt": prompt.text,
                    "prompt_token_ids": prompt.token_ids,
                    "prompt_tokens": prompt.token_count,
                    "room": self._max_model_len - prompt.token_count,
                    "max_tokens": params.max_tokens,
                    "sampling_params": {name: getattr(params, name) for name in params.__struct_fields__},
                }
            )
        generate = self._job.generate
        document = {
            "object": "render",
            "model": self._model,
            "max_model_len": self._max_model_len,
            "n": generate.n,
            "stop": list(generate.stop),
            "echo": generate.echo,
            "prompts": prompts,
        }
        return Body(document)

    @staticmethod
    def error(error: ApiError) -> Any:
        return openai.error_document(error)


class ChatRender(_Render):
    """One chat completion's rendering; see `apiserver.protocol.exchange.Exchange`."""

    fields: ClassVar = (ChatFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_chat(raw, card)
        super().__init__(card.resolve(fields.model), chat_job(fields, card), card)


class CompletionRender(_Render):
    """One completion's rendering."""

    fields: ClassVar = (CompletionFields,)

    def __init__(self, raw: bytes, card: Card) -> None:
        fields = read_completion(raw, card)
        super().__init__(card.resolve(fields.model), completion_job(fields, card), card)
