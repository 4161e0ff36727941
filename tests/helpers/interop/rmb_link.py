"""Hold relays of ours, and twins of both makes that are connected to them."""

from __future__ import annotations

import json
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, Self

import pytest

from wsmux.bus.client import Client
from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.relay.server import RelayServer
from wsmux.bus.relay.setup import serve_relay
from wsmux.bus.services import ServiceRequest
from wsmux.bus.wire.address import Address

from ..bus.captured import PEOPLE, TWINS, identity
from ..bus.people import Table
from ..ports import free_port
from ..waiting import wait_for
from .link import HOST, WAIT
from .peer_process import PeerProcess

__all__ = [
    "PAYLOAD",
    "SEALED",
    "NpmTwin",
    "RmbLink",
    "by_pair",
    "number_of",
    "rmb_marks",
    "sealing",
]

# The first test of a run may have to install the packages, which counts as its time.
rmb_marks = [pytest.mark.interop, pytest.mark.hang_bound(400)]

PAYLOAD = {"text": "grüße, 世界", "numbers": [0, -1, 2.5], "none": None}

# Who uses the package, and who does not: keys of each kind, from words and from hexadecimal.
by_pair = pytest.mark.parametrize(
    ("npm", "ours"),
    [
        pytest.param("alice", "carol", id="sr25519-ed25519"),
        pytest.param("carol", "dave", id="ed25519-sr25519"),
        pytest.param("dave", "alice", id="sr25519-sr25519"),
    ],
)

SEALED = ("encrypted", "plain")


class NpmTwin:
    """A session of a twin that uses the package."""

    def __init__(
        self, peer: PeerProcess, name: str, url: str, session: str | None, twins: list[Any]
    ) -> None:
        person = PEOPLE[name]
        self._peer = peer
        self.address = Address(person["id"], session)
        self._number = peer.call(
            "open",
            WAIT,
            url=url,
            secret=person["secret"],
            keyType=person["keyType"],
            session=session,
            twins=twins,
        )["client"]

    def do(self, command: str, **args: Any) -> Any:
        """Send the peer a command that concerns this session."""
        return self._peer.call(command, WAIT, client=self._number, **args)

    def submit(self, to: int, command: str, *payload: Any, **fields: Any) -> Future[Any]:
        """Call a command of a twin, with a payload or none; return the promise of the answer.

        ``tags`` and ``session`` are put into the envelope; ``minutes`` is how long it lives.
        """
        if payload:
            fields["data"] = json.dumps(payload[0])
        args = {"client": self._number, "to": to, "run": command} | fields
        return self._peer.submit("call", WAIT, **args)

    def call(self, to: int, command: str, *payload: Any, **fields: Any) -> Any:
        """Call a command and return its answer; see ``submit``."""
        return self.answer(self.submit(to, command, *payload, **fields))

    def answers(self) -> list[dict[str, Any]]:
        """Return the answers that came, without their payloads."""
        return [each for each in self.do("received") if each["kind"] == "response"]

    def answer(self, promise: Future[Any]) -> Any:
        """Return the answer that ``submit`` promised."""
        return self._peer.answer(promise, WAIT)["answer"]


class RmbLink:
    """Run relays, twins that use the package, and ours; used as a context manager.

    Attributes:
        twins: who is who, for all but the twins of the package, which copy it as they are opened.
    """

    def __init__(self, peer: PeerProcess) -> None:
        self.twins = Table(dict(TWINS))
        self._peer = peer
        self._relays: list[RelayServer] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._peer.uncaught.clear()
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self._peer.call("fresh", WAIT)
        assert self._peer.uncaught == []

    def without_keys(self) -> None:
        """Have nobody publish a key, so that everything travels in the clear."""
        self.twins.twins = {
            number: twin._replace(pk=None) for number, twin in self.twins.twins.items()
        }

    def place(self, name: str, *relays: str) -> None:
        """Put the relays of a twin on record."""
        number = number_of(name)
        self.twins.twins[number] = self.twins.twins[number]._replace(relays=relays)

    def relay(
        self,
        domain: str = "relay.test",
        port: int = 0,
        **options: Any,
    ) -> RelayServer:
        """Run a relay; twins use the one that was made last, unless they are told another."""
        made = serve_relay([domain], self.twins, HOST, port, **options)
        self._stack.callback(made.shutdown, WAIT)
        self._relays.append(made)
        return made

    def pair_of_relays(self, *databases: str) -> tuple[RelayServer, RelayServer]:
        """Run the relays of a.test and b.test, which know of each other.

        Each keeps what waits in its database, if two are given.
        """
        ports = {"a.test": free_port(), "b.test": free_port()}
        routes = {domain: f"http://{HOST}:{port}/" for domain, port in ports.items()}
        first, second = (
            self.relay(domain, ports[domain], routes=routes, redis=redis)
            for domain, redis in zip(ports, databases or (None, None), strict=True)
        )
        return first, second

    def npm(
        self,
        name: str,
        session: str | None = None,
        relay: RelayServer | None = None,
        strangers: Collection[int] = (),
    ) -> NpmTwin:
        """Connect a session of a twin that uses the package.

        Args:
            name: whose keys.
            session: without one it gets what is sent to the twin alone.
            relay: where; the last one that was made if it is not given.
            strangers: twins that it knows and nobody else does.
        """
        records = [self._record(name) for name in PEOPLE]
        records += [records[0] | {"id": number} for number in strangers]
        used = relay or self._relays[-1]
        made = NpmTwin(self._peer, name, used.url, session, records)
        wait_for(lambda: used.relay.sessions.get(made.address) is not None)
        return made

    def ours(self, name: str, relay: RelayServer | None = None, **options: Any) -> Client:
        """Make a client of ours; with no session it is the twin's gateway.

        It connects when it is used.
        """
        options = {"gateway": "session" not in options} | options
        url = (relay or self._relays[-1]).url
        return self._stack.enter_context(Client(identity(name), url, self.twins, **options))

    def gateway(self, name: str, redis: str, relay: RelayServer | None = None) -> Peer:
        """Connect a gateway of ours, whose programs use this Redis."""
        url = (relay or self._relays[-1]).url
        made = Peer(identity(name), url, self.twins, redis, update=False)
        self._stack.enter_context(made)
        made.wait_connected(WAIT)
        return made

    def serving(
        self, name: str, relay: RelayServer | None = None, **options: Any
    ) -> list[ServiceRequest]:
        """Connect a client of ours and serve: ``echo`` answers what it gets.

        Returns what was asked, as it comes.
        """
        asked: list[ServiceRequest] = []

        def echo(payload: Any, request: ServiceRequest) -> Any:
            asked.append(request)
            return payload

        made = self.ours(name, relay, **options)
        made.serve({"echo": echo})
        made.wait_connected(WAIT)
        return asked

    def _record(self, name: str) -> dict[str, Any]:
        """Return a twin as the chain's client has it."""
        twin = self.twins.twins[number_of(name)]
        return {
            "id": twin.id,
            "accountId": PEOPLE[name]["accountId"],
            "relay": "_".join(twin.relays),
            "pk": None if twin.pk is None else f"0x{twin.pk.hex()}",
        }


def sealing(request: pytest.FixtureRequest, link: RmbLink) -> bool:
    """Return whether payloads are to be encrypted, which they are if keys are published.

    Test modules make a fixture of it, with ``SEALED`` for its parameters.
    """
    if request.param == "plain":
        link.without_keys()
    return bool(request.param == "encrypted")


def number_of(name: str) -> int:
    """Return the number of one of the people."""
    number: int = PEOPLE[name]["id"]
    return number
