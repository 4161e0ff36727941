"""Make objects close at the end of a ``with`` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self

__all__ = ["Closing"]


class Closing:
    """Close an object at the end of its ``with`` block, even after an exception."""

    __slots__ = ()

    def close(self) -> None:
        """Close the object; defined by subclasses."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
