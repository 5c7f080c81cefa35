"""Embeddings: what is refused, what is cut, and that all formats hold the same numbers."""

import array
import base64
import json
import math
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.refusals import (
    EMBED_LEN,
    EMBEDDINGS,
    GENERATING,
    GOOD,
    HI,
    VOCABULARY,
    cpu_seconds,
    error_of,
    post,
    refused,
)
from tests.pool import Pool, running_pool

pytestmark = pytest.mark.e2e

FAILS_AT_ONCE, NO_NUMBERS = 1, 4  # control characters that set off the faulty pool's faults


@pytest.fixture(scope="module")
def faulty_embed_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    engine = ["--task", "embed", "--fault", f"nan:{NO_NUMBERS}", "--fault", f"error:{FAILS_AT_ONCE}:0"]
    output = tmp_path_factory.mktemp("nan") / "pool.log"
    with running_pool(output, "--api-server-count", "1", engine=engine) as pool:
        yield pool


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"input": None}, "input", "required"),
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "empty"),
        ({"input": [""]}, "input[0]", "empty"),
        ({"input": ["a", ""]}, "input[1]", "empty"),
        ({"input": [[]]}, "input[0]", "empty"),
        ({"input": 5}, "input", "Expected"),
        ({"input": ["a", [1]]}, "input[1]", "must be a string"),
        ({"input": [[1], "a"]}, "input[1]", "list of token ids"),
        ({"input": [1, "a"]}, "input", "integers"),
        ({"input": [{"type": "text", "text": "a"}]}, "input[0]", "must be a string"),
        ({"input": [VOCABULARY]}, "input", f"ids are 0 to {VOCABULARY - 1}"),
        ({"input": [[1], [100_000]]}, "input[1]", "token id 100000;"),  # what langchain sends of cl100k
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": "x" * (EMBED_LEN + 1)}, "input", "maximum context length"),
        ({"input": ["a", "x" * 1_000_000]}, "input[1]", "maximum context length"),
        ({"input": [65] * (EMBED_LEN + 1)}, "input", "maximum context length"),
        ({"dimensions": 0}, "dimensions", "at least 1"),
        ({"dimensions": -1}, "dimensions", "at least 1"),
        ({"dimensions": 385}, "dimensions", "at most 384"),
        ({"dimensions": "64"}, "dimensions", "Expected"),
        ({"dimensions": 64.5}, "dimensions", "Expected"),
        ({"encoding_format": "xyz"}, "encoding_format", "not xyz"),
        ({"encoding_format": ""}, "encoding_format", "must be one of"),
        ({"encoding_format": 5}, "encoding_format", "Expected"),
        ({"encoding_format": "bytes", "input": ["a"] * 257}, "encoding_format", "256 at most"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1 or at least 1"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-1 or at least 1"),
        ({"truncate_prompt_tokens": EMBED_LEN + 1}, "truncate_prompt_tokens", f"this model's {EMBED_LEN}"),
        ({"truncate_prompt_tokens": "5"}, "truncate_prompt_tokens", "Expected"),
        ({"truncation_side": "up"}, "truncation_side", "left or right"),
        ({"messages": HI}, "messages", "not supported"),
        ({"embed_dtype": "float16"}, "embed_dtype", "not supported"),
        ({"endianness": "big"}, "endianness", "not supported"),
        ({"use_activation": False}, "use_activation", "not supported"),
        ({"padding": "max_length"}, "padding", "not supported"),
        ({"lora_path": "a"}, "lora_path", "not supported"),
        ({"modality": "image"}, "modality", "not supported"),
        ({"chat_template": "x"}, "chat_template", "not supported"),
        ({"embed_override_token_id": 5}, "embed_override_token_id", "not supported"),
        ({"priority": 2**63}, "priority", "at most"),
        ({"request_id": "x" * 257}, "request_id", "at most 256"),
    ],
)
def test_embeddings_say_what_is_wrong_with_each_field(
    embed_client: httpx.Client, fields: dict[str, Any], param: str, says: str
) -> None:
    error = refused(embed_client, EMBEDDINGS, {**GOOD[EMBEDDINGS], **fields}, param, says)
    assert (error["code"] == "context_length_exceeded") == ("maximum context" in says)


def test_a_text_of_exactly_the_models_length_is_embedded(embed_client: httpx.Client) -> None:
    answer = post(embed_client, EMBEDDINGS, {"input": "x" * EMBED_LEN})
    assert answer.json()["usage"] == {"prompt_tokens": EMBED_LEN, "total_tokens": EMBED_LEN}


