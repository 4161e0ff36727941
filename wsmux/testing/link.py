"""Carry the bytes of one direction as a faulty network does: late, slowly, in pieces, in order.

A ``Link`` is pure: bytes are put in with the time, and returned when they are due at a given time.
``FaultProxy`` uses the system's clock, ``Network`` a simulated one. A ``Way`` holds what all
connections share in one direction: faults, counters and pending cuts.
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

# Maximum bytes in flight, whatever the latency: 750 ms of 20 MB/s.
MAX_FLIGHT = 16 * 1024 * KIB

# Jitter is drawn once per so many bytes of a connection's direction, so that with the same seed the
# same bytes are delayed equally, however they are read.
JITTER_BLOCK = 4 * KIB

# Seconds' worth of bytes that a paced direction may send at once after a pause: late reading, on a
# busy machine, must not make it slower.
BURST = 0.02

# Seconds' worth of bytes that a paced direction sends in one piece, and the minimum of bytes.
QUANTUM = 0.002
LEAST = 16


@dataclass(frozen=True)
class Faults:
    """Describe the faults of one direction; by default none.

    Attributes:
        latency: seconds by which every byte is delayed.
        jitter: up to so many seconds more, drawn from the seed; the order is kept.
        rate: bytes per second; ``None`` for no limit.
        buffer: bytes that may wait for pacing, or for a receiver that does not read, before reading
            from the sender stops.
        slice: the maximum size of each piece forwarded.
        gap: seconds between two pieces.
        coalesce: bytes that are collected before they are forwarded in one piece.
        coalesce_wait: seconds after which fewer are forwarded.

    Raises:
        ValueError: a number is out of range.
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
        received: read from senders.
        forwarded: passed on to receivers.
        lost: dropped, or discarded by a cut.
        corrupted: passed on changed.
    """

    received: int = 0
    forwarded: int = 0
    lost: int = 0
    corrupted: int = 0


class Way:
    """Hold what all connections share in one direction.

    Attributes:
        losing: bytes are dropped.
        frozen: nothing is read or forwarded.
        cuts: the bytes to forward before each cut, and how it is made.
    """

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.losing = self.frozen = False
        self.cuts: deque[tuple[int, How]] = deque()
        self._bad: dict[int, int] = {}  # position in all forwarded bytes, to its mask
        self._received = self._forwarded = self._lost = self._corrupted = 0

    @property
    def counters(self) -> Counters:
        return Counters(self._received, self._forwarded, self._lost, self._corrupted)

    def corrupt_after(self, count: int, mask: int) -> None:
        """Change the byte after the next ``count`` by ``mask``."""
        self._bad[self._forwarded + count] = mask

    def received(self, size: int) -> bool:
        """Count bytes read from a sender; return whether they are to be carried."""
        self._received += size
        if self.losing:
            self._lost += size
        return not self.losing

    def dropped(self, size: int) -> None:
        """Count bytes discarded by a cut."""
        self._lost += size

    def passing(self, piece: memoryview) -> bytes | memoryview:
        """Return as much of a piece as passes before the next cut, corrupted where necessary."""
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
        """Count forwarded bytes; return how to cut, if a cut is due now."""
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

    Bytes pass three stages: they are collected, paced, and delayed. The owner calls ``put`` while
    there is ``room``, forwards ``piece`` when it is due, and reports with ``taken`` how many bytes
    of it were sent.

    Args:
        way: the state shared by all connections.
        seed: the seed of jitter.
    """

    def __init__(self, way: Way, seed: object) -> None:
        self.way = way
        self.ended = False  # by the sender
        self._chance = random.Random(f"link {seed}")
        self._gathered: deque[bytes] = deque()
        self._gathered_size = 0
        self._gathered_at = 0.0
        self._queue: deque[memoryview] = deque()  # waiting for pacing
        self._queued = 0
        self._entered_at = -math.inf  # when bytes last reached the pacer
        self._free_at = -math.inf  # when the next paced byte may be sent
        self._flying: deque[tuple[float, memoryview]] = deque()
        self._in_flight = 0
        self._now = -math.inf
        self._last_arrival = -math.inf
        self._next_piece_at = -math.inf
        self._jitter = 0.0
        self._drawn_until = 0  # bytes of this link whose jitter has been drawn
        self._left = 0  # bytes that have left the pacer

    def room(self) -> int:
        """Return how many bytes may be put now."""
        limit = max(self.way.faults.buffer, self.way.faults.coalesce)
        return 0 if self.ended else max(0, limit - self._gathered_size - self._queued)

    def waiting(self) -> int:
        """Return how many bytes are held."""
        return self._gathered_size + self._queued + self._in_flight

    def put(self, data: bytes, now: float) -> None:
        """Add bytes from the sender."""
        if not self._gathered:
            self._gathered_at = now
        self._gathered.append(data)
        self._gathered_size += len(data)

    def piece(self, now: float) -> memoryview | None:
        """Return the next piece to forward, if it is due.

        Due bytes go first, and the pacer is advanced after them: a late owner must not look like a
        receiver that does not read.
        """
        if not self._flying or self._flying[0][0] > now:
            self._advance(now)
        if not self._flying or self._flying[0][0] > now or self._next_piece_at > now:
            return None
        piece, size = self._flying[0][1], self.way.faults.slice
        return piece[:size] if size else piece

    def taken(self, size: int, now: float) -> None:
        """Record that so many bytes of the piece were forwarded."""
        arrival, piece = self._flying.popleft()
        if size < len(piece):
            self._flying.appendleft((arrival, piece[size:]))
        self._in_flight -= size
        if self.way.faults.gap:
            self._next_piece_at = now + self.way.faults.gap

    def resume(self, now: float) -> None:
        """Record that the receiver reads again: the pacer does not make up for the time before."""
        self._free_at = max(self._free_at, now)

    def next_time(self) -> float | None:
        """Return when there may be something to do; ``None`` if only after ``put``."""
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
        """Return whether the sender has ended and everything was forwarded."""
        return self.ended and not self.waiting()

    def drop(self) -> None:
        """Drop everything that is held."""
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
        if self._queue and not self._may_leave():  # unused time is lost
            self._free_at = max(self._free_at, now)

    def _may_leave(self) -> bool:
        """Return whether the delay stage has room; a receiver that does not read fills it."""
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
