"""What SGLang does to those who do not know it, and that it does not happen here."""

import asyncio
import os
from collections.abc import Awaitable, Callable

import msgspec
import psutil
import pytest

from engine_bridge.engines import EngineError, EngineRefusal
from engine_bridge.engines.sglang import create
from engine_bridge.wire import Failure, FailureKind, FinishReason, Output, Score, unpack_ids
from tests.engine_bench import Bench, bench_of, ids_of
from tests.real_tokenizers import tokenizer_json
from tests.sglang.shared import Running
from tests.sglang.tiny_models import CPU_FLAGS, directory

PROMPT = (1, 1183, 6333, 1070)


@pytest.fixture
def running(start: Callable[..., Running]) -> Running:
    return start("llama")


def on(running: Running, test: Callable[[Bench], Awaitable[None]]) -> None:
    async def with_bench() -> None:
        async with bench_of(running.shared()) as bench:
            await test(bench)

    running.run(with_bench())


def test_an_id_outside_the_vocabulary_is_refused_and_it_lives(running: Running) -> None:
    size = running.capabilities.vocab_size

    async def check(bench: Bench) -> None:
        requests = [bench.generate(prompt) for prompt in ((size,), (-1,), (5, 999_999), ())]
        requests += [bench.generate(PROMPT, stop_token_ids=(size,)), bench.generate(PROMPT, logit_bias=((size, 1.0),))]
        for request in requests:
            assert (await bench.failure(request)).kind is FailureKind.INVALID
        score = Score(
            bench.next_id(), requests[0].prompt_token_ids[:0] + bench.generate((5,)).prompt_token_ids, (size,)
        )
        assert (await bench.failure(score)).kind is FailureKind.INVALID
        assert len(await bench.token_ids(bench.generate(PROMPT, max_tokens=3, ignore_eos=True))) == 3

    on(running, check)


def test_what_it_cannot_do_is_invalid(running: Running) -> None:
    async def check(bench: Bench) -> None:
        fields = (
            {"lora": "nobody"},
            {"seed": 1},
            {"regex": "a", "json_schema": "{}"},
            {"temperature": -1.0},
            {"top_p": 0.0},
            {"repetition_penalty": 3.0},
        )
        for each in fields:
            failure = await bench.failure(bench.generate(PROMPT, **each))
            assert failure.kind is FailureKind.INVALID
            assert failure.message
        assert (await bench.failure(bench.embed(PROMPT))).kind is FailureKind.INVALID
        too_long = bench.generate([5] * bench.capabilities.max_model_len)
        assert (await bench.failure(too_long)).kind is FailureKind.INVALID

    on(running, check)


def test_an_abort_ends_its_own_request_and_none_whose_id_begins_alike(running: Running) -> None:
    async def check(bench: Bench) -> None:
        keys = bench.submit(*[bench.generate(PROMPT, max_tokens=40, ignore_eos=True) for _ in range(20)])
        await bench.until(lambda: len(bench.answers) == 20)
        bench.abort(keys[0])
        ends = await bench.ends(*keys[1:])
        assert {end.finish_reason for end in ends if isinstance(end, Output)} == {FinishReason.LENGTH}
        await bench.until_idle()

    on(running, check)


def test_an_answer_that_cannot_be_read_ends_its_own_request_alone(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's own arrangement of logprobs stumbles; the others of the step asked for none."""

    def stumble(*_: object, **__: object) -> None:
        raise IndexError("list index out of range")

    session = running.engine._session
    assert session is not None
    monkeypatch.setattr(session._manager, "convert_logprob_style", stumble)

    async def check(bench: Bench) -> None:
        plain = [bench.generate(PROMPT, max_tokens=20, ignore_eos=True) for _ in range(3)]
        scored = bench.generate(PROMPT, max_tokens=20, ignore_eos=True, logprobs=1)
        *others, [end] = [await bench.ends(key) for key in bench.submit(*plain, scored)]
        assert isinstance(end, Failure)
        assert end.kind is FailureKind.INTERNAL
        assert [end.finish_reason for [end] in others if isinstance(end, Output)] == [FinishReason.LENGTH] * 3
        await bench.until_idle()

    on(running, check)


def test_an_abort_leaves_nothing_running_in_the_scheduler(running: Running) -> None:
    async def check(bench: Bench) -> None:
        keys = bench.submit(*[bench.long_request(PROMPT) for _ in range(8)])
        await bench.until(lambda: len(bench.answers) == 8)
        bench.abort(*keys)
        await bench.until_idle()
        (load,) = (await bench.engine.admin("internal_state", {}))["loads"]
        assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0)

    on(running, check)


def test_stop_tokens_are_seen_where_end_tokens_are_ignored(running: Running) -> None:
    async def check(bench: Bench) -> None:
        greedy = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
        ids = await bench.token_ids(bench.generate(PROMPT, **greedy))
        outputs = await bench.outputs(bench.generate(PROMPT, **greedy, stop_token_ids=(ids[4],), min_tokens=2))
        assert outputs[-1].finish_reason is FinishReason.STOP
        assert ids_of(outputs)[-1] == ids[4]
        await bench.until_idle()

    on(running, check)


