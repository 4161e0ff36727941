"""Bound the streams opened here that the peer has not answered yet."""

from __future__ import annotations

from typing import Protocol

from ..config import Config
from .base import MuxProtocol, Role
from .events import OpenPermitted

__all__ = ["AnsweredProtocol"]


class Answerable(Protocol):
    """Be a stream opened here; the peer has ``answered`` once it has sent anything on it."""

    answered: bool


class AnsweredProtocol(MuxProtocol):
    """Be the base of the machines whose peer answers each stream, rather than granting them."""

    def __init__(self, role: Role, config: Config) -> None:
        super().__init__(role, config)
        self._pending_opens = 0
        self._peer_refuses = False

    def may_open(self) -> bool:
        return self._pending_opens < self.config.max_pending_opens or self._peer_refuses

    def _opening(self) -> None:
        """Count a stream that this side opens."""
        self._pending_opens += 1
        self.floods.streams += 1

    def _answered(self, stream: Answerable) -> bool:
        """Note a sign of acceptance, or that none is owed; tell whether it was the first."""
        if stream.answered:
            return False
        stream.answered = True
        self._pending_opens -= 1
        if self._pending_opens == self.config.max_pending_opens - 1:
            self._events.append(OpenPermitted())
        return True
