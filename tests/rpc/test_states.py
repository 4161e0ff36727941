"""Client and server that disagree on what there was: what ends, what goes on, what is new."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc import testing

from ..helpers.connections import Spawn
from ..helpers.inside import channel_of, io_thread_rests
from ..helpers.rpc.cutting_relay import Relay
from ..helpers.rpc.noted_calls import Witness
from ..helpers.rpc.procedures import WAIT, Gate, offered
from ..helpers.timeouts import CONNECTS
from ..helpers.waiting import wait_for

# A port that nobody serves: the system never gives it away.
NOWHERE = "ws://127.0.0.1:9"


class TestCallsWithoutAConnection:
    def test_a_call_after_a_refusal_tries_again(self) -> None:
        """The I/O thread rests without an alarm then, and has to be told of the new wait."""
        refusals = ["first", "second"]

        def validate(metadata: object, before: object, client_id: str) -> object:
            if refusals:
                raise rpc.Rejection(refusals.pop(0))
            return metadata

        with (
            rpc.serve([offered(Gate())], validate=validate) as server,
            rpc.connect(server.url, options=choose({})) as client,
        ):
            for text in ("first", "second"):
                with pytest.raises(rpc.RiverError, match=f"UNEXPECTED_DISCONNECT.*{text}"):
                    client.rpc("test", "same", 1, WAIT)
                wait_for(lambda: io_thread_rests(client))
            assert client.rpc("test", "same", 1, WAIT) == 1

    def test_a_call_that_may_not_connect_fails_after_the_grace(self) -> None:
        options = rpc.Options(session_disconnect_grace=0.05)
        with (
            rpc.connect(NOWHERE, connect_on_call=False, options=options) as client,
            pytest.raises(rpc.RiverError, match="no connection within the grace period"),
        ):
            client.rpc("test", "same", 1, WAIT)


class TestCarrierThatIsThereOnce:
    def test_its_calls_end_with_it_however_long_the_grace(self) -> None:
        witness = Witness()
        ours, theirs = socket.socketpair()
        options = choose({})
        with (
            ThreadPoolExecutor(5) as pool,
            rpc.handler([witness.service], options=options) as handler,
            rpc.connect(ours, options=options) as client,
        ):
            served = pool.submit(handler, theirs)
            pending = Pending(client, witness, pool)
            theirs.shutdown(socket.SHUT_RDWR)
            pending.check_callers("cannot be reconnected")
            with pytest.raises(rpc.RiverError, match="cannot be reconnected"):
                client.rpc("test", "same", 1, WAIT)
            served.result(WAIT)
            handler.shutdown()
            pending.check_handlers()


# A connection comes again at once, and silence is no reason to leave it.
OPTIONS: dict[str, Any] = {
    "heartbeat_interval": 3 * WAIT,
    "connection_timeout": CONNECTS,
    "handshake_timeout": CONNECTS,
    "backoff_base": 0.002,
    "backoff_jitter": 0.002,
    "backoff_max": 0.02,
    "session_disconnect_grace": 3 * WAIT,
}

CODECS = pytest.mark.parametrize("codec", ["json", "msgpack"])
KINDS = ("waits", "holds", "watch", "echo")


class Pending:
    """Have a call of each kind under way that waits for the server, and see how they end."""

    def __init__(self, client: rpc.Client, witness: Witness, pool: ThreadPoolExecutor) -> None:
        self._notes = [witness.notes[label] for label in KINDS]
        watch = client.subscribe("test", "watch", "watch")
        assert watch.read(WAIT) == "first"
        upload = client.upload("test", "holds", "holds")
        upload.write(1)
        stream = client.stream("test", "echo", "echo")
        stream.write(2)
        assert stream.read(WAIT) == 2
        self.calls: list[Future[Any]] = [
            pool.submit(client.rpc, "test", "waits", "waits"),
            pool.submit(upload.finish),
            pool.submit(watch.read),
            pool.submit(stream.read),
        ]
        for note in self._notes:
            assert note.entered.wait(WAIT)

    def check_callers(self, text: str) -> None:
        """Check that each call has ended with UNEXPECTED_DISCONNECT and this text."""
        for call in self.calls:
            error = call.exception(WAIT)
            assert isinstance(error, rpc.RiverError)
            assert error.code == "UNEXPECTED_DISCONNECT"
            assert text in error.message

    def check_handlers(self) -> None:
        """Check that each handler heard of it, and what it deferred has run."""
        waiting, holding, *others = self._notes
        waiting.check_lost("ended")
        holding.check_lost("ended")
        for note in others:
            note.check_lost()

    def check_goes_on(self) -> None:
        """Check that no caller and no handler has heard of anything."""
        assert not any(call.done() for call in self.calls)
        assert [note.errors for note in self._notes] == [[], [], [], []]


class World:
    """Hold servers, and a relay to one of them that can be taken away.

    Attributes:
        statuses: the beginnings and ends of the client's sessions.
        connections: what the client told of its connections.
    """

    def __init__(self, codec: str, stack: ExitStack) -> None:
        self.codec = codec
        self.stack = stack
        self.witness = Witness()
        self.server: rpc.RpcServer | None = None
        self.statuses: list[str] = []
        self.connections: list[str] = []
        self.pool = stack.enter_context(ThreadPoolExecutor(4))
        self.relay = stack.enter_context(Relay(self._dial, websocket=True))

    def _dial(self) -> socket.socket:
        if self.server is None:
            raise ConnectionRefusedError
        return socket.create_connection((self.server.host, self.server.port), WAIT)

    def serve(self, **options: Any) -> Witness:
        """Have a new server behind the address; return what its handlers see."""
        witness = Witness()
        made = rpc.serve([witness.service], codec=self.codec, options=choose(options))
        self.server = self.stack.enter_context(made)
        self.stack.callback(self.relay.kill_all)  # what is swallowed would hold up the shutdown
        return witness

    def connect(self, client_id: str | None = None, **options: Any) -> rpc.Client:
        client = rpc.connect(
            self.relay.url,
            codec=self.codec,
            client_id=client_id,
            options=choose(options),
            on_session_status=lambda status, session: self.statuses.append(status),
            on_connection_status=self.connections.append,
        )
        return self.stack.enter_context(client)


def choose(options: dict[str, Any]) -> rpc.Options:
    return rpc.Options(**OPTIONS | options)


@pytest.fixture
def world(codec: str) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(codec, stack)


@pytest.fixture
def clock(world: World) -> Iterator[testing.Clock]:
    """Yield the clock of all that the world begins; what ends it takes real time."""
    clock = testing.Clock()
    clock.start()
    yield clock
    clock.stop()


@CODECS
class TestServerThatLostItsState:
    def test_pending_calls_end_and_further_ones_begin_a_new_session(self, world: World) -> None:
        """It was shut down, and another one is there now."""
        witness = world.serve()
        client = world.connect()
        pending = Pending(client, witness, world.pool)
        first, world.server = world.server, None
        assert first is not None
        first.shutdown()
        pending.check_handlers()
        assert not any(call.done() for call in pending.calls)  # the server may come again
        world.serve()
        pending.check_callers("does not know about")
        assert client.rpc("test", "same", "new", WAIT) == "new"
        wait_for(lambda: world.statuses == ["created", "closed", "created"])

    def test_another_instance_behind_the_address_has_none_either(self, world: World) -> None:
        """The first one still waits for its client, until the grace is over."""
        witness = world.serve(session_disconnect_grace=0.3)
        client = world.connect()
        pending = Pending(client, witness, world.pool)
        second = world.serve()
        world.relay.cut_all()
        pending.check_callers("does not know about")
        assert client.rpc("test", "same", "new", WAIT) == "new"
        pending.check_handlers()
        wait_for(lambda: world.statuses == ["created", "closed", "created"])
        assert set(second.notes) == set()

    def test_a_call_that_no_server_has_seen_goes_to_the_next(self, world: World) -> None:
        """Nothing of its session was lost: it has counted nothing yet."""
        client = world.connect()
        call = world.pool.submit(client.rpc, "test", "same", "patient", WAIT)
        wait_for(lambda: world.statuses == ["created"])
        world.serve()
        assert call.result(WAIT) == "patient"
        assert world.statuses == ["created"]

    def test_the_session_after_that_survives_its_connections(self, world: World) -> None:
        world.serve()
        client = world.connect()
        assert client.rpc("test", "same", 1, WAIT) == 1
        witness = world.serve()
        world.relay.cut_all()
        wait_for(lambda: world.statuses == ["created", "closed", "created"])
        pending = Pending(client, witness, world.pool)
        world.relay.cut_all()
        assert client.rpc("test", "same", 2, WAIT) == 2
        pending.check_goes_on()
        client.close()
        pending.check_callers("the client was closed")


@CODECS
class TestClientThatLostItsState:
    @pytest.fixture
    def prompt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("wsmux.rpc.session.session.PROOF_TIME", 0.1)

    def test_a_new_one_of_its_name_ends_the_session_of_the_old(self, world: World) -> None:
        witness = world.serve()
        old = world.connect("name")
        pending = Pending(old, witness, world.pool)
        old.close()
        pending.check_callers("the client was closed")
        new = world.connect("name")
        assert new.rpc("test", "same", "new", WAIT) == "new"
        pending.check_handlers()
        assert world.server is not None
        assert world.server.handler.sessions == 1

    @pytest.mark.usefixtures("prompt")
    def test_so_does_one_that_comes_before_the_server_has_missed_the_old(
        self, world: World
    ) -> None:
        """The old one is asked for a sign of life, which nobody gives."""
        witness = world.serve()
        old = world.connect("name")
        pending = Pending(old, witness, world.pool)
        world.relay.swallow_all()
        new = world.connect("name")
        assert new.rpc("test", "same", "new", WAIT) == "new"
        pending.check_handlers()
        old.close(timeout=0)  # nobody answers its Close
        pending.check_callers("the client was closed")

    def test_of_two_that_live_the_first_one_stays(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wsmux.rpc.session.session.PROOF_TIME", WAIT)
        witness = world.serve()
        first = world.connect("name")
        pending = Pending(first, witness, world.pool)
        second = world.connect("name", session_disconnect_grace=0.4)
        with pytest.raises(rpc.RiverError, match="no connection within the grace period"):
            second.rpc("test", "same", "never", WAIT)
        second.close()
        assert first.rpc("test", "same", "still here", WAIT) == "still here"
        pending.check_goes_on()
        first.close()
        pending.check_callers("the client was closed")


@CODECS
class TestGrace:
    def test_it_elapses_while_no_server_can_be_reached(
        self, world: World, clock: testing.Clock
    ) -> None:
        witness = world.serve(session_disconnect_grace=1.0)
        client = world.connect(session_disconnect_grace=1.0, backoff_base=0.2, backoff_max=0.2)
        pending = Pending(client, witness, world.pool)
        server, world.server = world.server, None
        world.relay.cut_all()
        assert server is not None
        wait_for(lambda: not any(each.connected for each in server.handler.list_sessions()))
        wait_for(lambda: channel_of(client) is None)
        clock.advance(0.75)
        pending.check_goes_on()
        clock.advance(0.25)
        pending.check_callers("no connection within the grace period")
        pending.check_handlers()
        world.server = server
        clock.advance(1)
        client.wait_connected(WAIT)
        assert client.rpc("test", "same", "again", WAIT) == "again"
        wait_for(lambda: world.statuses == ["created", "closed", "created"])

    def test_it_elapses_while_the_server_accepts_and_says_nothing(self, world: World) -> None:
        witness = world.serve(session_disconnect_grace=0.5)
        client = world.connect(session_disconnect_grace=CONNECTS, connection_timeout=1.0)
        pending = Pending(client, witness, world.pool)
        world.relay.mute = True
        world.relay.cut_all()
        pending.check_callers("no connection within the grace period")
        pending.check_handlers()
        world.relay.mute = False
        client.wait_connected(WAIT)
        assert client.rpc("test", "same", "again", WAIT) == "again"

    def test_the_server_gives_up_first_and_the_client_learns_of_it(self, world: World) -> None:
        witness = world.serve(session_disconnect_grace=0.05)
        client = world.connect()
        pending = Pending(client, witness, world.pool)
        server, world.server = world.server, None
        world.relay.cut_all()
        pending.check_handlers()
        assert not any(call.done() for call in pending.calls)
        world.server = server
        pending.check_callers("does not know about")
        assert client.rpc("test", "same", "again", WAIT) == "again"

    def test_within_it_nothing_is_lost(self, world: World) -> None:
        witness = world.serve()
        client = world.connect()
        pending = Pending(client, witness, world.pool)
        server, world.server = world.server, None
        world.relay.cut_all()
        # The first connection and its loss, and then three attempts that have failed.
        wait_for(lambda: world.connections.count("backing_off") >= 5)
        world.server = server
        assert client.rpc("test", "same", "same session", WAIT) == "same session"
        pending.check_goes_on()
        assert world.statuses == ["created"]
        client.close()
        pending.check_callers("the client was closed")


@CODECS
class TestServerThatIsNotThereYet:
    """It is down for many attempts, as by default within a minute."""

    def test_calls_wait_for_it_within_the_grace(self, world: World) -> None:
        failures: list[str] = []
        client = rpc.connect(
            world.relay.url,
            codec=world.codec,
            options=choose({}),
            on_connection_status=world.connections.append,
            on_protocol_error=lambda kind, *_: failures.append(kind),
        )
        world.stack.enter_context(client)
        calls = [world.pool.submit(client.rpc, "test", "same", n, WAIT) for n in range(3)]
        wait_for(lambda: world.connections.count("backing_off") > 10)
        world.serve()
        assert [call.result(WAIT) for call in calls] == [0, 1, 2]
        wait_for(lambda: failures == ["conn_retry_exceeded"])

    def test_calls_fail_after_the_grace_and_the_client_connects_nevertheless(
        self, world: World
    ) -> None:
        client = world.connect(session_disconnect_grace=0.05)
        for attempt in range(2):
            with pytest.raises(rpc.RiverError, match="no connection within the grace period"):
                client.rpc("test", "same", attempt, WAIT)
        world.serve()
        client.wait_connected(WAIT)
        assert client.rpc("test", "same", "there", WAIT) == "there"

    def test_a_call_has_its_own_time_too(self, world: World) -> None:
        client = world.connect()
        with pytest.raises(TimeoutError):
            client.rpc("test", "same", "impatient", timeout=0.05)
        witness = world.serve()
        assert client.rpc("test", "same", "patient", WAIT) == "patient"
        assert set(witness.notes) == set()


def test_a_second_shutdown_with_less_time_ends_the_wait_of_the_first(spawn: Spawn) -> None:
    called, gone = threading.Event(), threading.Event()
    disposed: list[Any] = []
    service = rpc.Service("kept", state="the state", dispose=disposed.append)

    @service.rpc()
    def hang(ctx: rpc.Context, init: Any) -> None:
        called.set()
        gone.wait(WAIT)

    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        call = spawn(client.rpc, "kept", "hang", None, WAIT)
        assert called.wait(WAIT)
        first = spawn(server.handler.shutdown, None)
        with pytest.raises(rpc.RiverError):
            call.result(WAIT)  # the first one has begun
        server.handler.shutdown(0.0)
        assert disposed == ["the state"]
        assert not first.done()
        gone.set()
        first.result(WAIT)
    assert disposed == ["the state"]
