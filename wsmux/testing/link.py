"""Carry the bytes of one direction as a bad network does: late, slowly, in pieces, in order.

A ``Link`` is pure: bytes go in with the time, and come out when they are due by the time that is
passed. ``FaultProxy`` turns the clock of the system, ``Network`` one of its own. A ``Way`` holds
what is common to one direction of all connections: the faults, the counters, the cuts to come.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..config import KIB

__all__ = ["Counters", "Faults", "How", "Link", "Way"]


How = Literal["fin", "rst"]

# Bytes that are on their way at most, whatever the latency: 750 ms of 20 MB/s.
MAX_FLIGHT = 16 * 1024 * KIB

# Jitter is drawn once for so many bytes of a connection's direction, so that one seed delays the
# same bytes by the same time, however they are read.
JITTER_BLOCK = 4 * KIB

# Seconds of a paced direction that may leave at once after a pause: an owner who is late with
# reading, on a busy machine, must not make it slower.
BURST = 0.02

# Seconds of a paced direction that leave in one piece, and the least bytes that do.
QUANTUM = 0.002
LEAST = 16


@dataclass(frozen=True)
class Faults:
    """Say what one direction does to its bytes; by default nothing.

    Attributes:
        latency: seconds that every byte is late.
        jitter: seconds at most that are added to it, drawn from the seed; the order stays.
        rate: bytes a second; ``None`` for no limit.
        buffer: bytes that wait to be paced, or for a receiver who does not read, before the sender
            is not read any more.
        slice: bytes of each piece handed on, at most.
        gap: seconds between two pieces.
        coalesce: bytes that are gathered before they go on in one piece.
        coalesce_wait: seconds after which fewer go on.

    Raises:
        ValueError: a number is out of its range.
    """

    latency: float = 0.0
    jitter: float = 0.0
    rate: float | None = None
    buffer: int = 64 * KIB
    slice: int | None = None
    gap: float = 0.0
    coalesce: int = 0
    coalesce_wait: float = 0.02

    def __post_init__(self) -> None:
        for name in ("latency", "jitter", "gap", "coalesce", "coalesce_wait"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        for name in ("rate", "slice", "buffer"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be above 0, not {value}")


class Counters(NamedTuple):
    """Count the bytes of one direction, over all connections.

    Attributes:
        received: taken from senders.
        forwarded: handed on to receivers.
        lost: dropped unseen, or void because of a cut.
        corrupted: handed on changed.
    """

    received: int = 0
    forwarded: int = 0
    lost: int = 0
    corrupted: int = 0


class Way:
    """Hold what is common to one direction of all connections.

    Attributes:
        losing: what comes is dropped unseen.
        frozen: nothing is taken or handed on.
        cuts: bytes to be handed on before each cut, and how it is made.
    """

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.losing = self.frozen = False
        self.cuts: deque[tuple[int, How]] = deque()
        self._bad: dict[int, int] = {}  # place in all that is forwarded to what it is changed by
        self._received = self._forwarded = self._lost = self._corrupted = 0

    @property
    def counters(self) -> Counters:
        return Counters(self._received, self._forwarded, self._lost, self._corrupted)

    def corrupt_after(self, count: int, mask: int) -> None:
        """Change the byte that comes after so many more by ``mask``."""
        self._bad[self._forwarded + count] = mask

    def received(self, size: int) -> bool:
        """Note bytes taken from a sender; tell whether they are to be carried."""
        self._received += size
        if self.losing:
            self._lost += size
        return not self.losing

    def dropped(self, size: int) -> None:
        """Note bytes that a cut made void."""
        self._lost += size

    def passing(self, piece: memoryview) -> bytes | memoryview:
        """Return as much of a piece as passes before the next cut, changed where it must be."""
        if self.cuts:
            piece = piece[: self.cuts[0][0]]
        start, stop = self._forwarded, self._forwarded + len(piece)
        places = [place for place in self._bad if start <= place < stop]
        if not places:
            return piece
        changed = bytearray(piece)
        for place in places:
            changed[place - start] ^= self._bad[place]
        return bytes(changed)

    def passed(self, size: int) -> How | None:
        """Note bytes that were handed on; return how to cut, if that is due now."""
        self._forwarded += size
        for place in [place for place in self._bad if place < self._forwarded]:
            del self._bad[place]
            self._corrupted += 1
        if not self.cuts:
            return None
        left, how = self.cuts[0]
        if left > size:
            self.cuts[0] = (left - size, how)
            return None
        self.cuts.popleft()
        return how


class Link:
    """Carry one direction of one connection.

    Bytes pass three stages: they are gathered, paced, and late. The owner calls ``put`` while there
    is ``room``, and hands ``piece`` on when it is due, saying with ``taken`` how much of it went.

    Args:
        way: what all connections share.
        seed: what jitter is drawn from.
    """

    def __init__(self, way: Way, seed: object) -> None:
        self.way = way
        self.ended = False  # the sender has
        self._chance = random.Random(f"link {seed}")
        self._gathered: deque[bytes] = deque()
        self._gathered_size = 0
        self._gathered_at = 0.0
        self._queue: deque[memoryview] = deque()  # waits to be paced
        self._queued = 0
        self._entered_at = -math.inf  # when bytes last came to the pacer
        self._free_at = -math.inf  # when the next paced byte may leave
        self._flying: deque[tuple[float, memoryview]] = deque()
        self._in_flight = 0
        self._now = -math.inf
        self._last_arrival = -math.inf
        self._next_piece_at = -math.inf
        self._jitter = 0.0
        self._drawn_until = 0  # bytes of this link whose jitter is drawn
        self._left = 0  # bytes that left the pacer

    def room(self) -> int:
        """Return how many bytes may be put now."""
        limit = max(self.way.faults.buffer, self.way.faults.coalesce)
        return 0 if self.ended else max(0, limit - self._gathered_size - self._queued)

    def waiting(self) -> int:
        """Return how many bytes are held."""
        return self._gathered_size + self._queued + self._in_flight

    def put(self, data: bytes, now: float) -> None:
        """Take bytes of the sender."""
        if not self._gathered:
            self._gathered_at = now
        self._gathered.append(data)
        self._gathered_size += len(data)

    def piece(self, now: float) -> memoryview | None:
        """Return what is to be handed on next, if it is due.

        What is due goes first, and the pacer is looked at after it: an owner who comes late must
        not look like a receiver who does not read.
        """
        if not self._flying or self._flying[0][0] > now:
            self._advance(now)
        if not self._flying or self._flying[0][0] > now or self._next_piece_at > now:
            return None
        piece, size = self._flying[0][1], self.way.faults.slice
        return piece[:size] if size else piece

    def taken(self, size: int, now: float) -> None:
        """Note that so much of the piece was handed on."""
        arrival, piece = self._flying.popleft()
        if size < len(piece):
            self._flying.appendleft((arrival, piece[size:]))
        self._in_flight -= size
        if self.way.faults.gap:
            self._next_piece_at = now + self.way.faults.gap

    def resume(self, now: float) -> None:
        """Note that the receiver takes bytes again: the time before is lost to the pacer."""
        self._free_at = max(self._free_at, now)

    def next_time(self) -> float | None:
        """Return when there may be something to do; ``None`` when only ``put`` can bring that."""
        times = []
        if self._flying:
            times.append(max(self._flying[0][0], self._next_piece_at))
        if self._queue and self._may_leave():
            times.append(self._free_at)
        if self._gathered:
            full = self.ended or self._gathered_size >= self.way.faults.coalesce
            times.append(self._gathered_at + (0 if full else self.way.faults.coalesce_wait))
        return min(times) if times else None

    def over(self) -> bool:
        """Return whether the sender has ended and all was handed on."""
        return self.ended and not self.waiting()

    def drop(self) -> None:
        """Lose all that is held."""
        self.way.dropped(self.waiting())
        for held in (self._gathered, self._queue, self._flying):
            held.clear()
        self._gathered_size = self._queued = self._in_flight = 0

    def _advance(self, now: float) -> None:
        self._now = now
        faults = self.way.faults
        late = self._gathered_at + faults.coalesce_wait <= now
        if self._gathered and (self.ended or self._gathered_size >= faults.coalesce or late):
            if not self._queue:
                self._free_at = max(self._free_at, now - (BURST if faults.rate else 0))
            self._entered_at = now
            whole = b"".join(self._gathered)
            self._gathered.clear()
            self._queue.append(memoryview(whole))
            self._queued += len(whole)
            self._gathered_size = 0
        while self._queue and self._free_at <= now and self._may_leave():
            self._leave(faults)
        if self._queue and not self._may_leave():  # time that is not used is lost
            self._free_at = max(self._free_at, now)

    def _may_leave(self) -> bool:
        """Return whether there is room behind the pacer; a receiver who does not read fills it."""
        faults = self.way.faults
        if self._in_flight < faults.buffer:
            return True
        if not faults.latency + faults.jitter or self._in_flight >= MAX_FLIGHT:
            return False
        landed = 0
        for arrival, piece in self._flying:
            if arrival > self._now:
                return True
            landed += len(piece)
            if landed >= faults.buffer:
                break
        return False

    def _leave(self, faults: Faults) -> None:
        first = self._queue[0]
        size = len(first)
        if faults.rate is not None:
            size = min(size, max(LEAST, int(faults.rate * QUANTUM)))
        if faults.jitter:
            if self._left >= self._drawn_until:
                self._jitter = self._chance.random() * faults.jitter
                self._drawn_until += JITTER_BLOCK
            size = min(size, self._drawn_until - self._left)
        if faults.rate is not None:
            self._free_at += size / faults.rate
        self._queue.popleft()
        if size < len(first):
            self._queue.appendleft(first[size:])
        self._queued -= size
        self._left += size
        left_at = max(self._free_at, self._entered_at)
        arrival = max(self._last_arrival, left_at + faults.latency + self._jitter)
        self._last_arrival = arrival
        self._flying.append((arrival, first[:size]))
        self._in_flight += size
