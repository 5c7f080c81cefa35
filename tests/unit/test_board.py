"""The board: whose slot it is, what survives its worker, who is asked to take a connection."""

import os

import pytest

from apiserver.board import BEAT_LIMIT_SECONDS, MAX_SLOTS, METRIC_CELLS, Board, Cell, PoolCell, Slot, WorkerState


def serve(slot: Slot, *, connections: int = 0, epoch: int = 1) -> Slot:
    """As a worker that is up."""
    slot.occupy(slot.number + 1)
    slot.set(Cell.CONNECTIONS, connections)
    slot.set(Cell.ENGINE_EPOCH, epoch)
    slot.state = WorkerState.READY
    return slot


def stand_still(slot: Slot) -> None:
    slot.set(Cell.HEARTBEAT, slot.get(Cell.HEARTBEAT) - int((BEAT_LIMIT_SECONDS + 1) * 1e9))


@pytest.mark.parametrize("count", [0, MAX_SLOTS + 1, -1])
def test_a_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=str(MAX_SLOTS)):
        Board(count)


def test_the_pool_shows_the_slots_that_somebody_lives_in_and_sums_over_all_that_were_ever_used() -> None:
    board = Board(2)
    assert board.slots == []
    assert [slot.number for slot in board.used_slots] == [0, 1]
    for slot in board.used_slots:
        serve(slot)
    third = board.free_slot()
    assert third == 2
    serve(board.slot(third))
    assert [slot.number for slot in board.slots] == [0, 1, 2]
    board.slot(0).release()
    assert [slot.number for slot in board.slots] == [1, 2]
    assert [slot.number for slot in board.used_slots] == [0, 1, 2]
    assert board.free_slot() == 0
    assert board.count == 2


def test_a_dead_workers_slot_is_not_free() -> None:
    board = Board(1)
    serve(board.slot(0)).vacate()
    assert board.free_slot() == 1


def test_a_smaller_pool_still_sums_over_the_slots_that_it_had() -> None:
    board = Board(3)
    board.set_count(1)
    assert board.count == 1
    assert [slot.number for slot in board.used_slots] == [0, 1, 2]


def test_where_every_slot_is_taken_there_is_no_free_one() -> None:
    board = Board(MAX_SLOTS)
    for slot in board.used_slots:
        serve(slot)
    assert board.free_slot() is None


def test_slots_share_no_memory() -> None:
    board = Board(MAX_SLOTS)
    for slot in board.used_slots:
        for cell in Cell:
            slot.set(cell, 5 * slot.number + cell)
        slot.metrics[0] = slot.metrics[METRIC_CELLS - 1] = slot.number
    for slot in board.used_slots:
        assert [slot.get(cell) for cell in Cell] == [5 * slot.number + cell for cell in Cell]
        assert slot.metrics[0] == slot.metrics[METRIC_CELLS - 1] == slot.number
    assert board.count == MAX_SLOTS
    assert not board.is_draining


def test_a_forked_child_writes_what_its_parent_reads() -> None:
    board = Board(2)
    pid = os.fork()
    if pid == 0:
        board.slot(1).set(Cell.PID, os.getpid())
        board.slot(1).metrics[5] = 2.5
        os._exit(0)
    os.waitpid(pid, 0)
    assert board.slot(1).get(Cell.PID) == pid
    assert board.slot(1).metrics[5] == 2.5


def test_a_new_worker_finds_a_clean_slot_but_its_predecessors_metrics() -> None:
    slot = Board(1).slot(0)
    slot.occupy(1)
    for cell in Cell:
        slot.set(cell, 7)
    slot.metrics[3] = 42.0
    slot.vacate()
    assert slot.state is WorkerState.DEAD
    assert not slot.is_serving
    gone = (Cell.PID, Cell.CONNECTIONS, Cell.IN_FLIGHT, Cell.LOOP_LAG, Cell.ENGINE_REQUESTS, Cell.ENGINE_EPOCH)
    gone += (Cell.BACKGROUND,)
    assert [slot.get(cell) for cell in gone] == [0] * len(gone)
    slot.occupy(2)
    assert slot.state is WorkerState.STARTING
    assert slot.get(Cell.GENERATION) == 2
    assert slot.get(Cell.REQUESTS) == 7
    assert slot.metrics[3] == 42.0
    assert slot.seconds_since_beat < 1
    assert slot.seconds_since_start < 1


def test_the_fewest_connections_are_asked_first() -> None:
    board = Board(3)
    for slot, connections in zip(board.used_slots, (2, 3, 1), strict=True):
        serve(slot, connections=connections)
    assert [[other.number for other in board.less_loaded(slot)] for slot in board.slots] == [[2], [0, 2], []]


@pytest.mark.parametrize("state", [WorkerState.EMPTY, WorkerState.STARTING, WorkerState.DRAINING, WorkerState.DEAD])
def test_only_serving_workers_are_waited_for(state: WorkerState) -> None:
    board = Board(2)
    own, other = serve(board.slot(0), connections=5), serve(board.slot(1))
    assert board.less_loaded(own) == [other]
    other.state = state
    assert board.less_loaded(own) == []


def test_a_worker_that_stands_still_is_not_waited_for() -> None:
    board = Board(2)
    own, other = serve(board.slot(0), connections=5), serve(board.slot(1))
    stand_still(other)
    assert not other.is_responsive
    assert board.less_loaded(own) == []


def test_the_pool_is_connected_when_every_responsive_worker_is() -> None:
    board = Board(3)
    assert board.is_connected(1)  # nobody who could not serve
    first, second, third = [serve(slot) for slot in board.used_slots]
    assert board.is_connected(1)
    assert not board.is_connected(2)  # a new engine that nobody has met
    second.set(Cell.ENGINE_EPOCH, 0)
    assert not board.is_connected(1)
    stand_still(second)
    assert board.is_connected(1)
    third.state = WorkerState.STARTING
    third.set(Cell.ENGINE_EPOCH, 0)
    assert board.is_connected(1)
    assert first.is_responsive


def test_the_pools_own_row_counts_deaths_and_says_that_it_drains() -> None:
    board = Board(1)
    board.count_death()
    board.count_death()
    assert board.get(PoolCell.WORKER_DEATHS) == 2
    assert not board.is_draining
    board.set_draining()
    assert board.is_draining


def test_an_idle_worker_answers_nothing() -> None:
    slot = serve(Board(1).slot(0))
    assert slot.is_idle
    slot.set(Cell.IN_FLIGHT, 1)
    assert not slot.is_idle
