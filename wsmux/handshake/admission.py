"""Limit the connections per client address, and the memory of unfinished requests.

Connections are counted per address, and those with an incomplete request head once more by itself.
``ip_addresses`` defines what counts as one address, and what is not counted. Behind trusted proxies
a connection is counted by the address that they report, so only once its head is complete.

Without a single address to blame (there are many, or they are not counted), a full server still
accepts clients: the next one replaces the oldest handshake that is taking long.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from ..config import Config, Unchosen
from ..exceptions import HandshakeError
from ..runtime import fork
from ..runtime.deadline import Deadline
from ..runtime.ip_addresses import Address, Proxies, address_of, counted_as
from ..runtime.logs import logger

__all__ = ["CLIENT_ADDRESS", "Admission", "Guest", "cut_reading"]

# The key of an environ for the address of the client, with or without trusted proxies.
CLIENT_ADDRESS = "wsmux.client_address"

# Seconds after which a handshake may be replaced by another client if the server is full: more than
# TLS and a head take over a slow path.
PATIENCE = 2.0

UNFINISHED = "too many unfinished requests are waiting here; try again later"

_log = logger("wsmux")


class Guest:
    """Hold what is counted for one connection; changed only by ``Admission``, under its lock."""

    __slots__ = (
        "address",
        "by_connection",
        "by_handshake",
        "held",
        "number",
        "patience",
        "refused",
        "returns",
        "sock",
        "spare",
    )

    def __init__(self, address: Address | None, number: int, spare: int) -> None:
        self.address = address  # of the socket's peer
        self.number = number  # the order of arrival
        self.patience = Deadline(PATIENCE, outlives=True)
        self.by_handshake: str | None = None
        self.by_connection: str | None = None
        self.held = 0  # bytes of its head
        self.refused = False  # in favour of other clients, during its handshake
        self.spare = spare  # how many more than the limit there may be, to return
        self.returns = False  # one of those: it may only resume a connection that is counted
        self.sock: socket.socket | None = None  # the one on which TLS or the head is awaited


class Admission:
    """Count connections by address; each is either refused, or must leave exactly once.

    Args:
        config: the limits.
        name: the name of the server, for the log.
        taken: the maximum number of connections, ``None`` if it is limited elsewhere.
    """

    def __init__(self, config: Config, name: str, taken: int | None = None) -> None:
        self.name = name
        self._config = config
        self._most = _within(config.max_connections_per_address, taken)
        self._most_opening = _within(config.max_handshakes_per_address, taken)
        self._proxies = Proxies(tuple(config.trusted_proxies))
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        """Start over: a forked child serves no connections."""
        self._lock = threading.Lock()
        self._arrived = 0
        self._held = 0
        self._leaving = 0
        self._guests: set[Guest] = set()
        self._opening: set[Guest] = set()  # those whose head is incomplete
        self._handshakes: Counter[str] = Counter()
        self._connections: Counter[str] = Counter()

    # Connections of our own servers: arrive, hold, settle, leave

    def arrive(self, peer: str, spare: int = 0) -> Guest:
        """Count a connection accepted from an address, and its handshake.

        A client that returns to a connection is counted beside it until both are one. So the
        address may have ``spare`` more, of which ``Guest.returns`` is set.

        Raises:
            HandshakeError: that address has too many, with 429. Nothing is counted then.
        """
        return self._arrive(peer, opening=True, spare=spare)

    def hold(self, guest: Guest, size: int) -> None:
        """Record how many bytes of a head have arrived; if all heads are too large, drop the worst.

        That is the one with the largest product of size and age, so that a new client with a long
        head does not displace many older ones that hold a little less.

        Raises:
            HandshakeError: this one is dropped, with 503.
        """
        with self._lock:
            if guest in self._opening and not guest.refused:
                self._held += size - guest.held
                guest.held = size
            worst = self._too_much_locked()
        for each in worst:
            _log.warning(
                "unfinished requests of %s exceed max_handshake_buffer; dropping %s",
                self.name,
                each.address,
            )
            _wake(each)
        self.check(guest)

    @property
    def leaving(self) -> int:
        """How many were refused in favour of others, and are about to leave."""
        with self._lock:
            return self._leaving

    def make_room(self) -> bool:
        """Drop the oldest handshake that has had its time; return false if there is none."""
        with self._lock:
            late = [each for each in self._opening if not each.refused and each.patience.expired()]
            oldest = min(late, key=lambda each: each.number, default=None)
            if oldest is None:
                return False
            self._refuse_locked(oldest)
        _log.warning(
            "%s is full: dropping %s, whose handshake was not complete after %g s",
            self.name,
            oldest.address,
            PATIENCE,
        )
        _wake(oldest)
        return True

    def check(self, guest: Guest) -> None:
        """Raise the ``HandshakeError`` of a guest that was refused during its handshake."""
        if guest.refused:
            raise HandshakeError(UNFINISHED, 503)

    def settle(self, guest: Guest, environ: MutableMapping[str, Any] | None = None) -> None:
        """End a handshake: the head is complete, or there is none.

        Behind a trusted proxy, the connection is counted from here on. The address of the client is
        stored in the environ.

        Raises:
            HandshakeError: the address that a proxy reports has too many connections, with 429.
        """
        client, named = guest.address, False
        if environ is not None:
            named = self._proxies.trusts(guest.address)
            if named:
                client = self._named(guest.address, environ)
            environ[CLIENT_ADDRESS] = _shown(client, environ)
        with self._lock:
            self._end_handshake_locked(guest)
            refused = named and not self._count_locked(guest, counted_as(client))
        self.check(guest)
        if refused:
            raise self._too_many(client)

    def leave(self, guest: Guest | None) -> None:
        """Stop counting a connection; idempotent, and without effect in a forked child."""
        with self._lock:
            if guest is None or guest not in self._guests:
                return
            self._guests.discard(guest)
            self._leaving -= guest.refused
            self._end_handshake_locked(guest)
            if guest.by_connection is not None:
                _uncount(self._connections, guest.by_connection)
                guest.by_connection = None

    # Requests read by a WSGI server

    def admit(self, environ: MutableMapping[str, Any], spare: int = 0) -> Guest:
        """Count a connection whose request was read by a WSGI server.

        Args:
            spare: as in ``arrive``.

        Raises:
            HandshakeError: its address has too many, with 429.
        """
        guest = self._arrive(str(environ.get("REMOTE_ADDR") or ""), opening=False, spare=spare)
        try:
            self.settle(guest, environ)
        except BaseException:
            self.leave(guest)
            raise
        return guest

    # Counting

    def _arrive(self, peer: str, *, opening: bool, spare: int = 0) -> Guest:
        address = address_of(peer)
        key = None if self._proxies.trusts(address) else counted_as(address)
        most = self._most_opening if opening else None
        with self._lock:
            guest = Guest(address, self._arrived, spare)
            full = key is not None and most is not None and self._handshakes[key] >= most
            if not full and self._count_locked(guest, key):
                self._arrived += 1
                self._guests.add(guest)
                if opening:
                    self._opening.add(guest)
                if opening and key is not None:
                    self._handshakes[key] += 1
                    guest.by_handshake = key
                return guest
        if not full:
            raise self._too_many(address)
        _log.warning(
            "%s refuses %s: %d of its requests are unfinished (max_handshakes_per_address)",
            self.name,
            key,
            most,
        )
        text = f"{most} requests from your address are unfinished; finish them, or try again later"
        raise HandshakeError(text, 429)

    def _count_locked(self, guest: Guest, key: str | None) -> bool:
        """Count a connection under a key; return false if the limit is reached."""
        most = self._most
        if key is None:
            return True
        if most is not None and self._connections[key] >= most:
            if self._connections[key] >= most + guest.spare:
                return False
            guest.returns = True
        self._connections[key] += 1
        guest.by_connection = key
        return True

    def _too_many(self, address: Address | None) -> HandshakeError:
        most = self._most
        _log.warning(
            "%s refuses %s: %d of its connections are open (max_connections_per_address); if it is "
            "a proxy, name it in Config.trusted_proxies",
            self.name,
            counted_as(address),
            most,
        )
        text = f"{most} connections from your address are open; close some, or try again later"
        return HandshakeError(text, 429)

    def _end_handshake_locked(self, guest: Guest) -> None:
        if guest in self._opening:
            self._opening.discard(guest)
            self._held -= guest.held
            guest.held = 0
        if guest.by_handshake is not None:
            _uncount(self._handshakes, guest.by_handshake)
            guest.by_handshake = None

    def _too_much_locked(self) -> list[Guest]:
        """Choose which heads to drop, so that the others can be kept."""
        most, chosen = self._config.max_handshake_buffer, []
        while most is not None and self._held > most:
            worst = max(self._opening, key=lambda each: each.held * (self._arrived - each.number))
            self._refuse_locked(worst)
            chosen.append(worst)
        return chosen

    def _refuse_locked(self, guest: Guest) -> None:
        guest.refused = True
        self._leaving += 1
        self._held -= guest.held
        guest.held = 0

    def _named(self, address: Address | None, environ: Mapping[str, Any]) -> Address | None:
        forwarded_for = environ.get("HTTP_X_FORWARDED_FOR")
        return self._proxies.client(address, forwarded_for, environ.get("HTTP_FORWARDED"))


def cut_reading(sock: socket.socket) -> None:
    """End reading on a socket in another thread; without TLS, an answer can still be sent."""
    with suppress(OSError):  # the client has disconnected
        socket.socket.shutdown(sock, socket.SHUT_RD)


def _within(most: int | None, taken: int | None) -> int | None:
    """Return a configured limit as it applies to a server of so many connections."""
    if taken is not None and isinstance(most, Unchosen):
        return most.within(taken)
    return most


def _uncount(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]  # otherwise every address ever seen would be kept


def _shown(client: Address | None, environ: Mapping[str, Any]) -> str:
    return str(environ.get("REMOTE_ADDR") or "") if client is None else str(client)


def _wake(guest: Guest) -> None:
    """End a wait for the client in another thread."""
    sock = guest.sock
    if sock is not None:
        cut_reading(sock)
