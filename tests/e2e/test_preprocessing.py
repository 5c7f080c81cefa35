"""Preprocessing beside everything else, on one worker with a real tokenizer: who waits for whom, and who does not.

With `tokenizers` (`hf`), a long prompt takes a second; with fastokens, milliseconds.
"""

import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from tests.e2e.one_worker import COMPLETIONS, MEGABYTE, Bench, Poller, bench_of, crc_of, prose, timing
from tests.pool import Pool, running_pool
from tests.real_tokenizers import tokenizer_directory
from tests.streams import KeptConnection, OpenRequest
from tests.varied_texts import varied_texts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

CHAT, EMBEDDINGS, TOKENIZE = "/v1/chat/completions", "/v1/embeddings", "/tokenize"


@pytest.fixture(scope="session")
def qwen() -> Tokenizer:
    """The reference."""
    return Tokenizer.from_file(str(tokenizer_directory("qwen3") / "tokenizer.json"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """`tokenizers`, in order of arrival."""
    with bench_of(tmp_path_factory.mktemp("slow"), "--tokenizer-backend", "hf", engine=["--step-ms", "1"]) as bench:
        yield bench


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """`tokenizers`, in order of readiness."""
    flags = ("--tokenizer-backend", "hf", "--preprocess-order", "ready")
    with bench_of(tmp_path_factory.mktemp("ready"), *flags) as bench:
        yield bench


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """fastokens, and a context of ordinary length."""
    with bench_of(tmp_path_factory.mktemp("fast"), length=40_960) as bench:
        yield bench


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    engine = ["--task", "embed"]
    with bench_of(tmp_path_factory.mktemp("embedding"), tokenizer="minilm", engine=engine, length=512) as bench:
        yield bench


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Bench:
    """The bench of the parameter's name."""
    return request.getfixturevalue(request.param)


# ---- ids under load ----


@pytest.mark.parametrize("bench", ["slow", "ready", "fast"], indirect=True)
def test_long_and_short_requests_at_once_get_the_ids_of_the_reference(bench: Bench, qwen: Tokenizer) -> None:
    """huggingface/tokenizers#537, huggingface/transformers#47085: "Already borrowed", or another's settings."""
    seconds = 3.0
    texts = [*varied_texts()[::40], *(prose(60_000, seed) for seed in range(4))]
    with_template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    plain = {text: qwen.encode(text).ids for text in texts}
    templated = {text: qwen.encode(with_template.format(text)).ids for text in texts}
    end = time.monotonic() + seconds

    def client(number: int) -> int:
        source = random.Random(number)
        served = 0
        with httpx.Client(base_url=bench.pool.url, timeout=60) as http:
            while time.monotonic() < end:
                # Two of the six send nothing but long ones.
                text = source.choice(texts[-4:] if number < 2 else texts[:-4])
                path = source.choice((CHAT, COMPLETIONS, TOKENIZE))
                ids, expected = ask(http, path, text)
                assert ids == (templated if expected == "templated" else plain)[text], ascii(text)
                served += 1
        return served

    def ask(http: httpx.Client, path: str, text: str) -> tuple[list[int], str]:
        prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
        response = http.post(path, json={**prompt, "max_tokens": 1, "return_token_ids": True})
        assert response.status_code == 200, response.text
        document = response.json()
        if path == TOKENIZE:
            return document["tokens"], "plain"
        if path == CHAT:
            return document["prompt_token_ids"], "templated"
        return document["choices"][0]["prompt_token_ids"], "plain"

    with ThreadPoolExecutor(6) as executor:
        assert min(executor.map(client, range(6))) > 0
    assert "borrowed" not in bench.pool.log


# ---- order ----


def test_in_arrival_order_a_short_prompt_waits_for_an_earlier_long_one(slow: Bench) -> None:
    """sgl-project/sglang#39716."""
    with slow.noting() as arrived, slow.send_long(1) as long:
        short = slow.completion("Hi")
        assert long.status == 200
    assert [entry["prompt_tokens"] > 1000 for entry in arrived] == [True, False]
    assert timing(short.headers, "wait") > 0


def test_in_arrival_order_it_waits_also_for_one_whose_client_has_left(slow: Bench) -> None:
    with slow.noting() as arrived:
        left = slow.send_long(2)
        with slow.send_long(3) as second:
            left.close()
            short = slow.completion("Hi")
            assert second.status == 200
    # Of the first, nothing reaches the engine; the others are as they came.
    assert [entry["prompt_tokens"] > 1000 for entry in arrived] == [True, False]
    assert timing(short.headers, "wait") > timing(second.response.headers, "tokenize")


def test_a_job_whose_client_has_left_keeps_its_place_to_its_end(slow: Bench) -> None:
    with slow.noting() as arrived:
        slow.send_long(4).close()
        short = slow.completion("Hi")
    assert [entry["prompt_tokens"] > 1000 for entry in arrived] == [False]
    assert timing(short.headers, "wait") > 0


def test_in_ready_order_a_short_prompt_goes_past_a_long_one(ready: Bench) -> None:
    with ready.noting() as arrived, ready.send_long(5) as long:
        short = ready.completion("Hi")
        assert long.status == 200
    assert [entry["prompt_tokens"] > 1000 for entry in arrived] == [False, True]
    assert timing(short.headers, "wait") == 0


# ---- nobody else waits ----


def test_the_worker_answers_while_a_long_prompt_is_encoded(slow: Bench) -> None:
    """vllm-project/vllm#24910: there, the probe stood still for as long as the encoding took."""
    with Poller(slow.pool.url) as live, slow.send_long(6) as long:
        encoding = timing(long.response.headers, "tokenize")
    assert timing(long.response.headers, "wait") > 0  # it went to the thread
    assert live.worst < encoding / 2
    assert len(live.latencies) > 100


def test_on_the_loop_it_would_not_answer(tmp_path: Path) -> None:
    """What the thread is good for: the same without it."""
    with bench_of(tmp_path, "--tokenizer-backend", "hf", "--preprocess-inline") as inline:
        with Poller(inline.pool.url) as live, inline.send_long(7) as long:
            encoding = timing(long.response.headers, "tokenize")
        assert timing(long.response.headers, "wait") == 0
        assert live.worst > encoding / 2


def test_running_streams_go_on_while_a_long_prompt_is_encoded(slow: Bench) -> None:
    """vllm-project/vllm#1026: one long prompt paused all other streams."""
    gaps: list[float] = []

    def stream(stop: threading.Event) -> None:
        body = {"prompt": "Hi", "max_tokens": 100_000, "stream": True}
        with OpenRequest(slow.pool.url, COMPLETIONS, body) as request:
            request.read_some()
            started.release()
            last = time.perf_counter()
            while not stop.is_set():
                request.read_some()
                now = time.perf_counter()
                gaps.append(now - last)
                last = now

    stop, started = threading.Event(), threading.Semaphore(0)
    with ThreadPoolExecutor(4) as executor:
        streams = [executor.submit(stream, stop) for _ in range(4)]
        try:
            for _ in streams:
                assert started.acquire(timeout=20)
            gaps.clear()
            with slow.send_long(8) as long:
                encoding = timing(long.response.headers, "tokenize")
        finally:
            stop.set()
        for done in streams:
            done.result()
    assert max(gaps) < encoding / 2
    slow.pool.wait_idle()


def test_light_endpoints_answer_while_long_conversations_are_rendered(slow: Bench) -> None:
    """vllm-project/vllm#34789: their 95th percentile rose above 200 ms, with spikes above a second."""
    history = [{"role": "assistant" if number % 2 else "user", "content": prose(800, number)} for number in range(60)]
    with contextlib.ExitStack() as stack, httpx.Client(base_url=slow.pool.url, timeout=60) as http:
        pollers = [stack.enter_context(Poller(slow.pool.url, path)) for path in ("/live", "/health", "/v1/models")]
        with ThreadPoolExecutor(4) as executor:
            bodies = [{"messages": [*history, {"role": "user", "content": str(n)}], "max_tokens": 1} for n in range(60)]
            for response in executor.map(lambda body: http.post(CHAT, json=body), bodies):
                assert response.status_code == 200, response.text
    for poller in pollers:
        latencies = sorted(poller.latencies)
        assert latencies[len(latencies) * 95 // 100] < 0.2
        assert latencies[-1] < 1


# ---- many texts are long work too ----


def test_two_thousand_short_inputs_leave_the_loop_and_arrive_in_order(embedding: Bench) -> None:
    inputs = [prose(70, number) for number in range(2048)]
    reference = Tokenizer.from_file(str(tokenizer_directory("minilm") / "tokenizer.json"))
    reference.no_padding()
    reference.no_truncation()
    with Poller(embedding.pool.url) as live, embedding.noting() as arrived:
        response = embedding.pool.post(EMBEDDINGS, {"input": inputs, "encoding_format": "base64"})
    assert response.status_code == 200
    assert timing(response.headers, "wait") > 0
    assert live.worst < 1
    expected = [reference.encode(text).ids for text in inputs]
    assert [entry["crc"] for entry in arrived] == [crc_of(ids) for ids in expected]
    assert response.json()["usage"]["prompt_tokens"] == sum(map(len, expected))


def test_a_message_of_two_hundred_parts_leaves_the_loop(slow: Bench, qwen: Tokenizer) -> None:
    parts = [{"type": "text", "text": prose(700, number)} for number in range(200)]
    with Poller(slow.pool.url) as live:
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "return_token_ids": True}
        response = slow.pool.post(CHAT, body)
    assert response.status_code == 200
    assert timing(response.headers, "wait") > 0
    assert live.worst < 1
    text = "\n".join(part["text"] for part in parts)
    expected = qwen.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").ids
    assert response.json()["prompt_token_ids"] == expected


# ---- megabytes ----


@pytest.mark.parametrize("megabytes", [5, 27])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_megabytes_that_cannot_fit_are_a_400_and_the_worker_answers_meanwhile(
    fast: Bench, path: str, megabytes: int
) -> None:
    """vllm-project/vllm#24910: 4.8 s and 28.8 s without an answer to the probe."""
    text = prose(megabytes * MEGABYTE, megabytes)
    prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    with Poller(fast.pool.url) as live:
        response = fast.pool.post(path, {**prompt, "max_tokens": 1})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert live.worst < 2


def test_five_megabytes_that_fit_go_through_the_thread(slow: Bench, qwen: Tokenizer) -> None:
    text = prose(5 * MEGABYTE, 55)
    with Poller(slow.pool.url) as live, slow.noting() as arrived:
        response = slow.pool.client.post(COMPLETIONS, json={"prompt": text, "max_tokens": 1}, timeout=120)
    assert response.status_code == 200, response.text
    assert live.worst < timing(response.headers, "tokenize") / 2
    assert [entry["crc"] for entry in arrived] == [crc_of(qwen.encode_batch_fast([text])[0].ids)]


def test_a_long_input_of_a_few_tokens_is_embedded(embedding: Bench) -> None:
    """Its length says nothing: MiniLM's tokenizer drops white space, and a word of any length is one [UNK]."""
    for text in (" " * 100_000 + "hello" + "\n" * 100_000, "hello " + "a" * 100_000):
        response = embedding.pool.post(EMBEDDINGS, {"input": text})
        assert response.status_code == 200, response.text
        assert response.json()["usage"]["prompt_tokens"] <= 4
    over = embedding.pool.post(EMBEDDINGS, {"input": ["fits", " " * 10_000 + "one two three " * 100_000]})
    assert over.status_code == 400
    assert over.json()["error"]["param"] == "input[1]"


# ---- which backend ----


def test_the_pool_says_which_backend_and_why(fast: Bench, slow: Bench, embedding: Bench) -> None:
    def backend(bench: Bench) -> tuple[str, str]:
        told = bench.pool.pool()["tokenizer_backend"]
        return told["name"], told["reason"]

    assert backend(fast) == ("fastokens", "its ids agree with tokenizers'")
    assert backend(slow) == ("hf", "asked for")
    name, reason = backend(embedding)
    assert name == "words"
    assert "fastokens cannot load it: " in reason
    assert reason in embedding.pool.log


def test_asking_for_a_backend_that_cannot_be_used_ends_the_start_with_one_line(tmp_path: Path) -> None:
    flags = ("--tokenizer-backend", "fastokens")
    with (
        pytest.raises(AssertionError, match="the pool ended with 3") as caught,
        bench_of(tmp_path, *flags, tokenizer="minilm"),
    ):
        pass
    said = str(caught.value)
    assert "--tokenizer-backend fastokens: fastokens cannot load it: " in said
    assert "Traceback" not in said


# ---- prompts that are ids already ----


def test_prompts_of_token_ids_are_spread_like_text(tmp_path: Path) -> None:
    """sgl-project/sglang#29367: they all went to one worker, which became the ceiling."""
    with running_pool(tmp_path / "pool.log", "--api-server-count", "4") as pool, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(KeptConnection(pool.url)) for _ in range(16)]
        for connection in connections:
            body = json.dumps({"prompt": [72, 105], "max_tokens": 1})
            connection.request("POST", COMPLETIONS, body, {"content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            assert response.status == 200
        assert all(process["requests"] >= 2 for process in pool.pool()["processes"])


# ---- the engine beside it ----


def test_an_engine_that_stands_still_stops_no_worker(tmp_path: Path) -> None:
    """waybarrios/vllm-mlx#261: there, the engine ran in the server's own loop, and nothing was answered for minutes."""
    hang = 1
    with (
        running_pool(tmp_path / "pool.log", "--api-server-count", "1", engine=["--fault", f"hang:{hang}"]) as pool,
        OpenRequest(pool.url, COMPLETIONS, {"prompt": [hang], "max_tokens": 1}),
    ):
        with Poller(pool.url) as live, KeptConnection(pool.url) as other:
            for _ in range(50):
                assert other.get("/v1/models").status == 200
            assert pool.post(TOKENIZE, {"prompt": "Hi"}).json()["count"] == 2
        assert live.worst < 1


# ---- conversations ----


@pytest.mark.parametrize("path", [CHAT, TOKENIZE, f"{CHAT}/render"])
def test_a_conversation_needs_nothing_beside_it(echo_pool: Pool, path: str) -> None:
    """vllm-project/vllm#13951: one route's fields lacked what the code behind them read."""
    response = echo_pool.post(path, {"messages": [{"role": "user", "content": "Hi"}]})
    assert response.status_code == 200, response.text
