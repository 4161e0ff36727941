"""Connections are counted by address, refused beyond a limit, and counted down exactly once."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from wsmux.config import Config
from wsmux.exceptions import HandshakeError
from wsmux.handshake import admission as module
from wsmux.handshake.admission import CLIENT_ADDRESS, Admission, Guest

from ..helpers.examples import examples
from ..helpers.raw_peer import WAIT, in_thread

PROXY, SECOND_PROXY = "10.0.0.1", "10.0.0.2"
HERE = "127.0.0.1"
CLIENTS = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"]
KEYS = {
    "192.0.2.1": "192.0.2.1",
    "192.0.2.2": "192.0.2.2",
    "2001:db8::1": "2001:db8::/64",
    "2001:db8::2": "2001:db8::/64",
}


def admission(**limits: Any) -> Admission:
    chosen: dict[str, Any] = {"trusted_proxies": ["10.0.0.0/8"], **limits}
    return Admission(Config(**chosen), "a test")


def forwarded(client: str) -> dict[str, Any]:
    return {"HTTP_X_FORWARDED_FOR": client}


def refused(status: int, *, by: Callable[[], object]) -> str:
    with pytest.raises(HandshakeError) as caught:
        by()
    assert caught.value.status == status
    return str(caught.value)


def status_of(call: Callable[[], object]) -> int | None:
    """Return the status that a call is refused with, ``None`` if it is not."""
    try:
        call()
    except HandshakeError as error:
        return error.status
    return None


def empty(counts: Admission) -> bool:
    """Return whether nothing is counted; a key of nobody is not kept either."""
    held = (counts._guests, counts._opening, counts._handshakes, counts._connections)
    return not any(held) and counts._held == 0


def test_one_address_has_as_many_handshakes_as_it_may() -> None:
    counts = admission(max_handshakes_per_address=2)
    first, _ = counts.arrive("192.0.2.1"), counts.arrive("192.0.2.1")
    said = refused(429, by=lambda: counts.arrive("192.0.2.1"))
    assert said.startswith("2 requests from your address are unfinished")
    counts.arrive("192.0.2.2")
    counts.settle(first, {})
    counts.arrive("192.0.2.1")


@pytest.mark.parametrize(
    ("taken", "handshakes", "connections"),
    [
        (1, 1, 1),
        (3, 1, 1),
        (64, 32, 32),
        (1000, 128, 500),
        (1024, 128, 512),
        (4096, 128, 512),
        (None, 128, 512),
    ],
)
def test_no_address_fills_a_server_by_default(
    taken: int | None, handshakes: int, connections: int
) -> None:
    counts = Admission(Config(), "a test", taken)
    for _ in range(connections - handshakes):
        counts.settle(counts.arrive("192.0.2.1"))
    for _ in range(handshakes):
        counts.arrive("192.0.2.1")
    refused(429, by=lambda: counts.arrive("192.0.2.1"))
    counts.arrive("192.0.2.2")


@pytest.mark.parametrize("most", [3, 128, 512, 2000, None])
def test_what_is_given_for_an_address_holds_whatever_the_server_takes(most: int | None) -> None:
    config = Config(max_connections_per_address=most, max_handshakes_per_address=None)
    counts = Admission(config, "a test", 4)
    for _ in range(most or 2000):
        counts.arrive("192.0.2.1")
    if most is not None:
        refused(429, by=lambda: counts.arrive("192.0.2.1"))


@pytest.mark.parametrize(
    "copied",
    [
        lambda config: replace(config, max_streams=5),
        lambda config: pickle.loads(pickle.dumps(config)),
    ],
    ids=["replaced", "pickled"],
)
def test_a_copy_of_a_configuration_keeps_its_defaults_as_such(
    copied: Callable[[Config], Config],
) -> None:
    counts = Admission(copied(Config()), "a test", 2)
    counts.arrive("192.0.2.1")
    refused(429, by=lambda: counts.arrive("192.0.2.1"))


def test_one_address_has_as_many_connections_as_it_may() -> None:
    counts = admission(max_connections_per_address=2)
    first = counts.arrive("192.0.2.1")
    counts.settle(first, {})
    counts.settle(counts.arrive("192.0.2.1"), {})
    said = refused(429, by=lambda: counts.arrive("192.0.2.1"))
    assert said.startswith("2 connections from your address are open")
    counts.leave(first)
    counts.arrive("192.0.2.1")


@pytest.mark.parametrize("peer", [HERE, "::1", "", "/run/app.sock"])
def test_what_comes_from_this_machine_is_not_counted(peer: str) -> None:
    counts = admission(max_handshakes_per_address=1, max_connections_per_address=1)
    guests = [counts.arrive(peer) for _ in range(5)]
    for guest in guests:
        counts.settle(guest, {"REMOTE_ADDR": peer})
        counts.leave(guest)
    assert empty(counts)


def test_none_is_no_limit() -> None:
    counts = admission(
        max_handshakes_per_address=None,
        max_connections_per_address=None,
        max_handshake_buffer=None,
    )
    guests = [counts.arrive("192.0.2.1") for _ in range(2000)]
    for guest in guests:
        counts.hold(guest, 65_536)
        counts.leave(guest)
    assert empty(counts)


def test_clients_behind_a_trusted_proxy_count_by_the_address_that_it_names() -> None:
    counts = admission(max_handshakes_per_address=1, max_connections_per_address=1)
    one, same, other = (counts.arrive(PROXY) for _ in range(3))
    environ = forwarded("192.0.2.1")
    counts.settle(one, environ)
    assert environ[CLIENT_ADDRESS] == "192.0.2.1"
    refused(429, by=lambda: counts.settle(same, forwarded("192.0.2.1")))
    refused(429, by=lambda: counts.arrive("192.0.2.1"))  # which comes without the proxy
    counts.settle(other, forwarded("192.0.2.2"))
    for guest in (one, same, other):
        counts.leave(guest)
    assert empty(counts)


def test_what_a_proxy_names_nobody_for_is_not_counted() -> None:
    counts = admission(max_connections_per_address=1)
    for environ in ({}, forwarded("unknown"), forwarded(HERE)):
        for _ in range(3):
            counts.settle(counts.arrive(PROXY), {"REMOTE_ADDR": PROXY, **environ})


def test_what_an_untrusted_address_says_of_itself_does_not_count() -> None:
    counts = admission(max_connections_per_address=1)
    environ = forwarded("203.0.113.9")
    counts.settle(counts.arrive("192.0.2.1"), environ)
    assert environ[CLIENT_ADDRESS] == "192.0.2.1"
    refused(429, by=lambda: counts.arrive("192.0.2.1"))


def test_a_request_that_somebody_else_read_counts_as_a_connection_alone() -> None:
    counts = admission(max_handshakes_per_address=1, max_connections_per_address=2)
    guests = [counts.admit({"REMOTE_ADDR": "192.0.2.1"}) for _ in range(2)]
    refused(429, by=lambda: counts.admit({"REMOTE_ADDR": "192.0.2.1"}))
    counts.admit({"REMOTE_ADDR": PROXY, **forwarded("192.0.2.2")})
    counts.admit({"REMOTE_ADDR": PROXY, **forwarded("192.0.2.2")})
    refused(429, by=lambda: counts.admit({"REMOTE_ADDR": PROXY, **forwarded("192.0.2.2")}))
    assert len(counts._guests) == 4, "who is refused is not kept"
    assert [counts.admit({}) for _ in range(3)], "a Unix socket has no address"
    counts.leave(guests[0])
    counts.admit({"REMOTE_ADDR": "192.0.2.1"})


@pytest.mark.parametrize("address", ["192.0.2.1", PROXY])
def test_a_client_of_a_full_address_may_return_through_a_wsgi_server(address: str) -> None:
    counts = admission(max_connections_per_address=2, trusted_proxies=[PROXY])
    environ = {"REMOTE_ADDR": address, **forwarded("192.0.2.2")}
    assert [counts.admit(dict(environ), 1).returns for _ in range(2)] == [False, False]
    assert counts.admit(dict(environ), 1).returns
    refused(429, by=lambda: counts.admit(dict(environ), 1))


# Memory of heads


def test_too_many_bytes_of_heads_let_the_one_go_that_held_most_for_longest() -> None:
    counts = admission(max_handshake_buffer=1000)
    small, large, young = (counts.arrive("192.0.2.1") for _ in range(3))
    counts.hold(small, 10)
    counts.hold(large, 900)
    counts.hold(young, 90)
    counts.hold(young, 95)
    refused(503, by=lambda: counts.check(large))
    refused(503, by=lambda: counts.hold(large, 901))
    refused(503, by=lambda: counts.settle(large, {}))
    counts.check(small)
    counts.check(young)
    assert counts._held == 105
    for guest in (small, large, young):
        counts.leave(guest)
    assert empty(counts)


def test_a_newcomer_with_a_long_head_does_not_go_before_many_that_wait() -> None:
    counts = admission(max_handshake_buffer=1000)
    waiting = [counts.arrive("192.0.2.1") for _ in range(100)]
    for guest in waiting:
        counts.hold(guest, 10)
    honest = counts.arrive("192.0.2.2")
    counts.hold(honest, 200)
    counts.check(honest)
    counts.settle(honest, {})
    assert sum(guest.refused for guest in waiting) == 20
    assert [guest.refused for guest in waiting[:20]] == [True] * 20, "the oldest go first"


def test_a_head_that_alone_is_too_much_is_refused() -> None:
    counts = admission(max_handshake_buffer=100)
    refused(503, by=lambda: counts.hold(counts.arrive("192.0.2.1"), 101))
    assert counts._held == 0


# A full server


def test_the_oldest_handshake_that_takes_long_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    counts = admission()
    served, first, second = counts.arrive(HERE), counts.arrive(HERE), counts.arrive(HERE)
    counts.settle(served, {})
    assert counts.make_room()
    assert (first.refused, second.refused, counts.leaving) == (True, False, 1)
    refused(503, by=lambda: counts.check(first))
    assert counts.make_room()
    assert (second.refused, counts.leaving) == (True, 2)
    assert not counts.make_room(), "who is served keeps its place"
    counts.leave(first)
    counts.leave(first)
    assert counts.leaving == 1
    counts.leave(second)
    counts.leave(served)
    assert counts.leaving == 0
    assert empty(counts)


def test_a_handshake_that_has_just_begun_keeps_its_place() -> None:
    counts = admission()
    guest = counts.arrive(HERE)
    assert not counts.make_room()
    assert not guest.refused


# Counting down


def test_leaving_twice_counts_once() -> None:
    counts = admission(max_connections_per_address=2)
    one = counts.arrive("192.0.2.1")
    counts.arrive("192.0.2.1")
    counts.leave(one)
    counts.leave(one)
    counts.arrive("192.0.2.1")
    refused(429, by=lambda: counts.arrive("192.0.2.1"))


def test_a_forked_child_counts_nothing_of_its_parent() -> None:
    counts = admission(max_connections_per_address=1)
    guest = counts.arrive("192.0.2.1")
    counts.forked()
    counts.hold(guest, 100)
    counts.leave(guest)
    assert empty(counts)
    counts.arrive("192.0.2.1")


LIMITS = {
    "max_handshakes_per_address": 2,
    "max_connections_per_address": 3,
    "max_handshake_buffer": 50,
}


class Counting(RuleBasedStateMachine):
    """Hold beside the counters a list of who is there, and count it anew each time."""

    guests = Bundle("guests")

    def __init__(self) -> None:
        super().__init__()
        self.counts = admission(**LIMITS)
        self.patience, module.PATIENCE = module.PATIENCE, 0.0
        self.opening: dict[Guest, str | None] = {}  # by the address of the socket
        self.open: dict[Guest, str | None] = {}  # by the address that counts
        self.proxied: set[Guest] = set()

    def teardown(self) -> None:
        module.PATIENCE = self.patience

    def handshakes(self) -> Counter[str]:
        return Counter(key for key in self.opening.values() if key is not None)

    def connections(self) -> Counter[str]:
        return Counter(key for key in self.open.values() if key is not None)

    @rule(target=guests, peer=st.sampled_from([*CLIENTS, PROXY, SECOND_PROXY, HERE, ""]))
    def arrive(self, peer: str) -> Guest | None:
        key = KEYS.get(peer)
        room = key is None or (self.handshakes()[key] < 2 and self.connections()[key] < 3)
        arrived: list[Guest] = []
        status = status_of(lambda: arrived.append(self.counts.arrive(peer)))
        assert status == (None if room else 429)
        if not arrived:
            return None
        guest = arrived[0]
        self.opening[guest] = self.open[guest] = key
        if peer.startswith("10."):
            self.proxied.add(guest)
        return guest

    @rule(guest=guests, size=st.integers(1, 60))
    def hold(self, guest: Guest | None, size: int) -> None:
        if guest not in self.opening or guest is None:
            return
        status = status_of(lambda: self.counts.hold(guest, size))
        assert status == (503 if guest.refused else None)
        assert guest.held == (0 if guest.refused else size)

    @rule(guest=guests, client=st.sampled_from([*CLIENTS, HERE, "unknown"]))
    def settle(self, guest: Guest | None, client: str) -> None:
        if guest not in self.opening or guest is None:
            return
        key = KEYS.get(client)
        room = key is None or self.connections()[key] < 3
        status = status_of(lambda: self.counts.settle(guest, forwarded(client)))
        beyond = 429 if guest in self.proxied and not room else None
        assert status == (503 if guest.refused else beyond)
        del self.opening[guest]
        if guest in self.proxied and room:
            self.open[guest] = key

    @rule(guest=guests)
    def leave(self, guest: Guest | None) -> None:
        self.counts.leave(guest)
        if guest is not None:
            self.opening.pop(guest, None)
            self.open.pop(guest, None)

    @rule()
    def make_room(self) -> None:
        late = [guest for guest in self.opening if not guest.refused]
        assert self.counts.make_room() is bool(late)
        assert not late or late[0].refused

    @rule()
    def fork(self) -> None:
        self.counts.forked()
        self.opening.clear()
        self.open.clear()

    @invariant()
    def counters_are_what_there_is(self) -> None:
        assert self.counts._handshakes == self.handshakes()
        assert self.counts._connections == self.connections()
        assert all(self.counts._handshakes.values())
        assert all(self.counts._connections.values())
        assert self.counts._opening == self.opening.keys()
        assert self.counts._guests == self.open.keys()
        assert self.counts.leaving == sum(guest.refused for guest in self.open)
        assert self.counts._held == sum(guest.held for guest in self.opening) <= 50


Counting.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestCounting = Counting.TestCase


def test_many_threads_leave_nothing_counted() -> None:
    """A limit holds at each moment, whoever comes and goes at once."""
    counts = admission(**LIMITS)
    start = threading.Barrier(8)
    most: list[int] = []

    def come_and_go(seed: int) -> int:
        start.wait(WAIT)
        refusals = 0
        for turn in range(300):
            peer = [*CLIENTS, PROXY][(seed + turn) % 5]
            try:
                guest = counts.arrive(peer)
            except HandshakeError:
                refusals += 1
                continue
            try:
                counts.hold(guest, turn % 40)
                counts.settle(guest, forwarded(CLIENTS[turn % 4]))
                with counts._lock:
                    most.append(max(counts._connections.values(), default=0))
            except HandshakeError:
                refusals += 1
            finally:
                counts.leave(guest)
                counts.leave(guest)
        return refusals

    threads = [in_thread(come_and_go, seed) for seed in range(8)]
    for thread in threads:
        thread.result(WAIT)
    assert max(most) <= 3
    assert empty(counts)
