"""A streamed answer, a whole answer and the tokenizer's own decode are the same text, wherever it is cut."""

import codecs
import json
from collections.abc import Iterator
from typing import Any

import pytest

from apiserver.tokenizer.byte import SPECIAL_TOKENS
from tests.e2e.answers import CHAT, COMPLETIONS, DIALECTS, Answer, both, detokenized, request, streamed, whole
from tests.pool import ECHO_TEMPLATE, Pool, running_pool
from tests.unit.pipeline.specimens import SPECIAL, SPECIMENS

pytestmark = pytest.mark.e2e

END_OF_TEXT, IM_START, IM_END = SPECIAL_TOKENS.values()

EMOJI = list("a👩‍👧🎉b".encode())
OUTPUTS: dict[str, list[int]] = {
    "ASCII": list(b"Hello, world!"),
    "Latin": list("Grüße ďábel".encode()),
    "CJK": list("世界、日本語".encode()),
    "emoji": EMOJI,
    "combining": list("e\u0301 n\u0303 \U0010ffff".encode()),
    "literal U+FFFD": list("a\ufffdb\ufffd\ufffd".encode()),
    "lone continuation bytes": [*b"a", 0x80, 0xBF, *b"b"],
    "unfinished characters": [0xF0, 0x9F, 0xF0, 0x9F, 0x8E, *b"a", 0xE4, 0xBD],
    "bytes that UTF-8 never has": [0xFF, 0xC0, 0x80, 0xED, 0xA0, 0x80, 0xF5, *b"a"],
    "special tokens in a character": [0xE4, IM_START, 0xBD, 0xA0, END_OF_TEXT, *b"a"],
    "line ends and NUL": list("\r\n\n\x00\u2028\u0085a".encode()),
}

every_dialect = pytest.mark.parametrize("path", DIALECTS)
every_output = pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)


@pytest.fixture(scope="module", params=[1, 2, 5], ids=lambda size: f"{size} a step")
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One API server and a sim that answers with the prompt's ids, so many in a step."""
    output = tmp_path_factory.mktemp("text") / "pool.log"
    flags = ("--api-server-count", "1", "--chat-template", ECHO_TEMPLATE, "--max-model-len", "30000")
    flags += ("--tool-call-parser", "hermes")
    with running_pool(output, *flags, engine=["--mode", "echo", "--tokens-per-step", str(request.param)]) as pool:
        yield pool


def expect_deltas(answer: Answer, text: str) -> None:
    """What was told is at each moment a beginning of the final text, and no delta is empty."""
    told = ""
    for delta in answer.only.deltas:
        told += delta
        assert delta
        assert text.startswith(told)
    assert told == text


# ---- the text ----


@every_dialect
@every_output
def test_cut_at_every_length_both_modes_give_the_tokenizers_decode_of_the_ids(
    pool: Pool, path: str, output: list[int]
) -> None:
    returned: list[list[int]] = []
    texts: list[str] = []
    for length in range(1, len(output) + 2):
        answer = both(pool, path, request(path, output, max_tokens=length, return_token_ids=True))
        choice = answer.only
        ended = length > len(output)
        assert choice.token_ids == [*output, IM_END][:length]
        assert (choice.finish_reason, choice.stop_reason) == ("stop" if ended else "length", None)
        assert answer.counts == (len(output), length, len(output) + length)
        expect_deltas(answer, choice.text)
        returned.append(choice.token_ids)
        texts.append(choice.text)
    assert texts == detokenized(pool, returned)


@every_dialect
@every_output
def test_special_tokens_are_told_where_they_are_asked_for(  # vllm-project/vllm#1044
    pool: Pool, path: str, output: list[int]
) -> None:
    body = request(path, output, max_tokens=100, return_token_ids=True, skip_special_tokens=False)
    choice = both(pool, path, body).only
    # The end token ends the answer, it is no part of it, though it counts.
    assert choice.token_ids == [*output, IM_END]
    assert detokenized(pool, [output], skip_special_tokens=False) == [choice.text]


