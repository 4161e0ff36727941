"""Requests to a name are shared in turn, and none is lost or given to a worker that has left."""

from __future__ import annotations

import tracemalloc

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from wsmux.bus.relay import name_dispatch
from wsmux.bus.relay.name_dispatch import Dispatcher, Entry, Handing, Key
from wsmux.bus.wire.address import Address

REQUESTER = Address(1, "caller")


def entry(uid: str, ends: float = 100.0, data: bytes = b"12345678") -> Entry:
    return Entry(f"id-{uid}", (REQUESTER, uid), data, ends)


def filled(*uids: str, **workers: int) -> Dispatcher:
    made = Dispatcher()
    for worker, bound in workers.items():
        made.join(worker, bound)
    for uid in uids:
        assert made.add(entry(uid))
    return made


def handed(made: Dispatcher) -> list[tuple[object, str]]:
    """Hand all that can be handed."""
    every: list[tuple[object, str]] = []
    while (handing := made.hand()) is not None:
        every.append((handing.worker, handing.entry.key[1]))
    return every


def settle(made: Dispatcher, uid: str, by: str) -> bool:
    return made.settle((REQUESTER, uid), by) is not None


def test_workers_take_turns_in_the_order_of_requests() -> None:
    made = filled(*"123456", a=2, b=2, c=2)
    assert handed(made) == [("a", "1"), ("b", "2"), ("c", "3"), ("a", "4"), ("b", "5"), ("c", "6")]


def test_what_could_not_be_sent_was_not_handed() -> None:
    made = filled("1", a=1)
    handing = made.hand()
    assert handing is not None
    assert handing.entry.handed == 1
    made.refused(handing)
    assert handing.entry.handed == 0


def test_a_worker_that_leaves_is_there_until_it_has_answered() -> None:
    made = filled("1", a=1)
    assert handed(made) == [("a", "1")]
    made.leave("a")
    assert made.has("a")
    assert settle(made, "1", "a")
    assert not made.has("a")


def test_the_bound_of_each_is_kept() -> None:
    made = filled(*"12345", a=1, b=3)
    assert handed(made) == [("a", "1"), ("b", "2"), ("b", "3"), ("b", "4")]
    assert made.wants() == 0
    assert settle(made, "1", "a")
    assert handed(made) == [("a", "5")]
    assert settle(made, "5", "a")
    assert made.wants() == 1


def test_nothing_is_handed_without_workers_or_requests() -> None:
    assert filled("1").hand() is None
    assert filled(a=1).hand() is None
    assert filled("1").wants() == 0


def test_what_a_lost_worker_had_goes_first_to_the_next_one() -> None:
    made = filled(*"123456", a=2, b=2)
    assert len(handed(made)) == 4
    assert made.gone("a") == 2
    assert made.gone("a") == 0
    made.join("c", 3)
    assert handed(made) == [("c", "1"), ("c", "3"), ("c", "5")]
    assert made.redelivered == 2


def test_a_worker_that_leaves_answers_what_it_has() -> None:
    made = filled(*"123", a=1, b=1)
    assert len(handed(made)) == 2
    made.leave("a")
    made.leave("nobody")
    assert made.workers() == ["b"]
    assert settle(made, "1", "a")
    assert handed(made) == []
    assert made.gone("a") == 0  # it is gone already
    assert settle(made, "2", "b")
    assert handed(made) == [("b", "3")]
    made.leave("b")
    assert made.any_worker()
    made.join("b", 2)  # it has changed its mind
    assert made.workers() == ["b"]
    made.leave("b")
    assert settle(made, "3", "b")
    assert not made.any_worker()


def test_any_worker_may_answer_and_the_first_answer_counts() -> None:
    made = filled("1", a=1, b=1)
    assert handed(made) == [("a", "1")]
    assert settle(made, "1", "b")
    assert not settle(made, "1", "a")
    assert len(made) == made.bytes == 0


def test_a_request_that_waits_may_be_answered_too() -> None:
    made = filled("1")
    assert settle(made, "1", "late")
    assert len(made) == 0


def test_a_copy_of_what_is_here_is_dropped() -> None:
    made = filled("1", a=1)
    assert not made.add(entry("1"))
    assert handed(made) == [("a", "1")]
    assert not made.add(entry("1"))
    assert len(made) == 1


def test_a_copy_of_what_was_answered_goes_to_who_answered_it() -> None:
    made = filled("1", a=2, b=2)
    assert handed(made) == [("a", "1")]
    assert settle(made, "1", "a")
    assert made.add(entry("2"))
    assert made.add(entry("1"))
    assert handed(made) == [("b", "2"), ("a", "1")]
    assert settle(made, "1", "a")
    made.gone("a")
    assert made.add(entry("1"))
    assert handed(made) == [("b", "1")]