def test_each_of_the_four_input_forms_gives_as_many_vectors_as_it_has_prompts(embed_client: httpx.Client) -> None:
    for value, count in (("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2), (["a"] * 2048, 2048)):
        data = post(embed_client, EMBEDDINGS, {"input": value, "encoding_format": "base64"}).json()["data"]
        assert [item["index"] for item in data] == list(range(count))


def test_truncation_cuts_each_input_by_itself_and_usage_counts_what_was_used(embed_client: httpx.Client) -> None:
    def answer(value: Any, **fields: Any) -> dict[str, Any]:
        return post(embed_client, EMBEDDINGS, {"input": value, **fields}).json()

    long = "long " * 1000
    cut = answer([long, "short"], truncate_prompt_tokens=-1)
    assert cut["usage"]["prompt_tokens"] == EMBED_LEN + 5
    assert cut["data"][0]["embedding"] == answer(long[:EMBED_LEN])["data"][0]["embedding"]
    assert cut["data"][1]["embedding"] == answer("short")["data"][0]["embedding"]
    right, left = (answer("abcdef", truncate_prompt_tokens=3, truncation_side=side) for side in ("right", "left"))
    assert right["data"][0]["embedding"] == answer("abc")["data"][0]["embedding"]
    assert left["data"][0]["embedding"] == answer("def")["data"][0]["embedding"]
    assert answer("abcdef", truncate_prompt_tokens=1)["usage"]["prompt_tokens"] == 1


def test_a_text_of_megabytes_is_truncated_and_not_refused_where_that_was_asked_for(
    embed_pool: Pool, embed_client: httpx.Client
) -> None:
    began = cpu_seconds(embed_pool)
    answer = post(embed_client, EMBEDDINGS, {"input": ["many words " * 1_000_000] * 2, "truncate_prompt_tokens": -1})
    assert answer.json()["usage"]["prompt_tokens"] == 2 * EMBED_LEN
    assert cpu_seconds(embed_pool) - began < 2


def test_base64_is_the_vector_as_little_endian_floats(embed_client: httpx.Client) -> None:
    def embedding(**fields: Any) -> Any:
        return post(embed_client, EMBEDDINGS, {"input": "Hi", **fields}).json()["data"][0]["embedding"]

    floats = embedding()
    decoded = array.array("f", base64.b64decode(embedding(encoding_format="base64")))
    assert len(floats) == len(decoded) == 384
    assert floats == pytest.approx(list(decoded), abs=1e-6)
    assert embedding(encoding_format="float") == floats
    assert embedding(encoding_format=None) == floats


def test_a_shortened_vector_is_cut_and_then_normalised_again(embed_client: httpx.Client) -> None:
    def embedding(**fields: Any) -> list[float]:
        return post(embed_client, EMBEDDINGS, {"input": "Hi", **fields}).json()["data"][0]["embedding"]

    full, short = embedding(), embedding(dimensions=64.0)
    norm = math.sqrt(sum(value * value for value in full[:64]))
    assert short == pytest.approx([value / norm for value in full[:64]], abs=1e-6)
    assert embedding(dimensions=384) == full


def test_a_vector_with_nan_is_a_clean_error_that_names_the_input(faulty_embed_pool: Pool) -> None:
    body = {"input": ["good", chr(NO_NUMBERS)], "encoding_format": "float"}
    error = error_of(faulty_embed_pool.post(EMBEDDINGS, body), 500)
    assert "input[1]" in error["message"]
    assert faulty_embed_pool.post(EMBEDDINGS, {"input": "good"}).status_code == 200


def test_among_many_inputs_too(faulty_embed_pool: Pool) -> None:
    """A large answer is written in pieces: not before it is known that there will be all of them."""
    error = error_of(faulty_embed_pool.post(EMBEDDINGS, {"input": ["good"] * 299 + [chr(NO_NUMBERS)]}), 500)
    assert "input[299]" in error["message"]
    assert faulty_embed_pool.post(EMBEDDINGS, {"input": "good"}).status_code == 200


def test_an_input_that_the_engine_fails_at_is_named(faulty_embed_pool: Pool) -> None:
    error = error_of(faulty_embed_pool.post(EMBEDDINGS, {"input": ["good", "good", chr(FAILS_AT_ONCE)]}), 500)
    assert "input[2]" in error["message"]
    assert faulty_embed_pool.post(EMBEDDINGS, {"input": "good"}).status_code == 200


@pytest.mark.parametrize("fault", [FAILS_AT_ONCE, NO_NUMBERS])
@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/encode", {"text": ["good", "BAD"]}, "text[1]"),
        ("/rerank", {"query": "good", "documents": ["good", "BAD"]}, "documents[1]"),
        ("/v2/rerank", {"query": "BAD", "documents": ["good"]}, "query"),
        ("/rerank", {"query": "good", "texts": ["BAD", "good"]}, "texts[0]"),
        ("/score", {"text_1": "good", "text_2": ["good", "BAD"]}, "text_2[1]"),
        ("/embed", {"inputs": ["good", "BAD"]}, "inputs[1]"),
        ("/similarity", {"inputs": {"source_sentence": "good", "sentences": ["BAD"]}}, "inputs.sentences[0]"),
    ],
)
def test_it_is_named_as_the_client_names_it_on_every_route(  # vllm#19661
    faulty_embed_pool: Pool, path: str, fields: dict[str, Any], named: str, fault: int
) -> None:
    body = json.loads(json.dumps(fields).replace("BAD", f"\\u{fault:04x}"))
    response = faulty_embed_pool.post(path, body)
    assert response.status_code == 500
    document = response.json()
    assert named in document.get("error", document)["message"]
    assert faulty_embed_pool.post(path, json.loads(json.dumps(fields).replace("BAD", "x"))).status_code == 200


def test_a_route_that_the_model_cannot_serve_is_a_400_that_says_what_it_can(
    echo_client: httpx.Client, embed_pool: Pool
) -> None:
    error = error_of(post(echo_client, EMBEDDINGS, {"input": "Hi"}))
    assert (error["param"], "generates text" in error["message"]) == ("model", True)
    for path in GENERATING:
        error = error_of(embed_pool.post(path, GOOD[path]))
        assert (error["param"], "makes embeddings" in error["message"]) == ("model", True)


def test_a_vector_of_the_binary_form_is_where_its_metadata_says(embed_pool: Pool) -> None:
    binary = embed_pool.post(EMBEDDINGS, {"input": ["a", "b"], "encoding_format": "bytes"})
    floats = embed_pool.post(EMBEDDINGS, {"input": ["a", "b"]}).json()["data"]
    for item, plain in zip(json.loads(binary.headers["metadata"])["data"], floats, strict=True):
        part = binary.content[item["start"] : item["end"]]
        assert list(struct.unpack(f"<{item['shape'][0]}f", part)) == pytest.approx(plain["embedding"], abs=1e-6)