@every_dialect
def test_an_emoji_is_never_told_in_parts(pool: Pool, path: str) -> None:  # tenstorrent/tt-inference-server#2594
    answer = streamed(pool, path, request(path, EMOJI, max_tokens=100))
    assert answer.only.text == "a👩‍👧🎉b"
    assert not any("\ufffd" in delta for delta in answer.only.deltas)


@every_dialect
def test_invalid_utf8_is_valid_json_with_replacement_characters(pool: Pool, path: str) -> None:  # llama.cpp#11738
    for wrong in range(0x80, 0x100):
        choice = both(pool, path, request(path, [wrong, *b"a", wrong], max_tokens=3)).only
        assert choice.text == bytes([wrong, ord("a"), wrong]).decode(errors="replace")


@every_dialect
def test_ten_thousand_invalid_bytes_come_back_whole(pool: Pool, path: str) -> None:
    output = list(b"\xf0\x9f\xff\xe4" * 2500)
    answer = both(pool, path, request(path, output, max_tokens=10_000))
    assert answer.only.text == bytes(output).decode(errors="replace")
    assert answer.counts == (10_000, 10_000, 20_000)
    # Each byte is decided when the next one comes, so nothing piles up.
    assert max(map(len, answer.only.deltas)) <= 6


@every_dialect
def test_an_error_about_a_broken_prompt_gets_a_clean_refusal(pool: Pool, path: str) -> None:  # ggml-org/llama.cpp#9210
    wrong: list[dict[str, Any]] = [
        {"stop_token_ids": [10**6]},
        {"temperature": -1},
        {"model": "\ud7ff\ufffd\x00"},
        {"max_tokens": 10**6},
    ]
    for fields in wrong:
        for stream in (False, True):
            response = pool.post(path, {**request(path, [0xFF, 0xF0, 0x9F], max_tokens=1, stream=stream), **fields})
            assert response.status_code in (400, 404)
            assert response.json()["error"]["message"]


@every_dialect
def test_a_stream_of_an_openai_route_sends_only_what_is_new(pool: Pool, path: str) -> None:  # sgl-project/sglang#215
    answer = streamed(pool, path, request(path, list(b"abcdefghij"), max_tokens=10))
    assert sum(map(len, answer.only.deltas)) == 10


# ---- stop strings ----

STOPPED = {
    "ASCII": "one two>>three",
    "CJK": "世界は広い。世",
    "emoji": "a🎉b👍🏽c",
    "broken": "a\ufffdb",
}


@every_dialect
@pytest.mark.parametrize("text", STOPPED.values(), ids=STOPPED)
def test_a_stop_string_at_every_place_cuts_both_modes_right_before_it(  # vllm-project/vllm#3574, #3572
    pool: Pool, path: str, text: str
) -> None:
    output = list(text.encode()) if text != STOPPED["broken"] else [*b"a", 0xE4, *b"b"]
    stops = {text[start:end] for start in range(len(text)) for end in range(start + 1, min(start + 4, len(text)) + 1)}
    for stop in sorted(stops):
        start = text.index(stop)
        body = request(path, output, max_tokens=100, stop=stop, return_token_ids=True)
        answer = both(pool, path, body)
        choice = answer.only
        assert (choice.text, choice.finish_reason, choice.stop_reason) == (text[:start], "stop", stop)
        # The ids end with the one that completed the stop string, whatever else its step brought.
        assert _decided(choice.token_ids).startswith(text[:start] + stop)
        assert not _decided(choice.token_ids[:-1]).startswith(text[:start] + stop)
        assert answer.counts == (len(output), len(choice.token_ids), len(output) + len(choice.token_ids))
        expect_deltas(answer, text[:start])
        included = both(pool, path, {**body, "include_stop_str_in_output": True})
        assert included.only.said == (text[:start] + stop, choice.token_ids, "stop", stop)