def test_only_so_many_answers_are_remembered() -> None:
    made = filled(a=1, b=1)
    for number in range(name_dispatch.REMEMBERED + 1):
        assert made.add(entry(str(number)))
        assert settle(made, str(number), "b")
    assert made.add(entry("0"))  # forgotten
    assert handed(made) == [("a", "0")]
    assert made.add(entry("1"))
    assert handed(made) == [("b", "1")]


def test_long_uids_are_not_remembered_whole() -> None:
    made = filled(a=1)
    long = "u" * 100_000
    tracemalloc.start()
    try:
        for number in range(200):
            assert made.add(entry(f"{long}{number}"))
            assert len(handed(made)) == 1
            assert settle(made, f"{long}{number}", "a")
            assert made.add(entry(f"{long}{number}"))
            assert len(handed(made)) == 1
            made.leave("a")
            made.gone("a")
            assert len(made.withdraw()) == 1
            made.join("a", 1)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000
    made.join("b", 1)
    assert made.add(entry(f"{long}0"))
    assert [worker for worker, _ in handed(made)] == ["a"]  # who answered it


def refuse(made: Dispatcher) -> Handing:
    handing = made.hand()
    assert handing is not None
    made.refused(handing)
    return handing


def test_a_worker_whose_connection_is_full_is_passed_over_until_it_is_ready() -> None:
    made = filled(*"12", a=2, b=2)
    assert refuse(made).worker == "a"
    assert handed(made) == [("b", "1"), ("b", "2")]
    assert made.add(entry("3"))
    assert handed(made) == []
    assert made.ready("a")
    assert not made.ready("a")
    assert not made.ready("nobody")
    assert handed(made) == [("a", "3")]


def test_a_worker_that_became_ready_meanwhile_is_not_passed_over() -> None:
    made = filled("1", a=1)
    handing = made.hand()
    assert handing is not None
    assert not made.ready("a")
    made.refused(handing)
    assert handed(made) == [("a", "1")]


def test_refusing_what_is_no_longer_the_workers_changes_nothing() -> None:
    made = filled("1", a=1)
    handing = made.hand()
    assert handing is not None
    made.gone("a")
    made.refused(handing)
    made.join("a", 1)
    made.refused(handing)
    assert handed(made) == [("a", "1")]


def test_a_worker_that_leaves_and_refuses_is_gone() -> None:
    made = filled("1", a=1)
    handing = made.hand()
    assert handing is not None
    made.leave("a")
    made.refused(handing)
    assert not made.any_worker()
    assert len(made) == 1


def test_what_is_refused_keeps_its_place() -> None:
    made = filled(*"123", a=1, b=1, c=1)
    first, second = made.hand(), made.hand()
    assert first is not None
    assert second is not None
    made.refused(first)
    made.refused(second)
    assert handed(made) == [("c", "1")]
    made.ready("a")
    made.ready("b")
    assert [uid for _, uid in handed(made)] == ["2", "3"]


def test_what_expires_is_removed_and_its_worker_gets_one_at_a_time() -> None:
    made = filled(a=3)
    for uid, ends in (("1", 10.0), ("2", 20.0), ("3", 30.0), ("4", 10.0)):
        assert made.add(entry(uid, ends))
    assert len(handed(made)) == 3
    assert made.expire(9.9) == []
    assert {each.key[1] for each in made.expire(10.0)} == {"1", "4"}
    assert made.add(entry("5"))
    assert handed(made) == []  # it has two, and was late
    assert settle(made, "2", "a")
    assert handed(made) == [("a", "5")]


def test_bytes_are_counted_while_entries_are_here() -> None:
    made = filled(*"123", a=1)
    assert handed(made) == [("a", "1")]
    assert made.bytes == 24
    assert settle(made, "2", "a")
    assert made.bytes == 16
    assert withdrawn(made) == ["3"]
    assert (made.bytes, len(made)) == (8, 1)


def withdrawn(made: Dispatcher) -> list[str]:
    return [each.key[1] for each in made.withdraw()]


def test_what_waits_is_withdrawn_when_no_worker_has_room() -> None:
    made = filled(*"123", a=1, b=1)
    assert withdrawn(made) == []
    assert len(handed(made)) == 2
    assert withdrawn(made) == ["3"]
    assert withdrawn(made) == []
    made.leave("a")
    assert made.gone("b") == 1
    assert withdrawn(made) == ["2"]
    assert made.add(entry("2"))


def test_what_was_handed_before_it_was_withdrawn_counts_as_handed() -> None:
    made = filled(*"12", a=1)
    assert handed(made) == [("a", "1")]
    made.gone("a")
    assert withdrawn(made) == ["1", "2"]
    again = [entry("1"), entry("2")]
    for each in again:
        assert made.add(each)
    assert [each.handed for each in again] == [1, 0]


