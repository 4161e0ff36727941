"""Requests that no service takes are withdrawn and answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from wsmux.bus.errors import EXPIRED, TOO_MANY, BusError
from wsmux.bus.gateway import unserved as module
from wsmux.bus.gateway.unserved import Unserved
from wsmux.bus.wire import envelope as envelopes
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.messages import Envelope
from wsmux.runtime.deadline import Deadline

from ...helpers.timeouts import WAIT
from ...helpers.waiting import wait_for


class Store:
    """Have each message still in its list, but those that a service took."""

    def withdraw(self, queue: str, message: bytes, deadline: Deadline) -> bool:
        if message == b"down":
            raise BusError(500, "Redis is down")
        return message != b"taken"


@contextmanager
def running(unserved: Unserved) -> Iterator[None]:
    thread = threading.Thread(target=unserved.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        unserved.close()
        thread.join(WAIT)
        assert not thread.is_alive()


def request(uid: str, source: int = 1) -> Envelope:
    return envelopes.request(uid, Address(source), Address(2), "c", 1, 60, plain=b"1")


def test_what_nobody_took_is_told_and_a_failure_is_the_last_of_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[tuple[str, int]] = []

    def tell(envelope: Envelope, error: BusError) -> None:
        if envelope.uid == "long":
            raise BusError(500, "an envelope is above the limit")
        told.append((envelope.uid, error.code))

    unserved = Unserved(Store(), tell)  # type: ignore[arg-type]
    messages = {"long": b"m", "down": b"down", "taken": b"taken", "told": b"m"}
    for uid, message in messages.items():
        unserved.watch("msgbus.c", message, request(uid), Deadline(0))
    with running(unserved):
        wait_for(lambda: told == [("told", EXPIRED)])
    assert "is not answered: an envelope is above the limit" in caplog.text


@pytest.mark.parametrize("bound", ["MAX_WATCHED", "MAX_BYTES"])
def test_a_twin_that_floods_has_its_own_requests_withdrawn(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(b"m" * 1000) + 100
    monkeypatch.setattr(module, bound, {"MAX_WATCHED": 4, "MAX_BYTES": 4 * size}[bound])
    told: list[tuple[str, int]] = []
    unserved = Unserved(Store(), lambda asked, error: told.append((asked.uid, error.code)))  # type: ignore[arg-type]

    def watch(uid: str, source: int) -> None:
        unserved.watch("msgbus.c", b"m" * 1000, request(uid, source), Deadline(60))

    watch("honest", 2)
    for number in range(10):
        watch(str(number), 1)
    watch("honest too", 3)
    assert told == [(str(number), TOO_MANY) for number in range(8)]


def test_what_a_service_took_makes_room_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WATCHED", 1)
    told: list[str] = []
    unserved = Unserved(Store(), lambda asked, error: told.append(asked.uid))  # type: ignore[arg-type]
    for number in range(10):
        unserved.watch("msgbus.c", b"taken", request(str(number)), Deadline(60))
    assert told == []
    with running(unserved):
        unserved.watch("msgbus.c", b"m", request("due"), Deadline(0))
        wait_for(lambda: told == ["due"])


def test_what_was_withdrawn_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WATCHED", 10)
    unserved = Unserved(Store(), lambda asked, error: None)  # type: ignore[arg-type]
    for number in range(1000):
        unserved.watch("msgbus.c", b"m", request(str(number), number % 3), Deadline(60))
    assert len(unserved._due) <= 21
    assert unserved._count == sum(len(each.requests) for each in unserved._shares.values()) == 10
