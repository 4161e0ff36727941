"""Keep one server up for many tests, with a session of another client that goes on all the time.

Its threads are all started before the first test, and stay: what a test leaves is its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from wsmux import rpc

from ..inside import pools_of, readers_waiting, send_watcher_home, threads_resting, watch_rests
from ..waiting import threads_of, wait_for, wait_for_value
from .noted_calls import Witness
from .procedures import WAIT
from .raw_river import CLOSE, CLOSED, RawRiver, ok

__all__ = ["CALM", "Stand", "no_exceptions", "stand"]

# All the threads that a pool may have. A worker that ends a call hands its place on before it is
# back itself, so a flood starts as many as it is let. A session gets half of them, which is enough.
WORKERS = 12

# The first session that a test lost may be there until the last one ends.
LONG = 86_400.0

# No heartbeat comes between, however slow the machine.
CALM = rpc.Options(heartbeat_interval=LONG, session_disconnect_grace=LONG)


class Rest(NamedTuple):
    """Say how many threads of a server wait for something to do.

    Attributes:
        readers: of the bystander's handler, for a request.
        times: the one that keeps the times.
        workers, cleaners: of the two pools.
    """

    readers: int
    times: bool
    workers: int
    cleaners: int


# The bystander's handler holds a worker.
RESTS = Rest(readers=1, times=True, workers=WORKERS - 1, cleaners=WORKERS)


class Stand:
    """Hold a server, the client that looks on, and what the server told.

    Attributes:
        told: the kinds of failure, as ``on_protocol_error`` heard them.
    """

    def __init__(
        self, server: rpc.RpcServer, witness: Witness, codec: str, websocket: bool, metadata: Any
    ) -> None:
        self.server = server
        self.witness = witness
        self.codec = codec
        self.websocket = websocket
        self.told: list[str] = []
        self._serial = 0
        self._client = rpc.connect(
            server.url, codec=codec, client_id="bystander", metadata=metadata, options=CALM
        )
        self._stream: rpc.StreamCall[Any, Any] = self._client.stream("test", "echo", "bystander")
        self.check_others()
        self._threads = threads_of(server)
        self.settle()

    def close(self) -> None:
        self._client.close()

    def check_others(self) -> None:
        """Check that the session of the other client goes on."""
        self._serial += 1
        self._stream.write(self._serial, WAIT)
        assert self._stream.read(WAIT) == self._serial

    def dial(self, own: str = "raw") -> RawRiver:
        """Connect by hand."""
        return RawRiver.dial(self.server.port, self.codec, websocket=self.websocket, own=own)

    def fresh(self, kind: str) -> str:
        """Return a name that no test before has used."""
        self._serial += 1
        return f"{kind}-{self._serial}"

    @contextmanager
    def attached(self, **hello: Any) -> Iterator[tuple[RawRiver, str]]:
        """Connect by hand, with a call ``other`` open; also return session's and call's name."""
        name = self.fresh("raw")
        with self.dial(name) as peer:
            peer.attach(name, hello)
            peer.open("other", "echo", name)
            peer.exchange("other", 0)
            yield peer, name
        self.settle()

    def settle(self) -> None:
        """Wait until the connections by hand are gone, and check that the others are not."""
        wait_for(lambda: threads_of(self.server) <= self._threads)
        self.check_others()
        # A thread that rests holds a descriptor, and some come and go.
        wait_for_value(self._at_rest, RESTS)
        pools = pools_of(self.server.handler)
        wait_for_value(lambda: [send_watcher_home(pool) for pool in pools], [False, False])

    def _at_rest(self) -> Rest:
        handler, context = self.server.handler, self.witness.notes["bystander"].context
        assert context is not None
        workers, cleaners = pools_of(handler)
        return Rest(
            readers_waiting(context),
            watch_rests(handler),
            threads_resting(workers),
            threads_resting(cleaners),
        )

    # Reactions

    def check_lives(self, peer: RawRiver) -> None:
        """Check that nothing but the answer to this comes, and leave no call behind."""
        peer.exchange("other", "still there")
        self.finish(peer, "other")

    def finish(self, peer: RawRiver, stream: str) -> None:
        """End a call that echoes, which must be all that comes of it."""
        peer.send({"streamId": stream, "controlFlags": CLOSED, "payload": CLOSE})
        fields = peer.recv()
        assert (fields["streamId"], fields["controlFlags"]) == (stream, CLOSED)
        assert fields["payload"] == CLOSE

    def check_destroyed(
        self,
        peer: RawRiver,
        name: str,
        code: int | None = None,
        reason: str = "does not know about",
    ) -> None:
        """Check that connection and session end without an answer, and handlers hear of it.

        ``reason`` is why the session cannot be resumed.
        """
        assert peer.recv_end() == (peer.clean if code is None else code)
        self.witness.notes[name].check_lost()
        with self.dial(name) as again:
            again.seq, again.ack = peer.seq, peer.ack
            again.hello(name)
            status = again.status()
            assert (status["ok"], status["code"]) == (False, "SESSION_STATE_MISMATCH")
            assert reason in status["reason"]

    def check_cut(self, peer: RawRiver, name: str, code: int | None = None) -> None:
        """Check that the connection ends without an answer, and the session can be resumed."""
        assert peer.recv_end() == (peer.clean if code is None else code)
        with self.dial(name) as again:
            again.seq, again.ack = peer.seq, peer.ack
            again.attach(name)
            self.check_lives(again)
        assert self.witness.notes[name].errors == []

    def check_closed(self, peer: RawRiver, stream: str) -> None:
        """Check that the responses of a stream end, and the session goes on."""
        fields = peer.recv()
        assert (fields["streamId"], fields["controlFlags"]) == (stream, CLOSED)
        assert fields["payload"] == CLOSE
        self.check_lives(peer)

    def check_refused(self, peer: RawRiver, stream: str, text: str) -> None:
        """Check that a stream is cancelled as an invalid request, and the session goes on."""
        fields = peer.recv()
        assert (fields["streamId"], fields["controlFlags"]) == (stream, 4)
        payload = fields["payload"]
        assert (payload["ok"], payload["payload"]["code"]) == (False, "INVALID_REQUEST")
        assert text in payload["payload"]["message"]

    def check_answered(self, peer: RawRiver, stream: str, value: Any, flags: int = CLOSED) -> None:
        fields = peer.recv()
        assert (fields["streamId"], fields["controlFlags"]) == (stream, flags)
        assert fields["payload"] == ok(value)


@contextmanager
def stand(codec: Any, *, websocket: bool, metadata: Any = None, **serving: Any) -> Iterator[Stand]:
    """Serve until the block is left; ``metadata`` is what the other client says."""
    barrier = threading.Barrier(2 * WORKERS)
    witness = Witness()
    told: list[str] = []
    patch = pytest.MonkeyPatch()
    patch.setattr("wsmux.runtime.thread_pool.IDLE", LONG)
    try:
        with rpc.serve(
            [witness.service],
            codec=codec,
            transport="websocket" if websocket else "tcp",
            workers=WORKERS,
            max_workers=WORKERS,
            on_protocol_error=lambda kind, *_: told.append(kind),
            on_session_status=lambda status, session: None,
            **{"options": CALM} | serving,
        ) as server:
            for pool in pools_of(server.handler):
                for _ in range(WORKERS):
                    pool.submit(lambda: barrier.wait(WAIT))  # all of them start
            name = codec if isinstance(codec, str) else codec.name
            made = Stand(server, witness, name, websocket, metadata)
            made.told = told
            try:
                yield made
            finally:
                made.close()
    finally:
        patch.undo()


@contextmanager
def no_exceptions(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that nothing goes to the log that a user would have to look at."""
    yield
    found = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING or r.exc_info]
    assert found == []
