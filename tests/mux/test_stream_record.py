"""An entry begins with nothing said or heard, and keeps the first error of each half."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wsmux.mux.stream_record import StreamRecord, read_closed, write_closed
from wsmux.runtime.parking import Parker, Waiter, borrow


class Ringing(Waiter):
    """Wait without a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._parker = borrow()


def first() -> BaseException:
    return ArithmeticError("first")


def second() -> BaseException:
    return ArithmeticError("second")


@pytest.mark.parametrize("peer_opened", [True, False])
def test_nothing_has_happened_to_a_new_stream(peer_opened: bool) -> None:
    record = StreamRecord(7, peer_opened)
    assert (record.id, record.peer_opened, record.accepted) == (7, peer_opened, not peer_opened)
    assert [record.reading, record.writing, record.ended, record.closed] == [False] * 4
    assert [record.read_failure, record.write_failure] == [None, None]
    assert [record.heard, record.offered_at] == [None, None]
    assert (record.quiet, record.received, record.sent, record.buffer.size) == (0, 0, 0, 0)
    assert (record.enough, record.window) == (1, 0)


@pytest.mark.parametrize(
    ("window", "mark"), [(0, 1), (1, 1), (7, 1), (8, 2), (65535, 16383), (65536, 16384)]
)
def test_a_reader_may_wait_for_a_quarter_of_the_window(window: int, mark: int) -> None:
    record = StreamRecord(0, True, window)
    assert (record.window, record.low_water) == (window, mark)
    again = StreamRecord(0, True)
    again.set_window(window)
    assert (again.window, again.low_water) == (window, mark)


@pytest.mark.parametrize("half", ["read", "write"])
def test_the_first_error_of_a_half_stays(half: str) -> None:
    record, wakes = StreamRecord(0, True), list[Parker]()
    waiter = Ringing()
    setattr(record, {"read": "reader", "write": "writer"}[half], waiter)
    fail: Callable[..., None] = getattr(record, f"fail_{half}")
    fail(first, wakes)
    fail(second, wakes)
    assert getattr(record, f"{half}_failure") is first
    assert wakes == [waiter._parker]  # the second tells nobody anything new


@pytest.mark.parametrize("half", ["read", "write"])
def test_what_this_side_does_itself_takes_the_place_of_an_error(half: str) -> None:
    record, wakes = StreamRecord(0, True), list[Parker]()
    waiter = Ringing()
    setattr(record, {"read": "reader", "write": "writer"}[half], waiter)
    fail: Callable[..., None] = getattr(record, f"fail_{half}")
    fail(first, wakes)
    fail(second, wakes, own=True)
    assert getattr(record, f"{half}_failure") is second
    assert wakes == [waiter._parker, waiter._parker]  # even if it was collected and not woken


@pytest.mark.parametrize("half", ["read", "write"])
def test_an_error_of_one_half_leaves_the_other_alone(half: str) -> None:
    record = StreamRecord(0, True)
    getattr(record, f"fail_{half}")(first, [])
    other = {"read": "write", "write": "read"}[half]
    assert getattr(record, f"{other}_failure") is None


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (read_closed, "^read from a stream whose reading half was closed by this side$"),
        (write_closed, "^write to a stream whose writing half was closed by this side$"),
    ],
)
def test_each_call_gets_an_error_of_its_own(make: Callable[[], ValueError], text: str) -> None:
    error = make()
    assert error is not make()
    with pytest.raises(ValueError, match=text):
        raise error
