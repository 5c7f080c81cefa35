"""Which CPUs are whose."""

import os

import pytest

from apiserver.affinity import Affinity, read

CPUS = {0, 1, 2, 3, 8, 9}


@pytest.fixture(autouse=True)
def six_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: CPUS)


@pytest.mark.parametrize(
    ("text", "count", "affinity"),
    [
        ("0-1:2-3,8", 2, Affinity((0, 1), (2, 3, 8))),
        ("9", 4, Affinity((9,), (0, 1, 2, 3, 8))),
        ("3,1,3:0", 1, Affinity((3, 1), (0,))),
        ("auto", 2, Affinity((8, 9), (0, 1, 2, 3))),
        ("auto", 40, Affinity((3, 8, 9), (0, 1, 2))),
    ],
)
def test_cpus_are_read(text: str, count: int, affinity: Affinity) -> None:
    assert read(text, count) == affinity


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is not a CPU number"),
        ("a", "'a' is not a CPU number"),
        ("0-", "'0-' is not a CPU number"),
        ("3-1", "empty range"),
        ("0-999999999999", "more than any machine has"),
        ("4", "may not use CPU 4"),
        ("0-1:1-2", "CPU 1 cannot be"),
        ("0-3,8-9", "no CPU is left"),
    ],
)
def test_what_cannot_be_is_said(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(text, 2)


def test_one_cpu_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert read("auto", 4) == Affinity((5,), (5,))


def test_more_api_servers_than_cpus_share_them() -> None:
    affinity = Affinity((8, 9), (0,))
    assert [affinity.of_slot(slot) for slot in range(4)] == [8, 9, 8, 9]
