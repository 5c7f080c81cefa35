"""What the endpoints of one API server share: its pipeline, its view of the pool, its settings."""

from dataclasses import dataclass

from apiserver.board import BEAT_LIMIT_SECONDS, Board, Slot
from apiserver.card import Card, Limits
from apiserver.config import AdmissionSettings, HttpSettings, ModelSettings
from apiserver.errors import Unavailable
from apiserver.http.runs import Runs
from apiserver.metrics import Metrics
from apiserver.pipeline import Pipeline
from apiserver.store import Store
from engine_bridge.client import EngineClient, EngineUnavailable
from engine_bridge.status import EngineRow, EngineState, Field
from engine_bridge.wire import Capabilities


@dataclass
class Service:
    """Made once per worker, after the fork."""

    board: Board
    slot: Slot
    engine_row: EngineRow
    client: EngineClient
    pipeline: Pipeline
    metrics: Metrics
    model: ModelSettings
    http: HttpSettings
    limits: Limits
    admission: AdmissionSettings
    key_names: tuple[str, ...]
    tokenizer_vocab_size: int
    server_timing: bool
    encoder: str
    encoder_reason: str
    preprocess_order: str
    created: int
    store: Store | None
    """Where responses are kept; None: nowhere."""
    runs: Runs

    def __post_init__(self) -> None:
        self._card: tuple[Capabilities, Card] | None = None

    def card(self) -> Card:
        """The model as clients see it. Raises Unavailable while there is no engine to ask."""
        try:
            capabilities = self.client.require()
        except EngineUnavailable as error:
            raise Unavailable(str(error)) from error
        if self._card is None or self._card[0] is not capabilities:
            self._card = (capabilities, self._make_card(capabilities))
        return self._card[1]

    def _make_card(self, capabilities: Capabilities) -> Card:
        model = self.model
        asked = model.max_model_len or capabilities.max_model_len
        return Card(
            names=model.served_model_name,
            root=model.model,
            created=self.created,
            capabilities=capabilities,
            max_model_len=min(asked, capabilities.max_model_len),
            vocab_size=capabilities.vocab_size or self.tokenizer_vocab_size,
            limits=self.limits,
            any_model=model.any_model,
            aliases=model.aliases,
            strict_fields=model.strict_fields,
            clamp_max_tokens=model.clamp_max_tokens,
            trust_request_chat_template=model.trust_request_chat_template,
            tool_call_parser=model.tool_call_parser,
            reasoning_parser=model.reasoning_parser,
            incremental_streaming_output=model.incremental_streaming_output,
        )

    def health(self) -> str | None:
        """None if the engine serves; else why not. True for the whole pool, from whichever worker."""
        row = self.engine_row
        match row.state:
            case EngineState.LOADING:
                return "loading"
            case EngineState.DEAD:
                return "the engine is dead"
            case EngineState.UNREACHABLE:
                return "the engine cannot be reached"
            case EngineState.STOPPING:
                return "the engine is stopping"
            case EngineState.READY:
                if row.seconds_since_beat > BEAT_LIMIT_SECONDS:
                    return f"the engine's loop has stood still for {row.seconds_since_beat:.1f} s"
                if self.client.misfit is not None:
                    return self.client.misfit
                if not self.board.is_connected(row.get(Field.EPOCH)):
                    return "loading"  # some API server has not yet heard that the engine is there
                return None

    def stage(self) -> str:
        """What the engine is doing while it loads; empty if it does not say, or serves."""
        return self.engine_row.stage if self.engine_row.state is EngineState.LOADING else ""

    def readiness(self) -> str | None:
        """None if the pool should get traffic; else why not."""
        if self.board.is_draining:
            return "draining"
        if not any(slot.is_serving for slot in self.board.slots):
            return "no API server is ready"
        return self.health()
