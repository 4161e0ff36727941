"""Links that stay alive: attempts, waits, reasons, and several at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from wsmux.bus.errors import CallTimeout
from wsmux.bus.session import relay_connection as module
from wsmux.bus.session.identity_session import clock
from wsmux.bus.session.relay_connection import LinkState, RelayConnection
from wsmux.bus.session.relay_pool import RelayPool
from wsmux.bus.wire import envelope as envelopes
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.tokens import make_token
from wsmux.exceptions import CloseCode
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.people import person
from ...helpers.bus.scripted_relay import StageRelay
from ...helpers.timeouts import WAIT
from ...helpers.waiting import wait_for

ALICE = person(1)


def token() -> str:
    return make_token(ALICE.identity, 1, None, clock())


def ignore(data: bytes) -> None:
    """Take a message."""


@contextmanager
def linked(
    url: str,
    receive: Callable[[bytes], None] = ignore,
    make_token: Callable[[], str] = token,
    urgent: Callable[[], bool] = lambda: False,
) -> Iterator[RelayConnection]:
    made = RelayConnection(url, make_token, receive, lambda: None, urgent=urgent)
    made.start()
    try:
        yield made
    finally:
        made.close(Deadline(WAIT))
        assert made.status().state is LinkState.CLOSED


@pytest.fixture
def relay() -> Iterator[StageRelay]:
    with StageRelay() as made:
        yield made


def message() -> bytes:
    made = envelopes.request("u", Address(1), Address(1), "c", clock(), 60)
    return made.SerializeToString()


def test_a_link_tells_how_it_stands(relay: StageRelay) -> None:
    with linked(relay.url) as link:
        wait_for(lambda: link.status().state is LinkState.CONNECTED)
        assert link.status().reason == ""
        assert "connected" in repr(link)
        relay.stop()
        wait_for(lambda: "Connection refused" in link.status().reason)
        assert link.status().failures >= 1


def test_a_link_takes_nothing_while_it_has_no_connection(relay: StageRelay) -> None:
    relay.refusal = (500, "the twin cannot be looked up")
    with linked(relay.url) as link:
        wait_for(lambda: "cannot be looked up" in link.status().reason)
        assert not link.send(message(), Deadline(0))
        assert not link.offer(message())


def test_a_dead_connection_is_noticed_by_who_sends(relay: StageRelay) -> None:
    gate, entered = threading.Event(), threading.Event()

    def hold(data: bytes) -> None:
        entered.set()
        gate.wait(WAIT)

    with linked(relay.url, hold) as link:
        wait_for(lambda: link.status().state is LinkState.CONNECTED)
        for use in (lambda: link.offer(message()), lambda: link.send(message(), Deadline(WAIT))):
            wait_for(lambda: link._link is not None)
            assert link.offer(message())
            assert entered.wait(WAIT)
            assert link._link is not None
            link._link.abort()
            assert not use()
            assert link.status().state is LinkState.WAITING
            gate.set()


def test_what_came_before_a_hold_is_received(relay: StageRelay) -> None:
    got: list[bytes] = []
    links: list[RelayConnection] = []
    for _ in range(3):
        relay.deliver(envelopes.parse(message()))

    def hold(data: bytes) -> None:
        got.append(data)
        links[0].hold("it must stay away")

    made = RelayConnection(relay.url, token, hold, lambda: None)
    links.append(made)
    made.start()
    wait_for(lambda: len(got) == 3)
    assert made.status().reason == "it must stay away"
    made.close(Deadline(WAIT))


def test_a_receiver_that_fails_costs_the_connection_only(
    relay: StageRelay, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[bytes] = []

    def fail_once(data: bytes) -> None:
        got.append(data)
        if len(got) == 1:
            raise RuntimeError("a bug")

    with linked(relay.url, fail_once) as link:
        for count in (1, 2):
            wait_for(lambda: link.send(message(), Deadline(0)))
            wait_for(lambda count=count: len(got) == count)
    assert "a bug" in caplog.text


@pytest.mark.parametrize("error", [OSError("no keys"), RuntimeError("a bug")])
def test_a_token_that_cannot_be_made_is_told_and_tried_again(
    relay: StageRelay, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.01)
    attempts = iter([False, True])

    def make() -> str:
        if next(attempts):
            return token()
        raise error

    with linked(relay.url, make_token=make) as link:
        wait_for(lambda: link.status().state is LinkState.CONNECTED)


def test_waits_grow_with_failures_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Waited(Deadline):
        def __init__(self, timeout: float | None) -> None:
            assert timeout is not None
            waits.append(timeout)
            super().__init__(0.0)

    link = RelayConnection("ws://relay.test", token, ignore, lambda: None)
    monkeypatch.setattr(module, "Deadline", Waited)
    monkeypatch.setattr("random.random", lambda: 1.0)
    for failures in (0, 1, 2, 5, 6, 1000):
        assert link._rest(failures)
    assert waits == [0.5, 1.0, 2.0, 16.0, 30.0, 30.0]
    monkeypatch.setattr("random.random", lambda: 0.0)
    assert link._rest(1000)
    assert waits[-1] == 0.0


def waits_of(link: RelayConnection, monkeypatch: pytest.MonkeyPatch, **options: bool) -> float:
    """Return how long a link waits after many failures, by a clock that does not go on."""
    monkeypatch.setattr("random.random", lambda: 1.0)
    waits: list[float] = []

    class Stopped(Deadline):
        def __init__(self, timeout: float | None) -> None:
            super().__init__(timeout)
            self.timeout = timeout or 0.0

        def park_seconds(self) -> float:
            return self.timeout

        def remaining(self) -> float:
            waits.append(self.timeout)
            link.close(Deadline(0))
            return 0.0

    monkeypatch.setattr(module, "Deadline", Stopped)
    assert not link._rest(1000, **options)
    return waits[0]


@pytest.mark.parametrize(
    ("urgent", "may_hurry", "longest"),
    [(True, True, 2.0), (False, True, 30.0), (True, False, 30.0), (False, False, 30.0)],
)
def test_waits_are_short_while_somebody_waits_for_a_relay_that_is_away(
    monkeypatch: pytest.MonkeyPatch, urgent: bool, may_hurry: bool, longest: float
) -> None:
    link = RelayConnection("ws://relay.test", token, ignore, lambda: None, urgent=lambda: urgent)
    assert waits_of(link, monkeypatch, may_hurry=may_hurry) == longest


def test_a_relay_that_refuses_is_not_hurried(
    relay: StageRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 1000.0)
    monkeypatch.setattr(module, "LONGEST_WAIT", 1000.0)
    monkeypatch.setattr(module, "URGENT_WAIT", 0.0)
    relay.refusal = (401, "there is no twin 1")
    with linked(relay.url, urgent=lambda: True) as link:
        wait_for(lambda: link.status().failures == 1)
        relay.refusal = None
        link.hurry()
        assert not relay.tokens
    relay.refusal = (503, "the relay is full")
    with linked(relay.url, urgent=lambda: True) as link:
        wait_for(lambda: link.status().failures >= 1)
        relay.refusal = None
        wait_for(relay.connected)


def test_a_connection_that_holds_forgets_the_failures(
    relay: StageRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEADY", 0.0)
    with linked(relay.url) as link:
        for count in (1, 2, 3):
            wait_for(lambda count=count: len(relay.tokens) == count and relay.connected())
            assert link.status().failures == 0
            relay.cut()


def test_who_is_driven_out_learns_why(relay: StageRelay) -> None:
    with linked(relay.url) as link:
        wait_for(relay.connected)
        relay.links[Address(1)].hang_up(CloseCode.TAKEN_OVER, "taken over by a newer connection")
        wait_for(lambda: "taken over" in link.status().reason)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "relay.test",
        "http://relay.test",
        "ws://",
        "ws://relay.test/?x=1",
        "ws:///path",
        "ws://h:x",
        "ws://h#f",
    ],
)
def test_what_is_no_relay_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="address of a relay"):
        RelayConnection(url, token, ignore, lambda: None)


# Several


@contextmanager
def relay_pool(*urls: str, **options: Any) -> Iterator[RelayPool]:
    made = RelayPool(urls, token, ignore, **options)
    made.start()
    try:
        yield made
    finally:
        made.close(Deadline(WAIT))


def test_a_message_waits_for_a_relay(relay: StageRelay) -> None:
    relay.refusal = (500, "not yet")
    with relay_pool(relay.url) as made:
        sent = threading.Event()

        def send() -> None:
            made.send(message(), Deadline(WAIT))
            sent.set()

        thread = threading.Thread(target=send)
        thread.start()
        relay.refusal = None
        assert sent.wait(WAIT)
        thread.join(WAIT)


def test_a_message_without_a_relay_expires_with_the_reasons() -> None:
    with relay_pool("ws://127.0.0.1:9", "ws://127.0.0.1:10") as made:
        wait_for(lambda: all(each.reason for each in made.status()))
        with pytest.raises(CallTimeout, match="127.0.0.1:9: .*127.0.0.1:10: ") as caught:
            made.send(message(), Deadline(0.05), 7)
    assert (caught.value.twin, caught.value.retry_safe) == (7, True)


def test_who_waits_hears_of_the_close() -> None:
    failures: list[Exception] = []
    with relay_pool("ws://127.0.0.1:9") as made:

        def use(call: Callable[[], None]) -> None:
            try:
                call()
            except ValueError as error:
                failures.append(error)

        calls = (
            lambda: made.send(message(), Deadline(None)),
            lambda: made.wait_connected(Deadline(None)),
        )
        threads = [threading.Thread(target=use, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        made.close(Deadline(WAIT))
        for thread in threads:
            thread.join(WAIT)
    assert [str(error) for error in failures] == ["this bus client is closed"] * 2


def test_a_relay_that_takes_nothing_is_passed_over(
    relay: StageRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wsmux.bus.session.relay_pool.ACCEPT", 0.01)
    with StageRelay() as stuck, relay_pool(stuck.url, relay.url) as made:
        made.wait_connected(Deadline(WAIT))
        wait_for(lambda: stuck.connected() and relay.connected())
        gate = threading.Event()
        stuck.change = lambda envelope: [] if gate.wait(WAIT) else []
        big = envelopes.request(
            "u", Address(1), Address(9), "c", clock(), 60, plain=bytes(512 * 1024)
        ).SerializeToString()
        while not relay.passed:
            made.send(big, Deadline(WAIT))
        wait_for(lambda: made.offer(message()))
        gate.set()
