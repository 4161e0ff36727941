"""Define the faults that a test can request, for real sockets and for pure machines."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from .link import Counters, Faults, How, Way

__all__ = ["FaultyNet"]

WAYS = ("up", "down")


class FaultyNet(ABC):
    """The base class of ``FaultProxy`` and ``Network``; they describe threads and waiting.

    ``up`` is the direction from clients to servers, ``down`` the other one.

    Attributes:
        seed: the seed of everything random.
        chance: a ``random.Random`` with the seed, for the test's own choices.
    """

    def __init__(self, up: Faults | None, down: Faults | None, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(f"net {seed}")
        self._ways = {"up": Way(up), "down": Way(down)}

    def set(self, *, up: Faults | None = None, down: Faults | None = None) -> None:
        """Change the faults of a direction from now on; a direction not given is unchanged."""

        def change() -> None:
            for way, faults in (("up", up), ("down", down)):
                if faults is not None:
                    self._ways[way].faults = faults

        self._do(change)

    def cut(self, how: How = "fin") -> None:
        """End all connections, in the middle of any transfer; bytes in transit are lost.

        Both ends get the end of file (``"fin"``), or a reset (``"rst"``). New connections are
        carried, and a previous ``lose`` no longer applies.
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
        """End all connections after so many more bytes in one direction, and repeatedly.

        Exactly so many bytes are forwarded, counted over all connections from now, and from each
        cut to the next. Calling it again replaces the pending cuts of that direction.
        """
        if not all(count > 0 for count in counts):
            raise ValueError(f"cuts come after one byte or more, not {counts}")
        chosen = self._way(way)
        self._do(lambda: setattr(chosen, "cuts", deque((count, how) for count in counts)))

    @property
    def cutting(self) -> bool:
        """Whether a cut is pending."""
        return any(way.cuts for way in self._ways.values())

    def corrupt_after(self, count: int, *, way: str = "down", mask: int = 0xFF) -> None:
        """Change the byte after the next ``count`` of a direction: XOR it with ``mask``."""
        if count < 0 or not 0 < mask < 256:
            raise ValueError(f"count must be at least 0 and mask 1 to 255, not {count}, {mask}")
        self._do(lambda: self._way(way).corrupt_after(count, mask))

    def lose(self, *ways: str) -> None:
        """Accept the bytes of these directions from now on, and drop them; none ends the loss."""
        for way in ways:
            self._way(way)

        def lose() -> None:
            for name, way in self._ways.items():
                way.losing = name in ways

        self._do(lose)

    def freeze(self, *ways: str) -> None:
        """Stop accepting and forwarding bytes, like an outage after which everything arrives.

        The system still completes TCP handshakes for a proxy's listener, and buffers what fits.
        With ``ways``, only those directions stop, and connections are accepted.
        """
        for way in ways:
            self._way(way)
        self._freeze(ways or WAYS)

    def thaw(self) -> None:
        """Continue as before ``freeze``; nothing was lost."""
        self._freeze(())

    def half_close(self, way: str = "up") -> None:
        """End one direction of all connections after the bytes forwarded; the rest is lost."""
        self._way(way)
        self._do(lambda: self._half_close_all(way))

    def counters(self, way: str) -> Counters:
        """Return the byte counts of one direction so far, over all connections."""
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
        """Run an action between two transfers of bytes."""

    @abstractmethod
    def _end_all(self, how: How) -> None:
        """End all connections now."""

    @abstractmethod
    def _half_close_all(self, way: str) -> None:
        """End one direction of all connections."""
