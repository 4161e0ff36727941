"""End what the peer leaves lying: streams that are half open, and frames that never get whole.

Guarded by the connection's mutex. What moves only notes that it did, in ``Entry.quiet``; the sweep
counts up what did not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .bell import Bell
from .config import Config
from .entry import Entry
from .exceptions import FrameError, StreamReset
from .protocols.base import MuxProtocol
from .protocols.budgets import LOOKS, POLICY, Watch

__all__ = ["Sweep"]


class Sweep:
    """Look at the streams of one connection when ``due`` says so; ``None`` is never.

    Attributes:
        due: when to call ``run`` again.
    """

    def __init__(self, config: Config, protocol: MuxProtocol, entries: dict[int, Entry]) -> None:
        self.due: float | None = None
        self._protocol = protocol
        self._entries = entries
        self._half_open = config.half_open_timeout
        self._frame_time = config.message_timeout
        self._frame = Watch(config.message_timeout)
        periods = [] if self._half_open is None else [self._half_open / LOOKS]
        if not protocol.keeps_boundaries and self._frame_time is not None:
            periods.append(self._frame_time / LOOKS)
        self._period = min(periods, default=None)
        self._streams_due = 0.0

    def begin(self, now: float) -> None:
        """Note that there is a stream."""
        if self.due is None and self._period is not None:
            self.due = now + self._period
            self._streams_due = now + (self._half_open or 0.0) / LOOKS

    def run(self, now: float, wakes: list[Bell]) -> Iterator[Entry]:
        """Yield the streams to be reset, whose callers have been told.

        Raises:
            FrameError: the connection must end.
        """
        if self.due is None or self._period is None or now < self.due:
            return
        incomplete = self._protocol.incomplete()
        self.due = now + self._period if self._entries or incomplete is not None else None
        if self._frame.look(incomplete, now):
            text = f"a frame stayed incomplete for Config.message_timeout = {self._frame_time} s"
            raise FrameError(text, POLICY)
        if self._half_open is None or now < self._streams_due:
            return
        self._streams_due = now + self._half_open / LOOKS
        for entry in list(self._entries.values()):
            if not self._peer_is_to_move(entry):
                entry.quiet = 0
                continue
            entry.quiet += 1
            if entry.quiet == LOOKS + 1:
                self._tell(entry, wakes)
                yield entry
            elif entry.quiet > 2 * LOOKS + 1:
                text = f"stream {entry.id} was reset, and the peer does not end its half"
                raise FrameError(text, POLICY)

    def _peer_is_to_move(self, entry: Entry) -> bool:
        """Tell whether a stream is half open, and it is not this side that keeps it so."""
        if entry.buffer.size:
            return False
        if entry.write_failure is not None:
            return True  # it waits for bytes, or for the end
        read = entry.ended or entry.read_failure is not None
        return read and entry.writing and not self._protocol.credit(entry.id)

    def _tell(self, entry: Entry, wakes: list[Bell]) -> None:
        detail = f"half open and still for Config.half_open_timeout = {self._half_open} s"
        failure = partial(StreamReset, entry.id, self._protocol.refused_code, "local", detail)
        entry.fail_read(failure, wakes)
        entry.fail_write(failure, wakes)
