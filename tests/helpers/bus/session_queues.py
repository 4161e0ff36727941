"""Take from queues of sessions as connections do."""

from __future__ import annotations

import threading

import redis as library

from wsmux.bus.relay.queues import Mailbox, QueuedEnvelope
from wsmux.bus.relay.redis_queues import RedisQueues
from wsmux.bus.wire.address import Address
from wsmux.runtime.deadline import Deadline

from ..timeouts import WAIT
from ..waiting import wait_for

__all__ = ["WAIT", "Taker", "encoded", "left", "nothing", "numbers", "put", "take_all"]


class Taker:
    """Take what comes for one session, as a connection does."""

    def __init__(self, queues: RedisQueues, address: Address, *, ack: bool = True) -> None:
        self.taken: list[QueuedEnvelope] = []
        self._ack = ack
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._ended = False
        self.mailbox = queues.open(address, self._woken.set)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended:
            self._woken.wait(WAIT)
            self._woken.clear()
            while entries := self.mailbox.take(5):
                self.taken += entries
                if self._ack:
                    self.mailbox.ack([entry.id for entry in entries])

    def data(self) -> list[bytes]:
        return [entry.data for entry in self.taken]

    def close(self) -> None:
        self._ended = True
        self._woken.set()
        self._thread.join(WAIT)
        self.mailbox.close()


def put(queues: RedisQueues, address: Address, *texts: str, source: int = 0) -> None:
    for text in texts:
        queues.put(address, text.encode(), 2**40, Deadline(WAIT), source)


def numbers(stop: int, start: int = 0) -> list[str]:
    return [str(number) for number in range(start, stop)]


def encoded(texts: list[str]) -> list[bytes]:
    return [text.encode() for text in texts]


def left(client: library.Redis, address: Address) -> object:
    return client.xlen(address.stream_key())


def take_all(mailbox: Mailbox, expected: int) -> list[QueuedEnvelope]:
    """Return so many entries, without acknowledging them."""
    taken: list[QueuedEnvelope] = []

    def enough() -> bool:
        taken.extend(mailbox.take(expected))
        return len(taken) >= expected

    wait_for(enough)
    return taken


def nothing() -> None:
    """Do nothing when woken."""
