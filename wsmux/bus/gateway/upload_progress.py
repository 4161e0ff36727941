"""Decide what a sender of a file does next, so that every upload ends. Pure: times are arguments.

A sender asks where the receiver stands, which also begins the upload; sends chunks from there; then
closes. Whatever goes wrong, it asks again and goes on from the answer: after a lost connection,
when a chunk is missing, and when nothing is acknowledged for a while. Questions are repeated, less
and less often, since the receiver may not be connected yet when one is sent::

    ASKING --its answer--> SENDING --all is sent--> ENDING --confirmed--> DONE
       ^                      |                       |
       +-----lost, silent, or a chunk is missing------+

Each round of questions has a number, the attempt, which the receiver repeats. Answers to an earlier
attempt are ignored, so that several reports of one missing chunk do not send it several times.

The offset of a chunk and the attempt are in the envelope's tags, which receivers that do not know
them ignore. From a receiver whose first answer names no attempt nothing can be asked again: it gets
the chunks once. The reference gateway acknowledges nothing, so its upload ends with the last chunk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, NamedTuple

from ...runtime.backoff import Backoff

__all__ = ["Ask", "Close", "Message", "Place", "UploadProgress", "Wait", "Write", "read_tags"]

# Seconds before a question is repeated, at first and at most.
FIRST, LONGEST = 2.0, 10.0

# Seconds without progress, after the last chunk or the end was sent, until the sender asks again.
STALL = 10.0

_PLACE = re.compile(r"(?:^|[,\s])offset=([0-9]{1,15}),attempt=([0-9]{1,9})(?:$|[,\s])")


class Place(NamedTuple):
    """Say where a message belongs: its offset in the file in bytes, and the attempt."""

    offset: int
    attempt: int

    def tags(self) -> str:
        """Return it as the tags of an envelope."""
        return f"offset={self.offset},attempt={self.attempt}"


def read_tags(tags: str) -> Place | None:
    """Return the place that tags name; ``None`` if they name none, as of other senders."""
    found = _PLACE.search(tags)
    return None if found is None else Place(int(found[1]), int(found[2]))


class Ask(NamedTuple):
    """Begin the upload, or ask where the receiver stands."""

    place: Place


class Write(NamedTuple):
    """Send a chunk of so many bytes."""

    place: Place
    length: int


class Close(NamedTuple):
    """The message by which a receiver learns that all has been sent."""

    place: Place


class Wait(NamedTuple):
    """Wait for an answer, at most until then; ``math.inf`` is without limit."""

    until: float


Message = Ask | Write | Close
Step = Message | Wait


class _Phase(Enum):
    ASKING = auto()
    SENDING = auto()
    ENDING = auto()
    DONE = auto()


class UploadProgress:
    """Follow one upload; not thread-safe.

    Args:
        size: the bytes of the file.
        chunk: the bytes of a chunk.
        window: the unacknowledged bytes in flight.
        resumed: whether an earlier gateway may have sent something of this upload.
    """

    def __init__(self, size: int, chunk: int, window: int, *, resumed: bool = False) -> None:
        self._size, self._chunk, self._window = size, chunk, window
        self._phase = _Phase.ASKING
        self._attempt = 1
        self._questions = int(resumed)
        self._sent = self._received = 0
        self._acks = False
        self._resumes: bool | None = None  # whether the receiver can be asked; None if not known
        self._missed = False  # whether a chunk was missing since there was progress
        self._backoff = Backoff(FIRST, LONGEST, least=1.0)
        self._due = -math.inf  # when to ask

    def is_done(self) -> bool:
        """Return whether the file has arrived, or was sent to a receiver that confirms nothing."""
        return self._phase is _Phase.DONE

    def was_sent_once(self) -> bool:
        """Return whether no message has a copy, so that a relay's error is about the only one."""
        return not self._resumes and self._questions <= 1

    def next(self, now: float) -> Step:
        """Return what to do now; not to be called once it is done."""
        if now >= self._due:
            if self._phase is not _Phase.ASKING:
                self._ask_at(now)
            self._questions += 1
            self._due = now + self._backoff.next()
            return Ask(Place(0, self._attempt))
        if self._phase is _Phase.SENDING:
            place = Place(self._sent, self._attempt)
            if self._sent >= self._size:
                self._phase = _Phase.ENDING if self._acks else _Phase.DONE
                return Close(place)
            if not self._acks or self._sent - self._received <= self._window - self._chunk:
                length = min(self._chunk, self._size - self._sent)
                self._sent += length
                return Write(place, length)
        return Wait(self._due)

    def sent(self, now: float) -> None:
        """Record that a step was carried out, which may have taken long."""
        if self._resumes and self._phase in (_Phase.SENDING, _Phase.ENDING):
            self._due = max(self._due, now + STALL)

    def answered(self, said: Mapping[str, Any], now: float) -> None:
        """Record an answer of the receiver; ``said`` is empty if it is not of this protocol."""
        if self._phase is _Phase.DONE:
            return
        if said.get("done") is True:
            self._phase = _Phase.DONE
        elif "attempt" not in said:
            self._answered_by_other(said)
        elif said["attempt"] == self._attempt and type(said.get("received")) is int:
            self._answered(said, min(max(0, said["received"]), self._size), now)

    def lost(self, now: float) -> None:
        """Record that a connection was lost, and maybe what was sent or answered with it."""
        if self._phase is _Phase.ASKING:
            self._due = now
        else:
            self._ask_at(now)

    def delay(self, now: float) -> bool:
        """Do the last step later, by asking again; ``False`` if this receiver cannot be asked."""
        if self._phase is not _Phase.ASKING:
            self._ask_at(now + self._backoff.next())
        return self._resumes is not False

    def _answered(self, said: Mapping[str, Any], received: int, now: float) -> None:
        if self._phase is _Phase.ASKING:
            if said.get("resume") is True:
                self._resumes = self._acks = True
                self._sent = self._received = received
                self._phase, self._due = _Phase.SENDING, now + STALL
        elif "missing" in said:
            # With a pause unless there was progress, lest sides that disagree keep each other busy.
            self._ask_at(now + self._backoff.next() if self._missed else now)
            self._missed = True
        elif received > self._received:
            self._received = received
            self._missed = False
            self._backoff.reset()
            self._due = now + STALL

    def _answered_by_other(self, said: Mapping[str, Any]) -> None:
        """Record an answer of a receiver that takes each chunk once, or of a service."""
        if self._resumes:
            return
        if self._phase is _Phase.ASKING:
            self._resumes, self._acks = False, said.get("acks") is True
            self._phase, self._due = _Phase.SENDING, math.inf
        elif type(said.get("received")) is int:
            self._received = max(self._received, said["received"])

    def _ask_at(self, due: float) -> None:
        """Ask again, as a new attempt, if this receiver can be asked."""
        if self._resumes and self._phase is not _Phase.DONE:
            self._attempt += 1
            self._phase, self._due = _Phase.ASKING, due
