"""Timers come in order, and those that were cancelled take no room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wsmux.rpc.engine.timers import FEW, Timer, Timers


def test_what_is_due_comes_in_order_and_once() -> None:
    timers: Timers[str] = Timers()
    for due, work in ((3.0, "c"), (1.0, "a"), (2.0, "b"), (1.0, "a too")):
        timers.add(due, work)
    assert timers.next_due() == 1.0
    assert timers.take_due(2.0) == ["a", "a too", "b"]
    assert timers.take_due(2.0) == []
    assert timers.next_due() == 3.0


def test_what_was_cancelled_is_never_due() -> None:
    timers: Timers[str] = Timers()
    first, _ = timers.add(1.0, "first"), timers.add(2.0, "second")
    timers.cancel(first)
    timers.cancel(first)
    assert timers.next_due() == 2.0
    assert timers.take_due(9.0) == ["second"]
    timers.cancel(first)
    assert timers.next_due() is None


def test_timers_that_come_and_go_take_no_room() -> None:
    timers: Timers[int] = Timers()
    timers.add(0.0, -1)
    for number in range(10_000):
        timers.cancel(timers.add(1e9 + number, number))
        assert len(timers) <= 2 * FEW + 2


moves = st.lists(st.tuples(st.sampled_from(["add", "cancel", "take"]), st.integers(0, 20)))


@given(moves=moves)
def test_they_are_what_a_plain_list_would_be(moves: list[tuple[str, int]]) -> None:
    timers: Timers[int] = Timers()
    model: dict[int, tuple[int, Timer[int]]] = {}
    for number, (move, value) in enumerate(moves):
        if move == "add":
            model[number] = value, timers.add(value, number)
        elif move == "cancel" and model:
            chosen = list(model)[value % len(model)]
            timers.cancel(model.pop(chosen)[1])
        elif move == "take":
            due = sorted((due, key) for key, (due, _) in model.items() if due <= value)
            assert timers.take_due(value) == [key for _, key in due]
            for _, key in due:
                del model[key]
        assert timers.next_due() == min((due for due, _ in model.values()), default=None)
