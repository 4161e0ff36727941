"""A directory of twins in memory, which can be down."""

from __future__ import annotations

from collections.abc import Iterable

from wsmux.bus.errors import TwinsUnavailable
from wsmux.bus.twins.records import Twin, TwinDirectory
from wsmux.runtime.deadline import Deadline

__all__ = ["ListedTwins"]


class ListedTwins(TwinDirectory):
    """Answer from a list.

    Attributes:
        down: look-ups that fail first. away: twins whose look-ups fail.
        asked: what was looked up.
    """

    name = "a list"

    def __init__(self, twins: Iterable[Twin], down: int = 0) -> None:
        self.twins = {twin.id: twin for twin in twins}
        self.down = down
        self.away: set[int] = set()
        self.asked: list[int] = []

    def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
        self.asked.append(twin_id)
        if self.down or twin_id in self.away:
            self.down = max(0, self.down - 1)
            raise TwinsUnavailable("the list is down")
        return self.twins.get(twin_id)

    def find(self, account: bytes, deadline: Deadline) -> Twin | None:
        return next((twin for twin in self.twins.values() if twin.account == account), None)
