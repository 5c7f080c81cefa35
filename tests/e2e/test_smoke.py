"""The main job, end to end."""

from tests.pool import Pool


def test_a_streamed_chat_completion_says_what_the_engine_said(echo_pool: Pool) -> None:
    stream = echo_pool.openai.chat.completions.create(
        model="sim", messages=[{"role": "user", "content": "Grüße, 世界 🎉"}], stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == "Grüße, 世界 🎉"


def test_embeddings_come_back_for_each_input(embed_pool: Pool) -> None:
    answer = embed_pool.openai.embeddings.create(model="sim", input=["a", "b"])
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.data[0].embedding != answer.data[1].embedding
