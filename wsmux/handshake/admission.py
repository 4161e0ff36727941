"""Bound what one address may hold of a server, and what unfinished requests hold of its memory.

Counted are the connections of each address, and of these the ones whose request head has not come
yet. What counts as one address, and what is not counted, says ``ip_addresses``. Behind trusted
proxies a connection is counted by the address that they name, so only once its head has come.

Where no address can be blamed, as with many of them or with what is not counted, a full server
still has room: the oldest handshake that takes long gives its place to the next client.
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

# Where an environ says who connects, behind trusted proxies and not.
CLIENT_ADDRESS = "wsmux.client_address"

# Seconds for which a full server waits for a handshake before another client gets its place: more
# than TLS and a head take over a slow path.
PATIENCE = 2.0

UNFINISHED = "too many unfinished requests are waiting here; try again later"

_log = logger("wsmux")


class Guest:
    """What is counted for one connection; only ``Admission`` changes it, under its lock."""

    __slots__ = (
        "address",
        "by_connection",
        "by_handshake",
        "held",
        "number",
        "patience",
        "refused",
        "sock",
    )

    def __init__(self, address: Address | None, number: int) -> None:
        self.address = address  # of the socket
        self.number = number  # the order of arrival
        self.patience = Deadline(PATIENCE, outlives=True)
        self.by_handshake: str | None = None
        self.by_connection: str | None = None
        self.held = 0  # bytes of its head
        self.refused = False  # in favour of others, during its handshake
        self.sock: socket.socket | None = None  # that TLS or the head is waited for on


class Admission:
    """Count connections by their addresses; each is refused, or leaves exactly once.

    Args:
        config: the limits.
        name: who refuses, in the log.
        taken: how many connections there may be at once, ``None`` if that is for others to bound.
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
        """Begin again: a forked child serves none of them, and nobody counts in it."""
        self._lock = threading.Lock()
        self._arrived = 0
        self._held = 0
        self._leaving = 0
        self._guests: set[Guest] = set()
        self._opening: set[Guest] = set()  # those whose head has not come
        self._handshakes: Counter[str] = Counter()
        self._connections: Counter[str] = Counter()

    # A connection of a server of ours: arrive, hold, settle, leave

    def arrive(self, peer: str) -> Guest:
        """Count a connection that was accepted from an address, and its handshake.

        Raises:
            HandshakeError: with 429; that address has as many as it may. Nothing is counted then.
        """
        return self._arrive(peer, opening=True)

    def hold(self, guest: Guest, size: int) -> None:
        """Note how many bytes of a head have come; too many of all let the worst head go.

        That is the one with the largest product of bytes and age, so that a newcomer with a long
        head does not go before many that have long held a little less.

        Raises:
            HandshakeError: with 503; it is this one.
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
        """Let the oldest handshake go that has had its time; false if there is none."""
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
        """End a handshake: the head has come, or there is none to come.

        Behind a trusted proxy the connection is counted from here on. The environ is told whose
        address it is.

        Raises:
            HandshakeError: with 429; the address that a proxy names has as many as it may.
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
        """Count a connection no more; a second time, and in a forked child, it does nothing."""
        with self._lock:
            if guest is None or guest not in self._guests:
                return
            self._guests.discard(guest)
            self._leaving -= guest.refused
            self._end_handshake_locked(guest)
            if guest.by_connection is not None:
                _uncount(self._connections, guest.by_connection)
                guest.by_connection = None

    # A request that a WSGI server has read

    def admit(self, environ: MutableMapping[str, Any]) -> Guest:
        """Count a connection whose request was read by somebody else.

        Raises:
            HandshakeError: with 429; its address has as many as it may.
        """
        guest = self._arrive(str(environ.get("REMOTE_ADDR") or ""), opening=False)
        try:
            self.settle(guest, environ)
        except BaseException:
            self.leave(guest)
            raise
        return guest

    # Counting

    def _arrive(self, peer: str, *, opening: bool) -> Guest:
        address = address_of(peer)
        key = None if self._proxies.trusts(address) else counted_as(address)
        most = self._most_opening if opening else None
        with self._lock:
            guest = Guest(address, self._arrived)
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
        """Count a connection under a key; false if there is no room for it."""
        most = self._most
        if key is None:
            return True
        if most is not None and self._connections[key] >= most:
            return False
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
        """Choose whose heads are let go, so that the others may be held."""
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
    """End what another thread reads from a socket, which can still answer but for TLS."""
    with suppress(OSError):  # the client was first
        socket.socket.shutdown(sock, socket.SHUT_RD)


def _within(most: int | None, taken: int | None) -> int | None:
    """Return a limit of the configuration as it is for a server that takes so many connections."""
    if taken is not None and isinstance(most, Unchosen):
        return most.within(taken)
    return most


def _uncount(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]  # or there would be one for each address that ever came


def _shown(client: Address | None, environ: Mapping[str, Any]) -> str:
    return str(environ.get("REMOTE_ADDR") or "") if client is None else str(client)


def _wake(guest: Guest) -> None:
    """End a wait for the client in another thread."""
    sock = guest.sock
    if sock is not None:
        cut_reading(sock)
