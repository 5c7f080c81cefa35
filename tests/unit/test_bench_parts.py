"""The parts of the benchmarks that need no server: configurations, conversions, texts and statistics."""

import argparse
import asyncio
import base64
import json
import os
import random
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.script_parts import load_parts

(
    arguments,
    balance,
    client,
    encoding,
    errors,
    footprint,
    load,
    mixed_configs,
    pool,
    qwen,
    server_timing,
    texts,
    tokenizer_files,
) = load_parts(
    "benchlib",
    "arguments",
    "balance",
    "client",
    "encoding",
    "errors",
    "footprint",
    "load",
    "mixed_configs",
    "pool",
    "qwen",
    "server_timing",
    "texts",
    "tokenizer_files",
)

SERVE_HELP = """\
usage: apiserver serve [--tokenizer TOKENIZER] [--tokenizer-backend {auto,fastokens,hf}] [MODEL]
  --tokenizer TOKENIZER, --tokenizer-path TOKENIZER
  --tokenizer-backend {auto,fastokens,hf}
  --preprocess-order {arrival,ready}  ready lets short prompts pass
  --preprocess-inline   never use the thread
"""


# ---- Server-Timing ----------------------------------------------------------------------------------------------


def test_stages_are_read_in_the_servers_order_and_in_seconds() -> None:
    head = (
        b'HTTP/1.1 200 OK\r\nserver-timing: parse;dur=0.05, engine;desc="a b";dur=5, cache\r\nx: y\r\n'
        b'server-timing:total;dur="6.5"\r\n'
    )
    assert server_timing.stages(head) == {"parse": 0.00005, "engine": 0.005, "total": 0.0065}
    assert server_timing.stages(b"HTTP/1.1 200 OK\r\nx-server-timing: a;dur=1\r\n") == {}
    found = server_timing.summaries([head, head, b"HTTP/1.1 200 OK\r\n"])
    assert (found["engine"]["count"], found["engine"]["p50"]) == (2, 0.005)


# ---- our own pool -----------------------------------------------------------------------------------------------


def test_a_flag_is_known_by_its_whole_name_and_its_choices() -> None:
    flags = pool.ServeFlags(SERVE_HELP)
    assert flags.has("--tokenizer-backend", "hf")
    assert not flags.has("--tokenizer-backend", "rust")
    assert flags.has("--preprocess-inline")
    assert not flags.has("--preprocess")
    assert not pool.ServeFlags("--tokenizer TOKENIZER").has("--tokenizer-backend", "hf")


def test_the_command_line_of_a_pool_ends_with_what_the_engine_gets() -> None:
    spec = pool.PoolSpec(
        model="sim",
        api_server_count=2,
        tokenizer=Path("/t"),
        flags=("--max-model-len", "9"),
        engine_arguments=("--step-ms", "1"),
    )
    said = "serve sim --port 0 --engine sim --api-server-count 2 --tokenizer /t --max-model-len 9 -- --step-ms 1"
    assert spec.arguments() == said.split()
    assert pool.PoolSpec(model="minilm").arguments() == ["serve", "minilm", "--port", "0"]


def test_a_pool_that_cannot_start_is_an_error_with_its_last_words() -> None:
    async def start() -> None:
        async with pool.started(pool.PoolSpec(model="./no-such.gguf")):
            raise AssertionError("it started")

    with pytest.raises(errors.PoolError, match=r"ended with status \d.*no-such"):
        asyncio.run(start())


def test_configurations_are_all_combinations_that_there_are_flags_for() -> None:
    configs, notes = mixed_configs.expand(
        [1, 4], ["fastokens", "hf"], ["arrival", "inline"], pool.ServeFlags(SERVE_HELP)
    )
    assert notes == []
    assert [config.name for config in configs[:3]] == [
        "1 API server, fastokens, arrival",
        "1 API server, fastokens, inline",
        "1 API server, hf, arrival",
    ]
    assert len(configs) == 8
    assert configs[1].flags() == ("--tokenizer-backend", "fastokens", "--preprocess-inline")
    assert configs[2].flags() == ("--tokenizer-backend", "hf", "--preprocess-order", "arrival")


