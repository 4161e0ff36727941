"""Hold a client whose server is one by hand, with two calls under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from wsmux import rpc

from .procedures import WAIT
from .raw_river import CLOSED, RawRiver, RawServer, ok

__all__ = ["BEGINNING", "CARRIERS", "OPTIONS", "Scene", "scene"]

# The client never falls silent, and never gives up.
OPTIONS = rpc.Options(
    heartbeat_interval=3 * WAIT,
    session_disconnect_grace=3 * WAIT,
    handshake_timeout=3 * WAIT,
    backoff_base=0.001,
    backoff_jitter=0,
    unread_messages=10,
)

BEGINNING = {"nextExpectedSeq": 0, "nextSentSeq": 0}

CARRIERS = [("json", True), ("msgpack", False)]


class Scene:
    """Hold a server by hand, its client, and two calls.

    Attributes:
        failures: what the client's ``on_protocol_error`` heard: kind, sentence, code.
        answer: what comes of the rpc.
    """

    def __init__(
        self,
        carrier: tuple[str, bool],
        pool: ThreadPoolExecutor,
        options: rpc.Options,
        metadata: Any,
    ) -> None:
        codec, websocket = carrier
        self.server = RawServer(codec, websocket=websocket)
        self.pool = pool
        self.failures: list[tuple[str, str, str | None]] = []
        self.statuses: list[str] = []
        self.client = rpc.connect(
            self.server.url,
            codec=codec,
            client_id="client",
            options=options,
            metadata=metadata,
            on_protocol_error=lambda *failure: self.failures.append(failure),
            on_session_status=lambda status, session: self.statuses.append(status),
        )

    def start(self) -> tuple[RawRiver, str]:
        """Return the client's connection with both calls open, and the name of its session."""
        self.answer: Future[Any] = self.pool.submit(self.client.rpc, "test", "waits", None, WAIT)
        peer, hello = self.server.greeted()
        peer.welcome(hello["sessionId"])
        self.rpc = peer.recv()["streamId"]
        self.stream = self.client.stream("test", "echo", None, WAIT)
        self.other = peer.recv()["streamId"]
        return peer, hello["sessionId"]

    def check_goes_on(self, peer: RawRiver) -> None:
        """Check that the stream and the session go on, and are heard in both directions."""
        peer.send({"streamId": self.other, "payload": ok("to the client")})
        assert self.stream.read() == "to the client"
        self.stream.write("to the server")
        fields = peer.recv()
        assert (fields["streamId"], fields["payload"]) == (self.other, "to the server")
        assert "closed" not in self.statuses

    def check_answered(self, peer: RawRiver, value: Any = "at last") -> None:
        """Check that the rpc goes on, too."""
        peer.send({"streamId": self.rpc, "payload": ok(value), "controlFlags": CLOSED})
        assert self.answer.result(WAIT) == value

    def check_again(self) -> str:
        """Check that a further call has a session that begins; return its name."""
        further = self.pool.submit(self.client.rpc, "test", "same", None, WAIT)
        peer, hello = self.server.greeted()
        with peer:
            assert hello["expectedSessionState"] == BEGINNING
            peer.welcome(hello["sessionId"])
            fields = peer.recv()
            assert fields["procedureName"] == "same"
            peer.send({"streamId": fields["streamId"], "payload": ok(1), "controlFlags": CLOSED})
            assert further.result(WAIT) == 1
            self.client.close(0)
        return str(hello["sessionId"])

    def check_lost(self, call: Callable[[], Any]) -> None:
        with pytest.raises(rpc.RiverError) as caught:
            call()
        assert caught.value.code == "UNEXPECTED_DISCONNECT"


@contextmanager
def scene(
    carrier: tuple[str, bool], options: rpc.Options = OPTIONS, metadata: Any = None
) -> Iterator[Scene]:
    with ThreadPoolExecutor(2) as pool:
        made = Scene(carrier, pool, options, metadata)
        with made.server, made.client:
            yield made
