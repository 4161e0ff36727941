"""Messages of many rows, and what is remembered of their keys."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark import Deduplicator, batched
from wsmux.spark.calls.batches import NotAnswers, keyed_row, read_answers, rows_message

from ...helpers.spark.servers import WAIT


def test_a_message_of_rows() -> None:
    assert rows_message([1, 2]) == {"$rows": [1, 2]}
    assert rows_message([1], ["k"]) == {"$rows": [1], "$keys": ["k"]}


def test_answers_hold_values_and_errors_by_row() -> None:
    answer = {"$values": [1, None, 3], "$errors": [[1, "BAD", "odd", {"n": 2}]]}
    values, errors = read_answers(answer, 3)
    assert values == [1, None, 3]
    assert list(errors) == [1]
    assert (errors[1].code, errors[1].message, errors[1].extra) == ("BAD", "odd", {"n": 2})


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [1, 2],
        {"values": [1, 2]},
        {"$values": [1]},
        {"$values": [1, 2], "$errors": [[0]]},
        {"$values": [1, 2], "$errors": [["x", "BAD", "odd"]]},
        {"$values": [1, 2], "$errors": [[2, "BAD", "odd"]]},
        {"$values": [1, 2], "$errors": [[-1, "BAD", "odd"]]},
        {"$values": [1, 2], "$errors": [[0, 5, "odd"]]},
        {"$values": [1, 2], "$errors": 5},
    ],
)
def test_what_are_no_answers_is_refused(answer: Any) -> None:
    with pytest.raises(NotAnswers):
        read_answers(answer, 2)


def test_whole_batches_and_a_deduplicator_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="whole=True and a deduplicator"):
        batched(whole=True, deduplicator=Deduplicator())


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_key_is_worked_on_once() -> None:
    known = Deduplicator()
    made = iter(range(10))
    assert [known.once(key, lambda: next(made)) for key in ("a", "b", "a", 1, b"x", 1)] == [
        0,
        1,
        0,
        2,
        3,
        2,
    ]
    assert len(known) == 4


def test_no_key_is_worked_on_each_time() -> None:
    known = Deduplicator()
    made = iter(range(10))
    assert [known.once(None, lambda: next(made)) for _ in range(3)] == [0, 1, 2]
    assert len(known) == 0


def test_a_key_of_another_kind_is_refused() -> None:
    with pytest.raises(RiverError, match="BAD_KEY"):
        Deduplicator().once(["a"], lambda: 1)


def test_what_fails_is_not_remembered() -> None:
    known = Deduplicator()
    with pytest.raises(ZeroDivisionError):
        known.once("a", lambda: 1 // 0)
    assert known.once("a", lambda: 5) == 5


def test_the_oldest_keys_are_forgotten_first() -> None:
    known = Deduplicator(keys=2)
    for key in "abc":
        known.once(key, lambda: 0)
    assert [known.once(key, lambda: 1) for key in "cba"] == [0, 0, 1]


def test_keys_are_forgotten_in_time() -> None:
    clock = Clock()
    known = Deduplicator(seconds=10, now=clock)
    known.once("a", lambda: 0)
    clock.now += 9
    assert known.once("a", lambda: 1) == 0
    clock.now += 1
    assert known.once("a", lambda: 2) == 2


def test_who_comes_meanwhile_waits_for_the_first() -> None:
    known = Deduplicator()
    entered, gate = threading.Event(), threading.Event()
    found: list[int] = []

    def work() -> int:
        entered.set()
        gate.wait(WAIT)
        return 7

    threads = [threading.Thread(target=lambda: found.append(known.once("a", work)))]
    threads[0].start()
    assert entered.wait(WAIT)
    threads.append(threading.Thread(target=lambda: found.append(known.once("a", lambda: 8))))
    threads[1].start()
    gate.set()
    for thread in threads:
        thread.join(WAIT)
    assert found == [7, 7]


def test_rows_of_an_upload_are_fresh_once() -> None:
    known = Deduplicator()
    requests = [keyed_row("x", "k1"), "without", keyed_row("y", "k2"), keyed_row("z", None)]
    assert list(known.fresh(requests)) == ["x", "without", "y", "z"]
    assert list(known.fresh(requests)) == ["without", "z"]


def test_a_row_whose_handler_fails_stays_fresh() -> None:
    known = Deduplicator()
    rows = known.fresh([keyed_row("x", 1), keyed_row("y", 2)])
    assert [next(rows), next(rows)] == ["x", "y"]
    rows.close()  # type: ignore[attr-defined]
    assert list(known.fresh([keyed_row("x", 1), keyed_row("y", 2)])) == ["y"]
