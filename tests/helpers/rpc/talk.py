"""Let a client and a server talk over a relay that cuts their connections."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from wsmux import rpc

from .cutting_relay import Cut, Relay, Side
from .noted_calls import Witness
from .procedures import WAIT

__all__ = ["BOTH", "PATIENT", "QUICK", "TWO_CARRIERS", "Talk", "talk"]

# Connections come again at once, and what is silent is given up soon; too soon on a slow machine,
# which is one cut more. Little is under way at a time: there is something left for each cut.
QUICK = rpc.Options(
    send_buffer_messages=64,
    ack_messages=16,
    heartbeat_interval=0.06,
    connection_timeout=0.3,
    handshake_timeout=0.3,
    backoff_base=0.002,
    backoff_jitter=0.002,
    backoff_max=0.02,
    session_disconnect_grace=3 * WAIT,
)

# Nothing is given up.
PATIENT = replace(QUICK, heartbeat_interval=WAIT, connection_timeout=WAIT, handshake_timeout=WAIT)

TWO_CARRIERS = [("msgpack", True), ("json", False)]


class Talk:
    """Hold a client that reaches a server over a relay.

    Attributes:
        statuses: the beginnings and ends of sessions, at both sides.
    """

    def __init__(
        self, client: rpc.Client, relay: Relay, witness: Witness, statuses: list[str]
    ) -> None:
        self.client = client
        self.relay = relay
        self.witness = witness
        self.statuses = statuses

    def all_at_once(self, count: int) -> None:
        """Call a stream, an upload and a subscription of that many messages at the same time."""
        with ThreadPoolExecutor(4) as pool:
            parts = (self._stream, self._upload, self._subscribe)
            for done in [pool.submit(part, count, pool) for part in parts]:
                done.result(WAIT)

    def one_by_one(self) -> None:
        """Have a short conversation whose frames come in one order only."""
        assert self.client.rpc("test", "same", "first", WAIT) == "first"
        with self.client.stream("test", "echo", "echo", WAIT) as stream:
            for number in range(3):
                stream.write(number)
                assert stream.read() == number
            stream.close_write()
            assert list(stream) == []
        with self.client.upload("test", "gather", "gather", WAIT) as upload:
            for number in range(3):
                upload.write(number)
            assert upload.finish() == [0, 1, 2]
        assert list(self.client.subscribe("test", "count", 3, WAIT)) == [0, 1, 2]

    def _stream(self, count: int, pool: ThreadPoolExecutor) -> None:
        with self.client.stream("test", "echo", "echo", WAIT) as stream:

            def write() -> None:
                for number in range(count):
                    stream.write(number)
                stream.close_write()

            writing = pool.submit(write)
            assert list(stream) == list(range(count))
            writing.result(WAIT)

    def _upload(self, count: int, pool: ThreadPoolExecutor) -> None:
        with self.client.upload("test", "gather", "gather", WAIT) as upload:
            for number in range(count):
                upload.write(number)
            assert upload.finish() == list(range(count))

    def _subscribe(self, count: int, pool: ThreadPoolExecutor) -> None:
        assert list(self.client.subscribe("test", "count", count, WAIT)) == list(range(count))

    def check_unseen(self, count: int) -> None:
        """Check that no handler heard of any cut, and nobody of another session."""
        for label in ("echo", "gather"):
            note = self.witness.notes[label]
            assert (note.requests, note.errors) == (list(range(count)), [])
        assert self.statuses == ["created", "created"]


@contextmanager
def talk(
    carrier: tuple[str, bool],
    *cuts: Cut,
    options: rpc.Options = QUICK,
    connect: Callable[[Relay], Any] = lambda relay: relay.url,
    path: str | None = None,
) -> Iterator[Talk]:
    codec, websocket = carrier
    witness = Witness()
    statuses: list[str] = []
    common = {"codec": codec, "options": options}
    common["on_session_status"] = lambda status, session: statuses.append(status)
    transport = "websocket" if websocket else "tcp"
    with rpc.serve([witness.service], transport=transport, **common) as server:

        def dial() -> socket.socket:
            return socket.create_connection((server.host, server.port), WAIT)

        with (
            Relay(dial, websocket=websocket, cuts=cuts, path=path) as relay,
            rpc.connect(connect(relay), **common) as client,
        ):
            yield Talk(client, relay, witness, statuses)


BOTH: tuple[Side, ...] = ("client", "server")
