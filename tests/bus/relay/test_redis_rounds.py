"""The scripts of the queue of a name do what the queue in memory does, whatever the order."""

from __future__ import annotations

from itertools import count

import redis as library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wsmux.bus.relay.memory_queues import MemoryQueues
from wsmux.bus.relay.queues import NameBounds, Put, QueueFull
from wsmux.bus.relay.redis_rounds import acknowledge, add, give_back, renew, rounds_key, take
from wsmux.bus.wire.address import Address
from wsmux.runtime.deadline import Deadline
from wsmux.storage.redis_client import run_together

from ...helpers.examples import examples

BOUNDS = NameBounds(of_twin=4, in_all=7)
NEVER = 2**40

# Adding by a twin, or with a number of entries taking, giving back and acknowledging.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["take", "back", "ack"]), st.integers(1, 3)),
    ),
    max_size=40,
)

_names = count(1)


class Both:
    """Do the same in memory and in Redis."""

    def __init__(self, client: library.Redis) -> None:
        self.client = client
        self.address = Address(2, f"@n{next(_names)}")
        self.key = rounds_key(self.address)
        self.memory = MemoryQueues(name_bounds=BOUNDS)
        self.mailbox = self.memory.open_shared(self.address, lambda: None)
        self.held: list[tuple[bytes, str]] = []  # the ids of what was taken, in Redis and in memory
        self.serial = 0

    def run(self, command: tuple[object, ...]) -> object:
        (told,) = run_together(self.client, [command])
        assert not isinstance(told, Exception), told
        return told

    def add(self, source: int) -> None:
        self.serial += 1
        put = Put(self.address, b"%d" % self.serial, NEVER, source)
        told = self.run(add(self.key, "relay", 0, 60.0, BOUNDS, [put]))
        assert isinstance(told, list)
        refused = ""
        try:
            self.memory.put(self.address, put.data, NEVER, Deadline(0), source)
        except QueueFull as error:
            refused = "twin" if error.message.startswith("twin") else "all"
        assert told[0] == [refused.encode()]

    def take(self, number: int) -> None:
        told = self.run(take(self.key, "relay", number, 60.0))
        assert isinstance(told, list)
        left, found, had = told
        assert had == len(self.held)
        entries = self.mailbox.take(number)
        assert found[1::2] == [each.data for each in entries]
        assert bool(left) == self.mailbox.waiting()
        ours = [each.id for each in entries]
        self.held += zip(found[::2], ours, strict=True)

    def back(self, number: int) -> None:
        back, self.held = self.held[:number], self.held[number:]
        self.run(give_back(self.key, "relay", [each for each, _ in back]))
        self.mailbox.give_back([each for _, each in back])

    def ack(self, number: int) -> None:
        done, self.held = self.held[:number], self.held[number:]
        self.run(acknowledge(self.key, [each for each, _ in done]))
        self.mailbox.ack([each for _, each in done])


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_both_do_the_same(client: library.Redis, steps: list[tuple[str, int]]) -> None:
    both = Both(client)
    for what, number in steps:
        getattr(both, what)(number)
    both.take(100)
    both.ack(100)
    assert not client.keys(both.key + b":*")


def test_only_the_relay_that_has_an_entry_may_renew_it_or_give_it_back(
    client: library.Redis,
) -> None:
    both = Both(client)
    both.add(1)
    both.take(1)
    ids = [each for each, _ in both.held]
    for command in (give_back(both.key, "other", ids), renew(both.key, "other", 1000.0, ids)):
        both.run(command)
        ((_, until),) = client.zrange(both.key + b":taken", 0, -1, withscores=True)
        assert until / 1000 - client.time()[0] < 100
    both.run(renew(both.key, "relay", 1000.0, ids))
    ((_, until),) = client.zrange(both.key + b":taken", 0, -1, withscores=True)
    assert until / 1000 - client.time()[0] > 900
