"""Make objects end or close with a ``with`` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self

__all__ = ["Closing", "Leaving"]


class Leaving:
    """Return an object from ``with``, and call its ``_leave`` at the end of the block."""

    __slots__ = ()

    def _leave(self, error: BaseException | None) -> None:
        """End the object; ``error`` is what left the block, if anything. Defined by subclasses."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(exc)


class Closing(Leaving):
    """Close an object at the end of its ``with`` block, even after an exception."""

    __slots__ = ()

    def close(self) -> None:
        """Close the object; defined by subclasses."""
        raise NotImplementedError

    def _leave(self, error: BaseException | None) -> None:
        self.close()
