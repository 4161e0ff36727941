"""Read a topic to its end, and compare what came with what was published."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Self

from wsmux.cluster import Cluster, Position, TopicGap
from wsmux.cluster.positions import parse_position

from .timeouts import WAIT

__all__ = ["Reader", "check_topic"]

# Seconds for which a reader waits before it looks whether it is to end.
LOOK = 0.5

Read = list[tuple[Position, bytes] | TopicGap]


class Reader:
    """Read a topic in a thread, until ``join`` names the message that ends it.

    Args:
        pause: seconds between two messages.

    Attributes:
        read: messages and gaps in order.
    """

    def __init__(self, cluster: Cluster, topic: str, pause: float = 0.0) -> None:
        self.read: Read = []
        self._subscription = cluster.subscribe(topic)
        self._pause = pause
        self._ended = threading.Event()
        self._last: Position | None = None
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._subscription.close()

    def join(self, last: Position) -> None:
        """Wait until the message at a position was read."""
        self._last = last
        self._thread.join(WAIT)
        assert not self._thread.is_alive(), f"the message at {last} was not read"

    def _follow(self) -> None:
        while not self._ended.wait(0.0 if self._last else self._pause):
            at = self._subscription.position
            if self._last is not None and at is not None and at >= self._last:
                return
            try:
                message = self._subscription.read(LOOK)
            except TimeoutError:
                continue
            except TopicGap as gap:
                self.read.append(gap)
                continue
            self.read.append((message.position, message.data))


def check_topic(published: Sequence[tuple[Position, bytes]], read: Read) -> str:
    """Check that each message was read, in order and once, or is within a gap that was told.

    Returns how many there are of both.
    """
    got = [each for each in read if not isinstance(each, TopicGap)]
    told = [each for each in read if isinstance(each, TopicGap)]
    gaps = [(parse_position(each.after), parse_position(each.before)) for each in told]
    assert [each[0] for each in got] == sorted({each[0] for each in got})
    known = dict(got)
    for position, data in published:
        if position in known:
            assert known[position] == data
        else:
            assert any(after < position < before for after, before in gaps), (position, gaps)
    return f"{len(got)} messages read, {len(gaps)} gaps told"
