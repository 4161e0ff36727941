"""Take the orders of a test for a bad network, between real sockets or between pure machines."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from .link import Counters, Faults, How, Way

__all__ = ["FaultyNet"]

WAYS = ("up", "down")


class FaultyNet(ABC):
    """The base of ``FaultProxy`` and ``Network``; see there for threads and waiting.

    ``up`` is the way from clients to servers, ``down`` the way back.

    Attributes:
        seed: what all chances are drawn from.
        chance: a ``random.Random`` of the seed, for the test's own choices.
    """

    def __init__(self, up: Faults | None, down: Faults | None, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(f"net {seed}")
        self._ways = {"up": Way(up), "down": Way(down)}

    def set(self, *, up: Faults | None = None, down: Faults | None = None) -> None:
        """Change what is done to the bytes of a way from now on; a way not given stays."""

        def change() -> None:
            for way, faults in (("up", up), ("down", down)):
                if faults is not None:
                    self._ways[way].faults = faults

        self._do(change)

    def cut(self, how: How = "fin") -> None:
        """End all connections, in the middle of whatever they carry; what is held is lost.

        Both ends get the end of file (``"fin"``), or a reset (``"rst"``). New connections are
        carried, and nothing is lost any more that ``lose`` asked for.
        """

        def cut() -> None:
            for way in self._ways.values():
                way.losing = False
            self._end_all(how)

        self._do(cut)

    def reset(self) -> None:
        """Reset all connections; see ``cut``."""
        self.cut("rst")

    def cut_after(self, *counts: int, way: str = "down", how: How = "fin") -> None:
        """End all connections once so many more bytes have gone one way, and so on.

        Exactly so many bytes are handed on, counted over all connections from now, and from each
        cut to the next. Calling it again forgets the cuts to come of that way.
        """
        if not all(count > 0 for count in counts):
            raise ValueError(f"cuts come after one byte or more, not {counts}")
        chosen = self._way(way)
        self._do(lambda: setattr(chosen, "cuts", deque((count, how) for count in counts)))

    @property
    def cutting(self) -> bool:
        """Whether a cut is still to come."""
        return any(way.cuts for way in self._ways.values())

    def corrupt_after(self, count: int, *, way: str = "down", mask: int = 0xFF) -> None:
        """Change the byte that comes after ``count`` more of a way: it is XORed with ``mask``."""
        if count < 0 or not 0 < mask < 256:
            raise ValueError(f"count must be at least 0 and mask 1 to 255, not {count}, {mask}")
        self._do(lambda: self._way(way).corrupt_after(count, mask))

    def lose(self, *ways: str) -> None:
        """Take the bytes of these ways from now on, and drop them unseen; none for no loss."""
        for way in ways:
            self._way(way)

        def lose() -> None:
            for name, way in self._ways.items():
                way.losing = name in ways

        self._do(lose)

    def freeze(self, *ways: str) -> None:
        """Accept and hand on nothing, as a black hole that everything arrives from later.

        For a proxy's listener the system still shakes hands, and holds what fits its buffers. With
        ``ways`` only those stand still, and connections are accepted.
        """
        for way in ways:
            self._way(way)
        self._freeze(ways or WAYS)

    def thaw(self) -> None:
        """Go on as before ``freeze``; nothing was lost."""
        self._freeze(())

    def half_close(self, way: str = "up") -> None:
        """End one way of all connections after what was handed on; what follows there is lost."""
        self._way(way)
        self._do(lambda: self._half_close_all(way))

    def counters(self, way: str) -> Counters:
        """Return what has gone one way so far, over all connections."""
        return self._way(way).counters

    def _way(self, name: str) -> Way:
        if name not in self._ways:
            raise ValueError(f"way must be 'up' or 'down', not {name!r}")
        return self._ways[name]

    def _freeze(self, ways: tuple[str, ...]) -> None:
        def freeze() -> None:
            for name, way in self._ways.items():
                way.frozen = name in ways

        self._do(freeze)

    @abstractmethod
    def _do(self, action: Callable[[], object]) -> None:
        """Do something between two moves of bytes."""

    @abstractmethod
    def _end_all(self, how: How) -> None:
        """End all connections now."""

    @abstractmethod
    def _half_close_all(self, way: str) -> None:
        """End one way of all connections."""
