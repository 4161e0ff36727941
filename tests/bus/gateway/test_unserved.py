"""Requests that no service takes are withdrawn and answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from wsmux.bus.errors import EXPIRED, BusError
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


def request(uid: str) -> Envelope:
    return envelopes.request(uid, Address(1), Address(2), "c", 1, 60, plain=b"1")


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
