"""Close what a ``with`` block holds when the block is left."""

from __future__ import annotations

from types import TracebackType
from typing import Self

__all__ = ["Closing"]


class Closing:
    """Close an object at the end of its ``with`` block, whichever way that is left."""

    __slots__ = ()

    def close(self) -> None:
        """End it; what that means, the subclass says."""
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