def _decided(token_ids: list[int]) -> str:
    """The text of these bytes that more bytes cannot change."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(token_ids))


@every_dialect
def test_a_stop_string_that_never_completes_is_text(pool: Pool, path: str) -> None:
    for length in range(1, 11):
        choice = both(pool, path, request(path, list(b"ab>> UP\n>>"), max_tokens=length, stop=[">> UPD", "\n>>>"])).only
        assert (choice.text, choice.finish_reason) == ("ab>> UP\n>>"[:length], "length")


@every_dialect
@pytest.mark.parametrize("stop", [[">>> UPD", ">>> UPD\n"], [">>> UPD\n", ">>> UPD"]])
def test_of_two_stop_strings_that_begin_alike_the_whole_marker_is_cut(  # jundot/omlx#2386
    pool: Pool, path: str, stop: list[str]
) -> None:
    choice = both(pool, path, request(path, list(b"code\n>>> UPD\nmore"), max_tokens=100, stop=stop)).only
    assert (choice.text, choice.stop_reason) == ("code\n", ">>> UPD")


@every_dialect
def test_a_stop_string_is_not_in_the_answer(pool: Pool, path: str) -> None:  # text-generation-inference#1724
    output = list(b"1, 2, 3, 4, 5, 6, 7, 8, 9, 10")
    assert both(pool, path, request(path, output, max_tokens=100, stop=["7"])).only.text == "1, 2, 3, 4, 5, 6, "


@every_dialect
def test_with_a_stop_string_no_delta_is_empty(pool: Pool, path: str) -> None:  # vllm-project/vllm#13087
    answer = streamed(pool, path, request(path, list("é🎉 abc".encode()), max_tokens=100, stop=["zzzz", "abcd"]))
    texts = [_content(chunk) for chunk in answer.chunks if chunk["choices"]]
    if path == CHAT:
        assert answer.chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        texts = texts[1:]
    *texts, last = texts
    assert all(texts)
    assert not last  # the finish chunk


def _content(chunk: dict[str, Any]) -> str | None:
    choice = chunk["choices"][0]
    return choice["delta"].get("content") if "delta" in choice else choice["text"]


@every_dialect
def test_an_empty_stop_string_is_refused_and_no_stop_string_is_none(  # mlc-ai/mlc-llm#2070
    pool: Pool, path: str
) -> None:
    for stop in ("", [""], ["a", ""]):
        response = pool.post(path, request(path, list(b"abc"), max_tokens=3, stop=stop))
        assert (response.status_code, response.json()["error"]["param"]) == (400, "stop")
    for stop in (None, []):
        assert both(pool, path, request(path, list(b"abc"), max_tokens=3, stop=stop)).only.text == "abc"


@every_dialect
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("include", [True, False])
def test_a_special_stop_token_is_told_only_where_both_are_asked_for(  # vllm-project/vllm#3672
    pool: Pool, path: str, skip: bool, include: bool
) -> None:
    body = request(
        path,
        [*"aé".encode(), IM_START, *b"never"],
        max_tokens=100,
        stop_token_ids=[IM_START],
        skip_special_tokens=skip,
        include_stop_str_in_output=include,
        return_token_ids=True,
    )
    answer = both(pool, path, body)
    expected = "aé<|im_start|>" if include and not skip else "aé"
    assert answer.only.said == (expected, [*"aé".encode(), IM_START], "stop", IM_START)
    assert answer.counts[1] == 4


@every_dialect
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("include", [True, False])
def test_an_ordinary_stop_token_is_told_where_it_is_asked_for(pool: Pool, path: str, skip: bool, include: bool) -> None:
    body = request(
        path,
        list(b"abcde"),
        max_tokens=100,
        stop_token_ids=[ord("c")],
        skip_special_tokens=skip,
        include_stop_str_in_output=include,
        return_token_ids=True,
    )
    assert both(pool, path, body).only.said == ("abc" if include else "ab", list(b"abc"), "stop", ord("c"))


@every_dialect
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("include", [True, False])
def test_a_stop_string_over_special_tokens_is_that_of_the_text(
    pool: Pool, path: str, skip: bool, include: bool
) -> None:
    """Where special tokens are skipped, the text goes on over them; where they are told, a stop string may name one."""
    output = [*b"ab#", IM_START, *b"#cd"]
    stop = "##" if skip else "<|im_start|>#"
    body = request(
        path, output, max_tokens=100, stop=stop, skip_special_tokens=skip, include_stop_str_in_output=include
    )
    answer = both(pool, path, body)
    before = "ab" if skip else "ab#"
    assert answer.only.said == (before + (stop if include else ""), [], "stop", stop)
    assert answer.counts[1] == 5


@every_dialect
@pytest.mark.parametrize(("min_tokens", "expected"), [(0, "a"), (2, "a"), (3, "a>>b"), (5, "a>>b"), (6, "a>>b>>")])
def test_a_stop_string_within_min_tokens_is_text(pool: Pool, path: str, min_tokens: int, expected: str) -> None:
    body = request(path, list(b"a>>b>>"), max_tokens=6, stop=">>", min_tokens=min_tokens)
    assert both(pool, path, body).only.text == expected


@every_dialect
def test_the_engine_is_told_when_a_stop_string_ends_an_answer(pool: Pool, path: str) -> None:  # vllm-project/vllm#57052
    body = request(path, list(b"ab##" + b"x" * 100), max_tokens=20_000, ignore_eos=True, stop="##")
    assert both(pool, path, body).only.text == "ab"
    pool.wait_idle()


def test_text_before_a_stop_string_arrives_with_tools_in_the_request(pool: Pool) -> None:  # vllm-project/vllm#42210
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    message = {"role": "user", "content": "I looked. ## and more"}
    body = {"model": "sim", "messages": [message], "tools": [tool], "tool_choice": "auto", "stop": [" ##"]}
    assert both(pool, CHAT, body).only.said == ("I looked.", [], "stop", " ##")


# ---- a sentencepiece tokenizer, end to end ----


@pytest.fixture(scope="module")
def pieces_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """The same with a tokenizer of pieces and byte tokens."""
    specimen = SPECIMENS["byte fallback"]
    directory = tmp_path_factory.mktemp("pieces")
    (directory / "tokenizer.json").write_text(specimen.backend.to_str())
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL}))
    (end,) = specimen.ids(SPECIAL)
    engine = ["--mode", "echo", "--tokens-per-step", "2"]
    engine += ["--vocab-size", str(specimen.ours.vocab_size), "--eos-token-id", str(end)]
    flags = ("--api-server-count", "1", "--tokenizer", str(directory), "--chat-template", ECHO_TEMPLATE)
    with running_pool(directory / "pool.log", *flags, engine=engine) as pool:
        yield pool


@every_dialect
def test_sentencepiece_words_keep_their_spaces_and_bytes_their_characters(  # huggingface/transformers#22710
    pieces_pool: Pool, path: str
) -> None:
    output = SPECIMENS["byte fallback"].ids(
        *("▁the", "▁dog", "<0xF0>", "<0x9F>", "<0x8E>", "<0x89>", "▁the", "<0xE4>", "▁", "two words", "ing")
    )
    texts: list[str] = []
    for length in range(1, len(output) + 1):
        answer = both(pieces_pool, path, request(path, output, max_tokens=length))
        expect_deltas(answer, answer.only.text)
        texts.append(answer.only.text)
    assert texts[-1] == "the dog🎉 the\ufffd two wordsing"
    assert texts == detokenized(pieces_pool, [output[:length] for length in range(1, len(output) + 1)])


def test_a_stop_string_is_found_in_a_run_of_byte_tokens(pieces_pool: Pool) -> None:
    output = SPECIMENS["byte fallback"].ids("▁the", *(f"<0x{byte:02X}>" for byte in "🎉👍".encode()), "▁dog")
    answer = both(pieces_pool, COMPLETIONS, request(COMPLETIONS, output, max_tokens=100, stop="👍"))
    assert answer.only.said == ("the🎉", [], "stop", "👍")


def test_tokens_of_a_prompt_each_have_their_own_text(pieces_pool: Pool) -> None:  # vllm-project/vllm#5334
    specimen = SPECIMENS["byte fallback"]
    output = specimen.ids("▁the", "▁dog", "ing", "▁the")
    body = request(COMPLETIONS, output, max_tokens=4, echo=True, logprobs=1)
    (logprobs,) = whole(pieces_pool, COMPLETIONS, body).only.logprobs
    assert logprobs["tokens"] == [" the", " dog", "ing", " the"] * 2
    assert logprobs["text_offset"] == [0, 3, 7, 10, 14, 17, 21, 24]


def test_the_log_of_all_this_has_no_traceback(pool: Pool) -> None:
    assert "Traceback" not in pool.log
