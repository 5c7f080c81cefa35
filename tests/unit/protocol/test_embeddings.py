"""Embeddings without a server: inputs to a job, vectors to floats, base64 or bytes."""

import array
import base64
import json
import math
from typing import Any

import pytest

from apiserver.errors import Internal, InvalidRequest
from apiserver.events import Embedded, PreparedPrompt, Result, Started
from apiserver.protocol.embeddings import Embeddings
from apiserver.protocol.exchange import Body
from apiserver.requests import Text, TokenIds
from tests.bodies import read
from tests.unit.protocol.cards import make_card

EMBEDS = {"task": "embed", "dimensions": 4, "matryoshka": True}


def exchange(able: dict[str, Any] | None = None, **fields: Any) -> Embeddings:
    return Embeddings(json.dumps({"input": "a", **fields}).encode(), make_card(able=EMBEDS | (able or {})))


def vector(*values: float) -> bytes:
    return array.array("f", values).tobytes()


def body(embeddings: Embeddings, *vectors: bytes) -> Body:
    result = Result()
    result.feed(Started([PreparedPrompt.of([1, 2], None) for _ in vectors]))
    for index, one in enumerate(vectors):
        result.feed(Embedded(index, one))
    return embeddings.body(result)


def test_inputs_come_in_four_forms() -> None:
    assert exchange().job.prompts == [Text("a", "input", True)]
    assert exchange(input=["a", "b"]).job.prompts == [Text("a", "input[0]", True), Text("b", "input[1]", True)]
    assert exchange(input=[1, 2]).job.prompts == [TokenIds([1, 2], "input")]
    assert exchange(input=[[1], [2]]).job.prompts == [TokenIds([1], "input[0]"), TokenIds([2], "input[1]")]


def test_embeddings_keep_the_first_tokens_where_they_are_cut() -> None:
    truncation = exchange(truncate_prompt_tokens=-1).job.truncation
    assert truncation is not None
    assert (truncation.keep, truncation.side) == (-1, "right")


@pytest.mark.parametrize(
    ("able", "dimensions", "fine"),
    [
        ({}, 4, True),
        ({}, 1, True),
        ({}, 5, False),
        ({}, 0, False),
        ({"matryoshka": False}, 4, True),
        ({"matryoshka": False}, 2, False),
    ],
)
def test_vectors_are_shortened_only_where_the_model_was_trained_for_it(
    able: dict[str, Any], dimensions: int, fine: bool
) -> None:
    if fine:
        assert exchange(able, dimensions=dimensions).job.dimensions == dimensions
    else:
        with pytest.raises(InvalidRequest) as caught:
            exchange(able, dimensions=dimensions)
        assert caught.value.param == "dimensions"


def test_the_formats_hold_the_same_numbers() -> None:
    vectors = [vector(0.5, -0.25, 0, 1), vector(1, 2, 3, 4)]
    floats = read(body(exchange(input=["a", "b"]), *vectors))
    coded = read(body(exchange(input=["a", "b"], encoding_format="base64"), *vectors))
    binary = body(exchange(input=["a", "b"], encoding_format="bytes"), *vectors)
    bare = body(exchange(input=["a", "b"], encoding_format="bytes_only"), *vectors)
    assert [item["embedding"] for item in floats["data"]] == [[0.5, -0.25, 0, 1], [1, 2, 3, 4]]
    assert [base64.b64decode(item["embedding"]) for item in coded["data"]] == vectors
    assert binary.document == bare.document == b"".join(vectors)
    assert (binary.content_type, bare.headers) == ("application/octet-stream", ())
    metadata = json.loads(dict(binary.headers)["metadata"])
    assert [(item["start"], item["end"], item["shape"]) for item in metadata["data"]] == [(0, 16, [4]), (16, 32, [4])]
    assert floats["usage"] == metadata["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert (floats["object"], floats["model"], floats["data"][1]["index"]) == ("list", "first", 1)


def test_the_metadata_of_a_model_with_an_odd_name_is_a_header() -> None:
    name = "mod\u00e8le\x7f\n\U0001f600"
    raw = json.dumps({"input": ["a"], "encoding_format": "bytes", "model": name}).encode()
    answer = body(Embeddings(raw, make_card(able=EMBEDS, any_model=True)), vector(1))
    header = dict(answer.headers)["metadata"]
    assert header.isascii()
    assert header.isprintable()
    assert json.loads(header)["model"] == name


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_vector_that_json_cannot_hold_is_an_error_that_names_the_input(value: float) -> None:
    with pytest.raises(Internal, match=r"input\[1\]"):
        body(exchange(input=["a", "b"]), vector(1, 2, 3, 4), vector(1, value, 3, 4))
