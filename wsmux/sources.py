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


Source: TypeAlias = Connection | Serving
Connections: TypeAlias = Source | Callable[[], Iterable[Source]] | Iterable[Source]


class Watched:
    """Look up the connections that somebody named.

    Who serves them is not kept alive by it. A collection is copied; a function is asked each time,
    and what it returns is checked then.

    Raises:
        TypeError: it is nothing of what ``Connections`` lists.
    """

    def __init__(self, named: Connections) -> None:
        self._servers: tuple[weakref.ref[Serving], ...] = ()
        self._ask: Callable[[], Iterable[Source]] | None = None
        self._fixed: tuple[Connection, ...] = ()
        if isinstance(named, type):  # a class has what its instances have, but serves nothing
            raise _unfit(named)
        if callable(named) and not isinstance(named, Connection | Serving):
            self._ask = named
            return
        sources = _checked([named] if isinstance(named, Connection | Serving) else named)
        self._fixed = tuple(each for each in sources if isinstance(each, Connection))
        self._servers = tuple(
            weakref.ref(each) for each in sources if not isinstance(each, Connection)
        )

    def living(self) -> list[Connection] | None:
        """Return those that have not ended; ``None`` when there will never be one again."""
        found = [connection for connection in self.all() if not connection.closed]
        return None if self._ends() and not found else found

    def all(self) -> list[Connection]:
        """Return those that are named at this moment, whether they have ended or not."""
        if self._ask is not None:
            return _served(_checked(self._ask()))
        return _served([*self._fixed, *self._living_servers()])

    def _living_servers(self) -> list[Serving]:
        servers = [reference() for reference in self._servers]
        return [server for server in servers if server is not None]

    def _ends(self) -> bool:
        """Tell whether no further one will be named."""
        return self._ask is None and all(server.stopping for server in self._living_servers())


def _served(sources: Iterable[Source]) -> list[Connection]:
    """Return the connections of all, each once."""
    found: dict[Connection, None] = {}
    for each in sources:
        found.update(dict.fromkeys([each] if isinstance(each, Connection) else each.connections))
    return list(found)


def _checked(found: Iterable[Source]) -> list[Source]:
    if not isinstance(found, Iterable) or isinstance(found, Connection):  # that yields streams
        raise _unfit(found)
    sources = list(found)
    for each in sources:
        if isinstance(each, type) or not isinstance(each, Connection | Serving):
            raise TypeError(f"a connection, or a Server or Mux, is wanted, not {each!r}")
    return sources


def _unfit(named: object) -> TypeError:
    return TypeError(
        "expected a connection, a Server or Mux, a collection of these, or a function that"
        f" returns one, not {named!r}"
    )
