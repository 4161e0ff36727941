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

    Who serves them is not kept alive by it. A collection is copied; a function is asked each time,
    and what it returns is checked then.

    Raises:
        TypeError: it is nothing of what ``Connections`` lists.
    """

    def __init__(self, named: Connections) -> None:
        self._server: weakref.ref[Serving] | None = None
        self._ask: Callable[[], Iterable[Connection]] | None = None
        self._fixed: tuple[Connection, ...] = ()
        if isinstance(named, Connection):
            self._fixed = (named,)
        elif isinstance(named, type):  # a class has what its instances have, but serves nothing
            raise _unfit(named)
        elif isinstance(named, Serving):
            self._server = weakref.ref(named)
        elif callable(named):
            self._ask = named
        else:
            self._fixed = tuple(_checked(named))

    def living(self) -> list[Connection] | None:
        """Return those that have not ended; ``None`` when there will never be one again."""
        found = [connection for connection in self.all() if not connection.closed]
        return None if self._ends() and not found else found

    def all(self) -> list[Connection]:
        """Return those that are named at this moment, whether they have ended or not."""
        if self._server is not None:
            server = self._server()
            return [] if server is None else list(server.connections)
        if self._ask is not None:
            return _checked(self._ask())
        return list(self._fixed)

    def _ends(self) -> bool:
        """Tell whether no further one will be named."""
        if self._server is not None:
            server = self._server()
            return server is None or server.stopping
        return self._ask is None


def _checked(found: Iterable[Connection]) -> list[Connection]:
    if not isinstance(found, Iterable) or isinstance(found, Connection):  # that yields streams
        raise _unfit(found)
    connections = list(found)
    for each in connections:
        if not isinstance(each, Connection):
            raise TypeError(f"a connection is wanted, not {each!r}")
    return connections


def _unfit(named: object) -> TypeError:
    return TypeError(
        "expected a connection, a Server or Mux, a collection of connections, or a function that"
        f" returns one, not {named!r}"
    )
