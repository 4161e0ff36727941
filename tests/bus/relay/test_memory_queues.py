"""The queues of sessions in memory: order, bounds, lives, and mailboxes that take over."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wsmux.bus.relay.memory_queues import (
    CHARACTER,
    OVERHEAD,
    QUEUE_OVERHEAD,
    SWEEP,
    SWEPT,
    MemoryQueues,
    _Queue,
)
from wsmux.bus.relay.queues import Mailbox, NameBounds, QueueFull, QueueUnavailable
from wsmux.bus.wire.address import Address
from wsmux.runtime.deadline import Deadline

ONE, TWO, NAME = Address(1), Address(1, ""), Address(2, "@billing")
NOW = 1_700_000_000
LATER = NOW + 600


class Clock:
    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


def queues(**options: Any) -> MemoryQueues:
    return MemoryQueues(clock=options.pop("clock", Clock()), **options)


def put(
    made: MemoryQueues, data: bytes, address: Address = ONE, until: int = LATER, source: int = 0
) -> None:
    made.put(address, data, until, Deadline(0), source)


def taken(mailbox: Mailbox, limit: int = 1000) -> list[bytes]:
    return [entry.data for entry in mailbox.take(limit)]


def nobody() -> None:
    """Wake nobody."""


def test_what_was_put_is_taken_in_order_and_once() -> None:
    made = queues()
    for n in range(5):
        put(made, b"%d" % n)
    mailbox = made.open(ONE, nobody)
    assert taken(mailbox, 2) == [b"0", b"1"]
    assert taken(mailbox) == [b"2", b"3", b"4"]
    assert taken(mailbox) == []


def test_no_session_and_an_empty_one_have_queues_of_their_own() -> None:
    made = queues()
    put(made, b"one", ONE)
    put(made, b"two", TWO)
    assert taken(made.open(ONE, nobody)) == [b"one"]
    assert taken(made.open(TWO, nobody)) == [b"two"]


def test_waiting_tells_whether_take_returns_more() -> None:
    made = queues()
    mailbox = made.open(ONE, nobody)
    assert not mailbox.waiting()
    put(made, b"x")
    assert mailbox.waiting()
    mailbox.take(1)
    assert not mailbox.waiting()


def test_a_mailbox_is_woken_for_what_comes() -> None:
    made, woken = queues(), list[int]()
    mailbox = made.open(ONE, lambda: woken.append(1))
    assert woken == [1]
    put(made, b"x")
    assert woken == [1, 1]
    mailbox.close()
    put(made, b"y")
    assert woken == [1, 1]


def test_what_was_not_acknowledged_comes_again() -> None:
    made = queues()
    for data in (b"a", b"b", b"c"):
        put(made, data)
    first = made.open(ONE, nobody)
    entries = first.take(2)
    first.ack([entries[0].id])
    first.close()
    assert taken(made.open(ONE, nobody)) == [b"b", b"c"]


def test_a_later_mailbox_takes_over() -> None:
    made = queues()
    put(made, b"a")
    first = made.open(ONE, nobody)
    first.take(1)
    second = made.open(ONE, nobody)
    put(made, b"b")
    assert (taken(first), first.waiting()) == ([], False)
    assert taken(second) == [b"a", b"b"]


def test_closing_a_mailbox_that_was_taken_over_from_leaves_the_later_one() -> None:
    made = queues()
    first = made.open(ONE, nobody)
    second = made.open(ONE, nobody)
    first.close()
    put(made, b"a")
    assert taken(second) == [b"a"]


def test_acknowledging_nonsense_changes_nothing() -> None:
    made = queues()
    put(made, b"a")
    mailbox = made.open(ONE, nobody)
    mailbox.ack(["0", "x", ""])
    assert taken(mailbox) == [b"a"]
    mailbox.close()
    mailbox.ack(["1"])
    assert taken(made.open(ONE, nobody)) == [b"a"]


def test_the_oldest_is_dropped_from_a_full_queue() -> None:
    made = queues(max_queued=3)
    for n in range(5):
        put(made, b"%d" % n)
    assert made.dropped == 2
    assert taken(made.open(ONE, nobody)) == [b"2", b"3", b"4"]


def test_the_largest_queue_makes_room_for_the_others() -> None:
    made = queues(max_bytes=10 * (OVERHEAD + 100))
    put(made, bytes(100), TWO)
    for n in range(20):
        put(made, bytes((n,)) * 100)
    assert taken(made.open(TWO, nobody)) == [bytes(100)]
    assert taken(made.open(ONE, nobody))[-1] == bytes((19,)) * 100


def test_what_no_queue_can_hold_is_refused() -> None:
    with pytest.raises(QueueUnavailable, match="above the limit of all queues"):
        put(queues(max_bytes=1000), bytes(1000))


def test_entries_of_absent_sessions_run_out() -> None:
    clock = Clock()
    made = queues(clock=clock, life=3600)
    put(made, b"short", until=NOW + 10)
    put(made, b"long", until=NOW + 10_000)
    clock.now += SWEEP
    put(made, b"other", TWO, until=NOW + 10_000)
    assert made._bytes == 2 * (QUEUE_OVERHEAD + OVERHEAD) + len(b"long") + len(b"other")
    clock.now += 3600
    put(made, b"last", TWO, until=NOW + 10_000)
    assert list(made._queues) == [TWO]
    assert taken(made.open(TWO, nobody)) == [b"last"]


def test_many_sessions_with_one_envelope_are_bounded_like_one_with_many() -> None:
    each = QUEUE_OVERHEAD + OVERHEAD + 1
    made = queues(max_bytes=100 * (each + 5 * CHARACTER))
    for number in range(10_000):
        put(made, b"x", Address(1, f"a{number}"))
    assert 100 <= len(made._queues) <= 110
    assert made._bytes == sum(queue.size for queue in made._queues.values())
    assert taken(made.open(Address(1, "a9999"), nobody)) == [b"x"]


def test_long_names_of_sessions_count() -> None:
    made = queues(max_bytes=1_000_000)
    for number in range(100):
        put(made, b"x", Address(1, f"{number}" + "s" * 100_000))
    assert len(made._queues) == 2


def test_room_is_made_without_a_look_at_all_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    made = queues(max_bytes=1000 * (QUEUE_OVERHEAD + OVERHEAD + 5 * CHARACTER))
    for number in range(1000):
        put(made, b"", Address(1, f"b{number:04}"))
    assert made.dropped == 0
    looked: list[Address] = []
    drop = made._drop_locked
    monkeypatch.setattr(
        made, "_drop_locked", lambda address, queue: (looked.append(address), drop(address, queue))
    )
    monkeypatch.setattr(_Queue, "discard", None)
    for number in range(100):
        put(made, b"", Address(1, f"c{number:04}"))
    assert looked == [Address(1, f"b{number:04}") for number in range(100)]


def test_expired_entries_of_many_sessions_are_searched_in_parts() -> None:
    clock = Clock()
    made = queues(clock=clock)
    for number in range(3 * SWEPT):
        put(made, b"x", Address(1, f"a{number}"), until=NOW + 1)
    clock.now += SWEEP
    for rest in (2, 1, 0):
        put(made, b"x", TWO, until=NOW + 1000)
        assert len(made._queues) == rest * SWEPT + 1


def test_of_two_large_queues_the_larger_one_makes_room() -> None:
    made = queues(max_bytes=100_000)
    for _ in range(40):
        put(made, bytes(600), ONE)
    for _ in range(50):
        put(made, bytes(600), TWO)
    for number in range(9):
        put(made, bytes(600), Address(3, str(number)))
    assert made.dropped == 25
    assert len(taken(made.open(ONE, nobody))) == 40


def test_closed_queues_take_nothing() -> None:
    made = queues()
    mailbox = made.open(ONE, nobody)
    put(made, b"a")
    made.close(Deadline(0))
    assert taken(mailbox) == []
    with pytest.raises(QueueUnavailable, match="closed"):
        put(made, b"b")


def test_a_forked_child_has_none() -> None:
    made = queues()
    put(made, b"a")
    pid = os.fork()
    if not pid:
        try:
            put(made, b"b")
        except QueueUnavailable:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert taken(made.open(ONE, nobody)) == [b"a"]


def test_the_twins_that_call_a_name_take_turns() -> None:
    made = queues()
    for n in range(20):
        put(made, b"%d" % n, NAME, source=1)
    mailbox = made.open(NAME, nobody)
    assert taken(mailbox, 3) == [b"0", b"1", b"2"]
    for source, data in ((2, b"a"), (2, b"b"), (3, b"x")):
        put(made, data, NAME, source=source)
    assert taken(mailbox, 6) == [b"3", b"a", b"x", b"4", b"b", b"5"]
    mailbox.close()
    assert taken(made.open(NAME, nobody), 6) == [b"0", b"1", b"2", b"3", b"a", b"x"]


def test_a_session_gets_what_it_gets_in_order_whoever_sent_it() -> None:
    made = queues()
    for n in range(6):
        put(made, b"%d" % n, source=n % 2)
    assert taken(made.open(ONE, nobody)) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_what_is_beyond_a_share_of_a_name_is_refused() -> None:
    made = queues(name_bounds=NameBounds(of_twin=2, in_all=3))
    for source in (1, 1, 2):
        put(made, b"x", NAME, source=source)
    with pytest.raises(QueueFull, match="twin 1 has as many requests in the queue of 'billing'"):
        put(made, b"x", NAME, source=1)
    with pytest.raises(QueueFull, match="all twins together have as many") as caught:
        put(made, b"x", NAME, source=2)
    assert (caught.value.code, caught.value.retry_safe) == (429, True)
    mailbox = made.open(NAME, nobody)
    (entry,) = mailbox.take(1)
    mailbox.ack([entry.id])
    put(made, b"x", NAME, source=1)


def test_bytes_of_names_are_bounded() -> None:
    size = OVERHEAD + 100
    made = queues(name_bounds=NameBounds(twin_bytes=size, all_bytes=3 * size), max_bytes=8 * size)
    put(made, bytes(200), NAME, source=1)
    with pytest.raises(QueueFull, match="twin 1"):
        put(made, b"", NAME, source=1)
    put(made, bytes(100), NAME, source=2)
    with pytest.raises(QueueFull, match="all twins"):
        put(made, bytes(100), NAME, source=3)
    with pytest.raises(QueueFull, match="the queues of all names"):
        put(made, bytes(1000), Address(2, "@other"), source=3)


def test_one_twin_cannot_fill_the_queues_of_all_names() -> None:
    size = OVERHEAD + 100
    made = queues(name_bounds=NameBounds(twin_bytes=size), max_bytes=16 * size)
    names = [Address(2, f"@{letter}") for letter in "abcdef"]
    for name in names[:2]:
        put(made, bytes(100), name, source=1)
    with pytest.raises(QueueFull, match="twin 1 has .* bytes of requests in the queues of all"):
        put(made, bytes(100), names[2], source=1)
    for source in range(2, 6):
        put(made, bytes(100), names[4], source=source)
    mailbox = made.open_shared(names[0], nobody)
    mailbox.ack([each.id for each in mailbox.take(1)])
    put(made, bytes(100), names[0], source=6)  # what was answered makes room


def test_what_has_run_out_takes_no_room_in_a_name() -> None:
    clock = Clock()
    made = queues(name_bounds=NameBounds(of_twin=2), clock=clock)
    for data, until in ((b"old", NOW + 1), (b"kept", LATER)):
        put(made, data, NAME, until, source=1)
    clock.now += 2
    put(made, b"new", NAME, source=1)
    assert taken(made.open(NAME, nobody)) == [b"kept", b"new"]


def test_sessions_that_flood_take_nothing_from_a_name() -> None:
    made = queues(max_bytes=10 * (OVERHEAD + 100))
    for source in range(1, 6):
        put(made, bytes(100), NAME, source=source)
    for _ in range(20):
        put(made, bytes(100))
    assert len(taken(made.open(NAME, nobody))) == 5
    assert made._bytes == sum(queue.size for queue in made._queues.values())


class QueueModel(RuleBasedStateMachine):
    """One queue beside a model: what is not acknowledged, what was taken, who may take."""

    MOST = 6

    @initialize()
    def begin(self) -> None:
        self.made = queues(max_queued=self.MOST)
        self.mailboxes: list[Mailbox] = []
        self.waiting: deque[bytes] = deque()
        self.taken: dict[str, bytes] = {}
        self.serial = 0

    @rule()
    def put(self) -> None:
        self.serial += 1
        data = b"%d" % self.serial
        put(self.made, data)
        self.waiting.append(data)
        if len(self.waiting) + len(self.taken) > self.MOST:
            if self.taken:
                del self.taken[next(iter(self.taken))]
            else:
                self.waiting.popleft()

    def _restart(self) -> None:
        self.waiting.extendleft(reversed(self.taken.values()))
        self.taken.clear()

    @rule()
    def open(self) -> None:
        self.mailboxes.append(self.made.open(ONE, nobody))
        self._restart()

    @precondition(lambda self: self.mailboxes)
    @rule(limit=st.integers(0, 4))
    def take(self, limit: int) -> None:
        entries = self.mailboxes[-1].take(limit)
        expected = [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]
        assert [entry.data for entry in entries] == expected
        self.taken |= {entry.id: entry.data for entry in entries}

    @precondition(lambda self: len(self.mailboxes) > 1)
    @rule()
    def take_with_an_earlier_one(self) -> None:
        assert self.mailboxes[0].take(9) == []
        self.mailboxes.pop(0).close()

    @precondition(lambda self: self.taken and self.mailboxes)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(list(self.taken)), unique=True))
        self.mailboxes[-1].ack(ids)
        for each in ids:
            del self.taken[each]

    @precondition(lambda self: self.mailboxes)
    @rule()
    def close(self) -> None:
        self.mailboxes.pop().close()
        for mailbox in self.mailboxes:
            mailbox.close()
        self.mailboxes.clear()
        self._restart()

    @invariant()
    def counted(self) -> None:
        held = [*self.taken.values(), *self.waiting]
        size = sum(len(data) + OVERHEAD for data in held)
        assert self.made._bytes == (size + QUEUE_OVERHEAD if held else 0)
        if self.mailboxes:
            assert self.mailboxes[-1].waiting() == bool(self.waiting)


TestQueueModel = QueueModel.TestCase