def test_what_a_pool_has_no_flag_for_is_said_and_left_out() -> None:
    old = SERVE_HELP.replace("--preprocess-inline", "--nothing").replace("fastokens,", "")
    configs, notes = mixed_configs.expand([1], ["fastokens", "hf"], ["arrival", "inline"], pool.ServeFlags(old))
    assert [config.name for config in configs] == ["1 API server, hf, arrival"]
    assert notes == [
        "this apiserver has no --tokenizer-backend fastokens: not measured",
        "this apiserver has no --preprocess-inline: not measured",
    ]
    configs, notes = mixed_configs.expand([2], ["hf"], ["ready"], pool.ServeFlags(""))
    assert [(config.name, config.flags()) for config in configs] == [("2 API servers", ())]
    assert len(notes) == 2


def test_settings_hold_no_key_and_no_path() -> None:
    parser = argparse.ArgumentParser()
    arguments.add_server(parser, model="sim")
    arguments.add_outcome(parser)
    said = ["--api-key", "k", "--tokenizer", "/home/me/qwen", "--model", "Qwen/Qwen3-8B", "--json", "/home/me/x"]
    options = parser.parse_args([*said, "--pool-flags", "--chat-template /home/me/t.jinja"])
    settings = arguments.settings_of(options)
    assert settings["tokenizer"] == "qwen"
    assert settings["model"] == "Qwen/Qwen3-8B"
    assert settings["pool_flags"] == ["--chat-template", "t.jinja"]
    assert "/home/me" not in json.dumps(settings)
    assert "api_key" not in settings


# ---- Qwen3's tokenizer ------------------------------------------------------------------------------------------


def tiny_ranks() -> dict[bytes, int]:
    tokens = [bytes((byte,)) for byte in range(256)] + [
        b"he",
        b"ll",
        b" w",
        b"hell",
        b"hello",
        "é".encode(),
        b"or",
        b" wor",
    ]
    return {token: rank for rank, token in enumerate(tokens)}


def test_merges_follow_from_ranks() -> None:
    assert qwen.merges(tiny_ranks()) == [
        (b"h", b"e"),
        (b"l", b"l"),
        (b" ", b"w"),
        (b"he", b"ll"),
        (b"hell", b"o"),
        (b"\xc3", b"\xa9"),
        (b"o", b"r"),
        (b" w", b"or"),
    ]
    with pytest.raises(ValueError, match="no merge makes"):
        qwen.merges({**tiny_ranks(), b"xyz": 264})


def test_the_made_tokenizer_encodes_decodes_and_knows_its_added_tokens() -> None:
    ranks = tiny_ranks()
    document = qwen.tokenizer_json(ranks, special=["<|end|>"], text=["<think>"])
    tokenizer = Tokenizer.from_str(json.dumps(document))
    ids = tokenizer.encode("hello world<|end|><think>\u0065\u0301").ids
    assert ids == [ranks[b"hello"], ranks[b" wor"], ranks[b"l"], ranks[b"d"], 264, 265, ranks["é".encode()]]
    assert tokenizer.decode(ids) == "hello world<think>é"
    every = tokenizer.encode("".join(map(chr, range(0x20, 0x250)))).ids
    assert tokenizer.decode(every) == "".join(map(chr, range(0x20, 0x250)))


def test_ranks_are_read_from_tiktokens_form() -> None:
    lines = b"\n".join(b"%s %d" % (base64.b64encode(token), rank) for token, rank in tiny_ranks().items())
    assert qwen.read_ranks(lines + b"\n\n") == tiny_ranks()