def test_whole_and_streamed_are_the_same_ids_and_each_comes_once(running: Running) -> None:
    async def check(bench: Bench) -> None:
        request = bench.generate(PROMPT, max_tokens=30, temperature=0.0, ignore_eos=True, logprobs=1)
        outputs = await bench.outputs(request)
        assert len(outputs) > 1
        assert len(ids_of(outputs)) == 30
        for output in outputs:
            assert output.logprobs is not None
            assert len(output.logprobs) == len(unpack_ids(output.new_token_ids))
            for token_id, entry in zip(unpack_ids(output.new_token_ids), output.logprobs, strict=True):
                assert entry.top[0] == (token_id, entry.logprob)

    on(running, check)


@pytest.mark.parametrize(
    ("params", "texts"),
    [
        ({"regex": "(yes|no)"}, {"yes", "no"}),
        ({"grammar": 'root ::= "left" | "right"'}, {"left", "right"}),
        (
            {
                "structural_tag": msgspec.json.encode(
                    {
                        "type": "structural_tag",
                        "format": {
                            "type": "tag",
                            "begin": "<a>",
                            "content": {"type": "regex", "pattern": "[xy]"},
                            "end": "</a>",
                        },
                    }
                ).decode()
            },
            {"<a>x</a>", "<a>y</a>"},
        ),
    ],
    ids=["regex", "grammar", "structural_tag"],
)
def test_grammars_work_without_a_tokenizer_in_the_core(
    running: Running, params: dict[str, str], texts: set[str]
) -> None:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json("mistral"))

    async def check(bench: Bench) -> None:
        outputs = await bench.outputs(bench.generate(PROMPT, max_tokens=40, **params))
        assert outputs[-1].finish_reason is FinishReason.STOP
        assert tokenizer.decode(ids_of(outputs)[:-1]).strip() in texts

    on(running, check)


def test_a_prefix_is_cached_unless_salted_and_flushing_forgets_it(running: Running) -> None:
    prompt = list(range(2000, 2100))

    async def check(bench: Bench) -> None:
        async def cached(salt: str | None) -> int:
            request = bench.generate(prompt, max_tokens=1, ignore_eos=True)
            return (await bench.outputs(msgspec.structs.replace(request, cache_salt=salt)))[0].cached_tokens

        await cached(None)
        assert await cached(None) > 50
        assert await cached("mine") == 0
        await bench.engine.admin("flush_cache", {"timeout": 5.0})
        assert await cached(None) == 0

    on(running, check)


def test_paused_it_answers_nobody_and_continued_it_goes_on(running: Running) -> None:
    async def check(bench: Bench) -> None:
        (before,) = bench.submit(bench.long_request(PROMPT))
        await bench.until(lambda: before in bench.answers)
        await bench.engine.admin("pause_generation", {"mode": "abort"})
        (end,) = await bench.ends(before)
        assert isinstance(end, Output)
        assert end.finish_reason is FinishReason.ABORT
        waits, given_up = bench.submit(bench.request(PROMPT), bench.long_request(PROMPT))
        bench.abort(given_up)
        await bench.engine.admin("continue_generation", {})
        (end,) = await bench.ends(waits)
        assert not isinstance(end, Failure)
        await bench.until_idle()

    on(running, check)


def test_admin_says_what_is_wrong(running: Running) -> None:
    async def check(bench: Bench) -> None:
        assert "load_lora_adapter" not in bench.capabilities.admin
        for verb, arguments in (("pause_generation", {"mode": "nap"}), ("flush_cache", {"when": "now"})):
            with pytest.raises(EngineRefusal, match=verb):
                await bench.engine.admin(verb, arguments)
        assert (await bench.engine.admin("update_weight_version", {"new_version": "v2"}))["new_version"] == "v2"

    on(running, check)


def test_it_tells_its_figures(running: Running) -> None:
    async def check(bench: Bench) -> None:
        before = running.engine.figures()
        bench.submit(bench.long_request(PROMPT))
        await bench.until(lambda: running.engine.figures().tokens_used > len(PROMPT))
        after = running.engine.figures()
        assert after.token_capacity >= 20_000
        assert after.prompt_tokens - before.prompt_tokens == len(PROMPT)
        assert after.stage == ""

    on(running, check)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--no-such-flag",), "unrecognized arguments: --no-such-flag"),
        (("--tp-size", "many"), "invalid int value"),
        (("--api-key", "k"), "before the --"),
        (("--tokenizer-worker-num", "4"), "--api-server-count"),
        (("--nnodes", "2", "--node-rank", "1"), "launch_server --node-rank 1"),
    ],
)
def test_wrong_flags_are_one_line_before_anything_is_loaded(flags: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(EngineError, match=complaint) as raised:
        create("no/such-model", [*CPU_FLAGS, *flags])
    assert "\n" not in str(raised.value)


TOO_LONG = ("--context-length", "999999")  # refused before anything is started
PINNED_MEMORY = ("--enable-lora", "--lora-backend", "torch_native", "--max-lora-rank", "8")  # fails in the scheduler


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [(TOO_LONG, "context"), ((*PINNED_MEMORY, "--lora-target-modules", "q_proj"), "pin")],
    ids=["refused", "failed"],
)
def test_a_start_that_fails_is_one_line_and_leaves_no_process(flags: tuple[str, ...], complaint: str) -> None:
    before = set(psutil.Process().children(recursive=True))
    engine = create(str(directory("llama")), [*CPU_FLAGS, *flags])

    async def start() -> None:
        with pytest.raises(EngineError, match=complaint) as raised:
            await engine.start(lambda answers: None)
        assert "\n" not in str(raised.value)
        await engine.close()

    asyncio.run(start())
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [child for child in left if child.pid != os.getpid() and "resource_tracker" not in str(child.cmdline())]
