"""The sum of what all connections hold: who gives something up, who waits, and who is woken."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from wsmux.runtime.memory import ProcessMemory, Verdict

from ..helpers.examples import examples

LIMIT = 100


class Owner:
    """Stand for a connection; ``wakes`` counts how often it was told to look."""

    def __init__(self) -> None:
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1


def made(count: int) -> tuple[ProcessMemory, list[Owner]]:
    return ProcessMemory(), [Owner() for _ in range(count)]


def test_below_the_limit_all_is_fine() -> None:
    memory, (one, two) = made(2)
    assert memory.report(one, 60, LIMIT) is Verdict.FINE
    assert memory.report(two, 40, LIMIT) is Verdict.FINE
    assert (memory.total, one.wakes, two.wakes) == (100, 0, 0)


def test_the_largest_gives_something_up_when_it_reports_itself() -> None:
    memory, (one, two) = made(2)
    memory.report(one, 40, LIMIT)
    assert memory.report(two, 61, LIMIT) is Verdict.GIVE_UP
    assert one.wakes == 0


def test_another_that_is_larger_is_woken_instead_and_once() -> None:
    memory, (one, two, three) = made(3)
    memory.report(one, 60, LIMIT)
    assert memory.report(two, 41, LIMIT) is Verdict.FINE
    assert memory.report(three, 10, LIMIT) is Verdict.FINE
    assert one.wakes == 1
    assert memory.report(one, 60, LIMIT) is Verdict.GIVE_UP


def test_one_that_was_read_in_the_meantime_asks_the_next() -> None:
    memory, (one, two, three) = made(3)
    memory.report(one, 60, LIMIT)
    memory.report(two, 70, 1000)
    memory.report(three, 50, LIMIT)
    assert two.wakes == 1
    assert memory.report(two, 20, LIMIT) is Verdict.FINE
    assert one.wakes == 1


def test_who_holds_nothing_gives_nothing_up() -> None:
    memory, (one,) = made(1)
    assert memory.report(one, 0, -1) is Verdict.FINE


def test_who_waits_is_woken_when_there_is_room() -> None:
    memory, (one, two, three) = made(3)
    memory.report(one, 60, LIMIT)
    assert memory.report(two, 45, LIMIT, waits=True) is Verdict.WAIT
    assert memory.report(three, 10, LIMIT, waits=True) is Verdict.WAIT
    assert memory.report(one, 0, LIMIT) is Verdict.FINE
    assert (two.wakes, three.wakes) == (1, 0)
    assert memory.report(two, 45, LIMIT, waits=True) is Verdict.FINE  # and passes it on
    assert three.wakes == 1


def test_who_waits_for_less_is_not_held_up_by_who_waits_for_more() -> None:
    memory, (one, two, three) = made(3)
    memory.report(one, 60, 1000)
    assert memory.report(two, 10, 20, waits=True) is Verdict.WAIT
    assert memory.report(three, 50, LIMIT, waits=True) is Verdict.WAIT
    memory.report(one, 40, 1000)
    assert (two.wakes, three.wakes) == (0, 1)


def test_an_end_makes_room() -> None:
    memory, (one, two) = made(2)
    memory.report(one, 60, LIMIT)
    memory.report(two, 50, LIMIT, waits=True)
    memory.forget(one)
    assert (memory.total, two.wakes) == (50, 1)


def test_the_end_of_the_one_that_was_asked_has_another_look() -> None:
    memory, (one, two, three) = made(3)
    memory.report(one, 60, 1000)
    memory.report(two, 59, 1000)
    memory.report(three, 58, LIMIT, waits=True)
    assert one.wakes == 1
    memory.forget(one)
    assert three.wakes == 1  # which finds that there is too much still
    assert memory.report(three, 58, LIMIT, waits=True) is Verdict.WAIT
    assert two.wakes == 1


def test_an_end_that_nobody_noted_changes_nothing() -> None:
    memory, (one,) = made(1)
    memory.forget(one)
    assert memory.total == 0


class Model(RuleBasedStateMachine):
    """Holders that do what they are told: nobody waits when there is room and all have acted."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.owners = made(5)
        self.held = [0] * 5
        self.waiting: set[int] = set()
        self.seen = [0] * 5

    def tell(self, n: int) -> None:
        verdict = self.memory.report(self.owners[n], self.held[n], LIMIT, waits=True)
        self.waiting.discard(n)
        if verdict is Verdict.WAIT:
            self.waiting.add(n)
        elif verdict is Verdict.GIVE_UP:
            assert self.held[n] == max(self.held) > 0
            self.held[n] = 0
            self.tell(n)

    def settle(self) -> None:
        """Let everybody act who was woken, until nobody is any more."""
        while woken := [n for n, o in enumerate(self.owners) if o.wakes != self.seen[n]]:
            for n in woken:
                self.seen[n] = self.owners[n].wakes
                self.tell(n)

    @rule(n=st.integers(0, 4), held=st.integers(0, 120))
    def change(self, n: int, held: int) -> None:
        if n not in self.waiting:  # who waits takes nothing
            self.held[n] = held
            self.tell(n)

    @rule(n=st.integers(0, 4))
    def end(self, n: int) -> None:
        self.held[n] = 0
        self.waiting.discard(n)
        self.memory.forget(self.owners[n])

    @rule()
    def all_act(self) -> None:
        self.settle()
        assert self.memory.total <= LIMIT
        assert not self.waiting

    @invariant()
    def the_sum_is_that_of_its_parts(self) -> None:
        assert self.memory.total == sum(self.held)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