def test_tokenizers_are_found_by_name_or_by_directory(tmp_path: Path) -> None:
    assert tokenizer_files.find_tokenizer("byte") is None
    assert (tokenizer_files.find_tokenizer("minilm") / "tokenizer.json").is_file()
    (tmp_path / "tokenizer.json").write_text("{}")
    assert tokenizer_files.find_tokenizer(str(tmp_path)) == tmp_path
    assert tokenizer_files.find_tokenizer(str(tmp_path / "tokenizer.json")) == tmp_path
    with pytest.raises(ValueError, match="not byte, minilm or qwen3"):
        tokenizer_files.find_tokenizer(str(tmp_path / "other"))


# ---- texts ------------------------------------------------------------------------------------------------------


def words_of(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\S+", text)]


@pytest.mark.parametrize("tokens", [1, 40, 3000])
def test_shuffled_texts_have_their_length_and_differ(tokens: int) -> None:
    rng = random.Random(4)
    made = [texts.shuffled(rng, tokens, words_of) for _ in range(5)]
    assert [len(words_of(text)) for text in made] == [tokens] * 5
    assert tokens == 1 or len(set(made)) == 5
    assert texts.shuffled(random.Random(4), tokens, words_of) == made[0]


def test_prose_is_always_the_same_and_as_long_as_asked() -> None:
    assert len(texts.prose(600_000)) == 600_000
    assert texts.prose(600_000).startswith(texts.prose(1000))


def test_awkward_strings_are_reproducible() -> None:
    strings = encoding.awkward_strings(random.Random(1), 50)
    assert strings == encoding.awkward_strings(random.Random(1), 50)
    assert any(not string.isascii() for string in strings)


# ---- load and numbers -------------------------------------------------------------------------------------------


def test_an_open_loop_uses_the_connections_it_was_told_to_open_in_turn() -> None:
    seen: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = len(seen)
        seen.append(0)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                seen[own] += 1
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            await writer.wait_closed()

    async def work() -> list[str | None]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        replies: list[str | None] = []
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            target = client.Target.parse(url, api_key=None)
            now = asyncio.get_running_loop().time()
            await load.open_loop(
                target,
                iter([target.request("GET", "/")] * 9),
                schedule=[now + 0.05 + at / 100 for at in range(9)],
                timeout_seconds=5,
                on_reply=lambda due, reply: replies.append(reply.failure),
                connections=3,
            )
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
        return replies

    assert asyncio.run(work()) == [None] * 9
    assert len(seen) >= 3
    assert sum(seen) == 9
    assert sum(count > 0 for count in seen) >= 3


def test_unevenness_is_the_fullest_to_the_mean() -> None:
    assert balance.unevenness([2, 2, 2, 2]) == 1.0
    assert balance.unevenness([8, 0, 0, 0]) == 4.0
    assert balance.unevenness([0, 0]) == 0.0
    assert balance.least_unevenness(64, 4) == 1.0
    assert balance.least_unevenness(9, 4) == pytest.approx(3 / 2.25)
    found = balance.summary([[2, 2, 2, 2], [1, 3, 2, 2], [2, 2, 2, 2]])
    assert (found["median"], found["worst"], found["best_possible"]) == (1.0, 1.5, 1.0)
    assert found["even_share"] == pytest.approx(2 / 3)
    assert found["trials"][1] == [3, 2, 2, 1]


def test_parts_gather_the_api_servers_and_nothing_else() -> None:
    values = {"api-0": 1, "api-11": 2, "engine": 3, "ApiServer_0": 4}
    assert footprint.by_part(values) == {"API server": [1, 2], "engine": [3], "ApiServer_0": [4]}


def test_memory_and_idle_cpu_are_those_of_a_process() -> None:
    roles = {os.getpid(): "engine"}
    found = footprint.memory({**roles, 2**22 - 1: "api-0"})
    assert set(found) == {"engine"}
    assert found["engine"]["pss"] >= found["engine"]["uss"] > 1_000_000
    shares = asyncio.run(footprint.idle_shares(roles, 0.02))
    assert 0 <= shares["engine"] < 10
