"""Which dialect answers on which path, beside OpenAI's own: SGLang's, vLLM's and TEI's routes, decisions, rankings."""

from apiserver.protocol.chat_completions import ChatCompletion
from apiserver.protocol.classify import Classify
from apiserver.protocol.completions import Completion
from apiserver.protocol.decisions import Decisions
from apiserver.protocol.embeddings import Embeddings
from apiserver.protocol.encode import Encode
from apiserver.protocol.exchange import Dialect
from apiserver.protocol.forms import Forms, QuestionForms
from apiserver.protocol.generate import Generate
from apiserver.protocol.label_score import LabelScore
from apiserver.protocol.pair_score import PairScore
from apiserver.protocol.rerank import CohereRerank, Rerank
from apiserver.protocol.sglang_decisions import SGLangDecisions
from apiserver.protocol.systemone import SystemOne
from apiserver.protocol.tei import Embed, RankTexts, Similarity
from apiserver.protocol.token_generate import TokenGenerate

_SCORES = Forms({"label_token_ids": LabelScore, "query": LabelScore}, PairScore)
_RERANKS = Forms({"texts": RankTexts}, Rerank)
_INVOCATIONS = Forms(
    {
        "messages": ChatCompletion,
        "prompt": Completion,
        "input": Embeddings,
        "text": Generate,
        "input_ids": Generate,
        "token_ids": TokenGenerate,
        "documents": Rerank,
        "texts": RankTexts,
        "inputs": Embed,
    },
    ChatCompletion,
)

MORE_DIALECTS: dict[str, Dialect] = {
    "/generate": Generate,
    "/inference/v1/generate": TokenGenerate,
    "/encode": Encode,
    "/v1/decisions": QuestionForms(SGLangDecisions, Decisions),
    "/v1/systemone": SystemOne,
    "/v1/score": _SCORES,
    "/score": _SCORES,
    "/v1/rerank": _RERANKS,
    "/rerank": _RERANKS,
    "/v2/rerank": CohereRerank,
    "/v1/classify": Classify(),
    "/classify": Classify(),
    "/embed": Embed,
    "/similarity": Similarity,
    "/invocations": _INVOCATIONS,
}
PUT_TOO = frozenset(("/generate", "/encode"))
"""SGLang's native routes take a PUT like a POST."""
