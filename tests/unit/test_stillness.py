"""Stillness: time in which a number did not change, while we were awake."""

from apiserver.stillness import MOST_SECONDS_A_LOOK, Stillness


def test_it_adds_up_looks_at_the_same_number_and_begins_anew_with_another() -> None:
    stillness = Stillness()
    assert stillness.look(7, 0.1) == 0
    assert stillness.look(7, 0.1) == 0.1
    assert stillness.look(7, 0.1) == 0.2
    assert stillness.look(8, 0.1) == 0
    assert stillness.look(8, 0.1) == 0.1


def test_a_look_that_comes_late_counts_for_little() -> None:
    stillness = Stillness()
    stillness.look(7, 0.1)
    assert stillness.look(7, 3600) == MOST_SECONDS_A_LOOK
