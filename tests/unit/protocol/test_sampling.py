"""The fields that chat and completions share: defaults, ranges, and structured output under every spelling."""

from typing import Any

import pytest

from apiserver.errors import InvalidRequest
from apiserver.protocol import sampling
from apiserver.protocol.constraints import StructuredOutputs
from apiserver.protocol.generation_fields import SamplingFields, StreamOptions
from engine_bridge.wire import SamplingParams
from tests.unit.protocol.cards import make_card


def params(card: Any = None, **fields: Any) -> SamplingParams:
    return sampling.sampling_params(SamplingFields(**fields), card or make_card(), None)


def refusal(card: Any = None, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        params(card, **fields)
    return caught.value


def test_unset_fields_take_the_models_defaults_and_zero_is_set() -> None:
    card = make_card(able={"temperature": 0.6, "top_p": 0.95, "top_k": 20})
    own = params(card)
    assert (own.temperature, own.top_p, own.top_k) == (0.6, 0.95, 20)
    asked = params(card, temperature=0.0, top_p=1.0, top_k=0)
    assert (asked.temperature, asked.top_p, asked.top_k) == (0.0, 1.0, -1)
    plain = params()
    assert (plain.temperature, plain.top_p, plain.top_k, plain.repetition_penalty) == (1.0, 1.0, -1, 1.0)


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"regex": "a+"}, "regex", "a+"),
        ({"ebnf": "root ::= x"}, "grammar", "root ::= x"),
        ({"structured_outputs": StructuredOutputs(regex="b")}, "regex", "b"),
        ({"structured_outputs": StructuredOutputs(json={"type": "array"})}, "json_schema", '{"type":"array"}'),
        ({"structured_outputs": StructuredOutputs(json='{"type": "array"}')}, "json_schema", '{"type": "array"}'),
        ({"structured_outputs": StructuredOutputs(json_object=True)}, "json_schema", '{"type":"object"}'),
        ({"structured_outputs": StructuredOutputs(choice=['a"b', "ü"])}, "grammar", 'root ::= "a\\"b" | "ü"'),
        ({"structured_outputs": StructuredOutputs(grammar="root ::= y")}, "grammar", "root ::= y"),
    ],
)
def test_each_spelling_of_a_constraint_reaches_the_engine_as_one_of_three(
    fields: dict[str, Any], kind: str, text: str
) -> None:
    made = params(**fields)
    assert [getattr(made, name) for name in ("json_schema", "regex", "grammar")].count(None) == 2
    assert getattr(made, kind) == text


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"regex": "a+"}, "regex", "regex"),
        ({"ebnf": "x"}, "grammar", "ebnf"),
        ({"structured_outputs": StructuredOutputs(choice=["a"])}, "grammar", "structured_outputs.choice"),
        ({"structured_outputs": StructuredOutputs(json={})}, "json_schema", "structured_outputs.json"),
        ({"lora_path": "adapter"}, "lora", "lora_path"),
        ({"lora_path": ["adapter"]}, "lora", "lora_path"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_under_the_clients_own_name(
    fields: dict[str, Any], kind: str, param: str
) -> None:
    error = refusal(make_card(able={kind: False}), **fields)
    assert error.param == param
    assert "able 1.0" in error.message
    assert params(**fields)


@pytest.mark.parametrize(
    ("path", "adapter"),
    [
        ("a", "a"),
        (["a"], "a"),
        (["a", "a"], "a"),
        (None, None),
        ("", None),
        ([], None),
        ([None], None),
        (["", None], None),
    ],
)
def test_one_adapter_is_found_in_every_form(path: Any, adapter: str | None) -> None:
    assert params(lora_path=path).lora == adapter


@pytest.mark.parametrize("path", [["a", "b"], ["a", None], [None, "a"]])
def test_two_adapters_for_one_request_are_none(path: Any) -> None:
    assert refusal(lora_path=path).param == "lora_path"


def test_ids_of_a_request_come_from_either_name() -> None:
    assert sampling.client_request_id("a", None) == "a"
    assert sampling.client_request_id(None, "b") == "b"
    assert sampling.client_request_id("a", "b") == "a"
    assert sampling.client_request_id(None, ["b"]) == "b"
    assert sampling.client_request_id(None, []) is None
    assert sampling.client_request_id("", "") is None
    with pytest.raises(InvalidRequest, match="one string"):
        sampling.client_request_id(None, ["a", "b"])


def test_choices_are_bounded_by_themselves_and_with_the_prompts() -> None:
    limits = make_card().limits
    assert sampling.check_n(None, 2048, limits) == 1
    assert sampling.check_n(128, 16, limits) == 128
    for n, prompts in ((0, 1), (129, 1), (128, 17), (2, 1025)):
        with pytest.raises(InvalidRequest) as caught:
            sampling.check_n(n, prompts, limits)
        assert caught.value.param == "n"


@pytest.mark.parametrize(
    ("stream", "options", "fine"),
    [
        (False, None, True),
        (False, StreamOptions(), True),
        (False, StreamOptions(include_usage=False), True),
        (False, StreamOptions(include_usage=True), False),
        (None, StreamOptions(continuous_usage_stats=True), False),
        (True, StreamOptions(include_usage=True, continuous_usage_stats=True), True),
    ],
)
def test_stream_options_want_a_stream_only_where_they_want_something(
    stream: bool | None, options: StreamOptions | None, fine: bool
) -> None:
    fields = SamplingFields(stream=stream, stream_options=options)
    if fine:
        assert sampling.check_stream_options(fields) == (options or StreamOptions())
    else:
        with pytest.raises(InvalidRequest, match="needs stream"):
            sampling.check_stream_options(fields)


def test_logprobs_are_bounded_by_the_engine_too() -> None:
    few = make_card(able={"logprobs": 5}).capabilities
    none = make_card(able={"logprobs": -1}).capabilities
    sampling.check_logprobs("logprobs", 5, few)
    sampling.check_logprobs("logprobs", None, none)
    for count, capabilities in ((6, few), (0, none)):
        with pytest.raises(InvalidRequest) as caught:
            sampling.check_logprobs("top_logprobs", count, capabilities)
        assert caught.value.param == "top_logprobs"


def test_truncation_has_a_side_of_its_own_and_the_routes_side_else() -> None:
    assert sampling.truncation(None, None, "left") is None
    kept = sampling.truncation(5, None, "right")
    assert kept is not None
    assert (kept.keep, kept.side) == (5, "right")
    other = sampling.truncation(-1, "left", "right")
    assert other is not None
    assert (other.keep, other.side) == (-1, "left")
