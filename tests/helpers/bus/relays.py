"""Run relays on loopback, and twins that talk to them with envelopes of the tests' own."""

from __future__ import annotations

import itertools
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from urllib.error import HTTPError

from wsmux.bus.relay.relay import Relay
from wsmux.bus.relay.server import RelayServer
from wsmux.bus.session.link import dial
from wsmux.bus.twins.records import TwinDirectory
from wsmux.bus.wire.address import Address, put_address
from wsmux.bus.wire.envelope import Kind, digest, kind_of, parse, request
from wsmux.bus.wire.keys import Identity
from wsmux.bus.wire.messages import Envelope
from wsmux.bus.wire.tokens import make_token
from wsmux.endpoints.acceptor import listen
from wsmux.runtime.deadline import Deadline

from ..raw_peer import WAIT, RawPeer, read_head
from ..raw_peer import request as upgrade
from . import people
from .links import Running
from .people import DOMAIN, person

__all__ = [
    "DOMAIN",
    "Node",
    "Table",
    "ask",
    "fetch",
    "get",
    "identity",
    "metric",
    "raw",
    "relay",
    "served",
]

_uids = itertools.count(1)


def identity(twin: int) -> Identity:
    """Return the identity of a twin of the tests."""
    return person(twin).identity


class Table(people.Table):
    """Know some twins by the domains of their relays: 1 to 9, unless others are named."""

    def __init__(self, twins: dict[int, tuple[str, ...]] | None = None) -> None:
        known = dict.fromkeys(range(1, 10), (DOMAIN,)) if twins is None else twins
        super().__init__(
            {
                number: person(number).record(relays=relays, key=False)
                for number, relays in known.items()
            }
        )


def relay(twins: TwinDirectory | None = None, **options: Any) -> Relay:
    return Relay([DOMAIN], twins or Table(), **options)


@contextmanager
def served(made: Relay | None = None, *, buffers: int = 0, **options: Any) -> Iterator[RelayServer]:
    """Serve a relay; ``buffers`` makes what its sockets hold for twins that small."""
    listener = listen("127.0.0.1", 0)
    if buffers:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers)
    server = RelayServer(made or relay(), listener, **options)
    try:
        yield server
    finally:
        server.shutdown(timeout=WAIT)


def ask(source: Address, destination: Address | None, **fields: Any) -> Envelope:
    """Return a signed request that lives for a minute; fields replace what it has."""
    made = request(
        fields.pop("uid", f"uid-{next(_uids)}"),
        source,
        destination or Address(0),
        fields.pop("command", "test.command"),
        int(fields.pop("now", time.time())),
        fields.pop("life", 60),
        plain=fields.pop("plain", b'"hello"'),
        tags=fields.pop("tags", None),
    )
    assert not fields, fields
    if destination is None:
        made.ClearField("destination")
    made.signature = identity(source.twin).sign(digest(made))
    return made


class Node(Running):
    """One connection of a twin."""

    def __init__(self, server: RelayServer, twin: int, session: str | None = None) -> None:
        self.address = Address(twin, session)

        def token() -> str:
            return make_token(identity(twin), twin, session, int(time.time()))

        super().__init__(dial(server.url, token, Deadline(WAIT)))

    def put(self, envelope: Envelope) -> bytes:
        data = envelope.SerializeToString()
        self.send(data)
        return data

    def ask(self, destination: Address | None, **fields: Any) -> Envelope:
        envelope = ask(self.address, destination, **fields)
        self.put(envelope)
        return envelope

    def take(self) -> Envelope:
        data = self.next()
        assert data is not None, f"the relay ended the connection: {self.link.error}"
        return parse(data)

    def refused(self) -> tuple[str, str]:
        """Return the uid and the text of a relay's error that arrives."""
        error = self.take()
        assert kind_of(error) is Kind.ERROR
        assert not error.HasField("source")
        assert error.error.code == 0
        assert not error.signature
        assert Address(error.destination.twin, error.destination.connection or None).twin
        return error.uid, error.error.message

    def answers(self) -> list[Envelope]:
        """Return what comes before the answer to a ping, which takes the same way."""
        ping = Envelope(uid="ping", expiration=40)
        put_address(ping.source, self.address)
        ping.ping.SetInParent()
        self.put(ping)
        before: list[Envelope] = []
        while kind_of(answer := self.take()) is not Kind.PONG:
            before.append(answer)
        assert answer.uid == "ping"
        return before

    def nothing(self) -> None:
        """Check that nothing came."""
        assert self.answers() == []

    def ended(self) -> tuple[int, str]:
        """Wait for the end; return its code and reason."""
        while self.next() is not None:
            pass
        error = self.link.error
        return getattr(error, "code", 0), getattr(error, "reason", "")


class Listening(Protocol):
    """Describe what twins connect to."""

    @property
    def port(self) -> int: ...


def raw(server: Listening, twin: int, session: str | None = None, buffer: int = 0) -> RawPeer:
    """Connect a twin by hand; ``buffer`` makes what its socket holds that small."""
    sock = socket.socket()
    if buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.settimeout(WAIT)
    sock.connect(("127.0.0.1", server.port))
    token = make_token(identity(twin), twin, session, int(time.time()))
    line = f"GET /?{token} HTTP/1.1"
    sock.sendall(upgrade("relay.test", {"Sec-WebSocket-Protocol": None}, line))
    first, _ = read_head(sock)
    assert first.startswith("HTTP/1.1 101 "), first
    return RawPeer(sock, masks=True)


def fetch(
    url: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes, dict[str, str]]:
    """Make a plain HTTP request; return status, body and headers."""
    asked = urllib.request.Request(url.replace("ws://", "http://"), body, headers or {})
    try:
        with urllib.request.urlopen(asked, timeout=WAIT) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except HTTPError as error:
        with error:
            return error.code, error.read(), dict(error.headers)


def get(server: RelayServer, path: str) -> tuple[int, bytes, dict[str, str]]:
    return fetch(server.url + path)


def metric(server: RelayServer, name: str) -> float:
    """Return a number from ``/metrics``, 0 if it is not there; the name has its labels."""
    lines = get(server, "/metrics")[1].decode().splitlines()
    found = (line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} "))
    return float(next(found, 0))