def test_a_late_answer_to_what_was_withdrawn_tells_who_can_answer_it_again() -> None:
    made = filled("1", a=1)
    assert handed(made) == [("a", "1")]
    made.gone("a")
    assert withdrawn(made) == ["1"]
    made.join("b", 1)
    made.join("a", 1)
    assert not settle(made, "1", "a")
    assert made.add(entry("1"))
    assert handed(made) == [("a", "1")]


class Sharing(RuleBasedStateMachine):
    """Compare a dispatcher with what a list and a dictionary know of it."""

    handings = Bundle("handings")

    @initialize()
    def begin(self) -> None:
        self.made = Dispatcher()
        self.now = 0.0
        self.alive: dict[Key, float] = {}  # until when
        self.held: dict[Key, str] = {}  # by whom
        self.bounds: dict[str, int] = {}
        self.left: set[str] = set()
        self.uids = 0

    @rule(worker=st.sampled_from("abcd"), bound=st.integers(1, 3))
    def join(self, worker: str, bound: int) -> None:
        self.made.join(worker, bound)
        self.bounds[worker] = bound
        self.left.discard(worker)

    @rule(worker=st.sampled_from("abcd"))
    def leave(self, worker: str) -> None:
        self.made.leave(worker)
        if worker in self.bounds:
            self.left.add(worker)
            self._forget(worker)

    @rule(worker=st.sampled_from("abcd"))
    def lose(self, worker: str) -> None:
        had = [key for key, by in self.held.items() if by == worker]
        assert self.made.gone(worker) == len(had)
        for key in had:
            del self.held[key]
        self.bounds.pop(worker, None)
        self.left.discard(worker)

    @rule(life=st.integers(1, 5), old=st.booleans(), number=st.integers(0, 8))
    def add(self, life: int, old: bool, number: int) -> None:
        if not old:
            self.uids += 1
            number = self.uids
        made = entry(str(number), self.now + life)
        assert self.made.add(made) is (made.key not in self.alive)
        self.alive.setdefault(made.key, self.now + life)

    @rule(target=handings)
    def hand(self) -> object:
        handing = self.made.hand()
        if handing is None:
            return multiple()
        assert isinstance(handing.worker, str)
        assert handing.worker in self.bounds
        assert handing.worker not in self.left
        assert handing.entry.key in self.alive
        assert handing.entry.key not in self.held
        self.held[handing.entry.key] = handing.worker
        mine = [by for by in self.held.values() if by == handing.worker]
        assert len(mine) <= self.bounds[handing.worker]
        return handing

    @rule(handing=consumes(handings))
    def refuse(self, handing: Handing) -> None:
        assert isinstance(handing.worker, str)
        if handing.entry.worker is not None and self.held.get(handing.entry.key) == handing.worker:
            del self.held[handing.entry.key]
        self.made.refused(handing)
        self._forget(handing.worker)

    @rule(worker=st.sampled_from("abcd"))
    def ready(self, worker: str) -> None:
        self.made.ready(worker)

    @rule(number=st.integers(1, 30), by=st.sampled_from("abcd"))
    def answer(self, number: int, by: str) -> None:
        key = (REQUESTER, str(number))
        assert (self.made.settle(key, by) is not None) is (key in self.alive)
        self._end(key)

    @rule()
    def withdraw(self) -> None:
        back = {each.key for each in self.made.withdraw()}
        assert back <= self.alive.keys() - self.held.keys()
        for key in back:
            self._end(key)

    @rule(seconds=st.integers(0, 3))
    def expire(self, seconds: int) -> None:
        self.now += seconds
        over = {key for key, ends in self.alive.items() if ends <= self.now}
        assert {each.key for each in self.made.expire(self.now)} == over
        for key in over:
            self._end(key)

    @precondition(lambda self: self.alive and self.bounds.keys() - self.left)
    @rule()
    def all_ready(self) -> None:
        """With a worker that has room, what waits is handed, the oldest first."""
        for worker in self.bounds:
            self.made.ready(worker)
        if not self.held and set(self.alive) and self.bounds.keys() - self.left:
            handing = self.made.hand()
            assert handing is not None
            assert handing.entry.key == next(iter(self.alive))
            self.held[handing.entry.key] = str(handing.worker)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.made) == len(self.alive)
        assert self.made.bytes == 8 * len(self.alive)
        assert set(self.made.workers()) == self.bounds.keys() - self.left

    def _end(self, key: Key) -> None:
        self.alive.pop(key, None)
        by = self.held.pop(key, None)
        if by is not None:
            self._forget(by)

    def _forget(self, worker: str) -> None:
        if worker in self.left and worker not in self.held.values():
            self.bounds.pop(worker, None)
            self.left.discard(worker)


TestSharing = Sharing.TestCase
