"""How long a connection waits for its client, by the clock that the sweep gives it."""

from apiserver.http.patience import BODY_BYTES_PER_SECOND, BodyPace, SendWatch

KILOBYTE = BODY_BYTES_PER_SECOND


def first_too_slow(arrivals: dict[int, int], *, most: float = 10.0, paused: range = range(0), until: int = 200) -> int:
    """The second in which the body was given up; `arrivals` are bytes by second. 0: never."""
    pace, arrived = BodyPace(), 0
    for second in range(1, until):
        arrived += arrivals.get(second, 0)
        if pace.is_too_slow(float(second), 0.5, arrived, most, paused=second in paused):
            return second
    return 0


def test_a_body_that_does_not_come_is_given_up_after_the_limit() -> None:
    assert first_too_slow({}) == 11


def test_a_pause_within_the_limit_is_no_fault() -> None:
    assert first_too_slow({9: 100 * KILOBYTE, 18: 100 * KILOBYTE}, until=28) == 0


def test_a_trickle_is_not_enough() -> None:
    assert 11 <= first_too_slow(dict.fromkeys(range(200), 1)) <= 12


def test_a_slow_link_is_enough() -> None:
    assert first_too_slow(dict.fromkeys(range(200), KILOBYTE)) == 0


def test_half_the_rate_buys_twice_the_time() -> None:
    assert 20 <= first_too_slow(dict.fromkeys(range(200), KILOBYTE // 2)) <= 22


def test_nobody_can_save_up_patience() -> None:
    assert first_too_slow({1: 1000 * KILOBYTE}) == 12


def test_a_time_in_which_we_did_not_read_is_not_the_clients() -> None:
    assert first_too_slow({}, paused=range(3, 50)) == 58


def test_the_next_body_begins_anew() -> None:
    pace = BodyPace()
    assert not pace.is_too_slow(9.0, 1.0, 0, 10.0, paused=False)
    assert not pace.is_too_slow(12.0, 11.5, 0, 10.0, paused=False)
    assert not pace.is_too_slow(21.0, 11.5, 0, 10.0, paused=False)
    assert pace.is_too_slow(22.0, 11.5, 0, 10.0, paused=False)


def stuck_at(unsent: list[int], most: float = 3.0) -> int | None:
    """The second in which the client was cut."""
    watch = SendWatch()
    return next((second for second, size in enumerate(unsent) if watch.is_stuck(float(second), size, most)), None)


def test_whoever_reads_nothing_is_stuck() -> None:
    assert stuck_at([0, 100, 100, 100, 100, 100, 100]) == 5


def test_what_is_added_to_the_buffer_is_no_sign_of_a_reader() -> None:
    assert stuck_at([0, 100, 200, 300, 400, 500, 600]) == 5


def test_whoever_reads_a_little_is_not() -> None:
    assert stuck_at([100 - second for second in range(60)]) is None
    assert stuck_at([100, 100, 100, 99] * 20) is None


def test_an_empty_buffer_is_nobodys_fault_and_the_time_begins_when_it_fills() -> None:
    assert stuck_at([0] * 100) is None
    assert stuck_at([0] * 10 + [5] * 10) == 14
    assert stuck_at([5, 5, 5, 0, 5, 5, 5, 0]) is None
