"""Say which connections are meant, where a caller names one, several, or who serves them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias, runtime_checkable

from .connection import Connection

__all__ = ["Connections", "Serving", "Watched"]


@runtime_checkable
class Serving(Protocol):
    """Be what serves connections: a ``Server``, a ``wsmux.flask.Mux``."""

    @property
    def connections(self) -> Iterable[Connection]:
        """Those that are served at this moment."""

    @property
    def stopping(self) -> bool:
        """Whether no further one is served."""


Connections: TypeAlias = (
    Connection | Serving | Callable[[], Iterable[Connection]] | Iterable[Connection]
)


class Watched:
    """Look up the connections that somebody named.

    Who serves them is not kept alive by it. A collection is copied; a function is asked each time.

    Raises:
        TypeError: it is nothing of what ``Connections`` lists.
    """

    def __init__(self, named: Connections) -> None:
        self._server: weakref.ref[Serving] | None = None
        self._ask: Callable[[], Iterable[Connection]] | None = None
        self._fixed: tuple[Connection, ...] = ()
        if isinstance(named, Connection):
            self._fixed = (named,)
        elif isinstance(named, Serving):
            self._server = weakref.ref(named)
        elif callable(named):
            self._ask = named
        else:
            self._fixed = tuple(named)
            for each in self._fixed:
                if not isinstance(each, Connection):
                    raise TypeError(f"a connection is wanted, not {each!r}")

    def living(self) -> list[Connection] | None:
        """Return those that have not ended; ``None`` when there will never be one again."""
        ends = True
        if self._server is not None:
            server = self._server()
            found = [] if server is None else list(server.connections)
            ends = server is None or server.stopping
        elif self._ask is not None:
            found, ends = list(self._ask()), False
        else:
            found = list(self._fixed)
        found = [connection for connection in found if not connection.closed]
        return None if ends and not found else found
