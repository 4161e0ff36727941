"""Say what the flight recorder of a connection keeps, and where that goes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Recording"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Be what ``Config(recording=...)`` takes: connections made with it keep their last frames.

    The heads are kept, in memory: when, which way, stream, type, length, credit, code. What the
    connection carries is not, unless ``payload`` is given. Kept at both ends, heads cost pings,
    openings and bulk 4 to 6 %; whole frames cost bulk an eighth.

    A connection that ends abnormally, with anything but ``ConnectionClosedOK``, hands its recording
    to ``to``, in its I/O thread, after everybody who waited on it has been woken. Any connection
    tells it by ``dump_recording()``, whenever it is asked. It is text: JSON, a line for each frame
    behind a first line about the connection. ``wsmux inspect`` shows it, ``wsmux replay`` runs it
    against a handler.
    """

    frames: int = 1024
    """Frames kept in each direction, 64 bytes each (whole ones 250 more); the oldest go."""

    payload: int | None = None
    """Bytes of whole frames kept in each direction, what they carry among them; the oldest go.
    ``None`` keeps heads only. Whoever reads the recording reads what the connection carried."""

    to: str | os.PathLike[str] | Callable[[str], object] | None = None
    """A directory, which must exist, for a file each; or what is called with the text. What it
    raises is logged."""

    files: int = 100
    """Recordings kept in the directory, of all processes; the oldest go."""

    def __post_init__(self) -> None:
        for name in ("frames", "payload", "files"):
            value = getattr(self, name)
            if value is None and name == "payload":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"Recording.{name} must be a whole number above 0, not {value!r}")
        if not (self.to is None or callable(self.to) or isinstance(self.to, str | os.PathLike)):
            raise ValueError(f"Recording.to must be a directory or callable, not {self.to!r}")
