"""Writers that wait, calls that cannot be sent, ends that come meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc import testing
from wsmux.rpc.engine.event_callbacks import EventCallbacks
from wsmux.rpc.session.session_info import SessionInfo
from wsmux.runtime.deadline import Deadline
from wsmux.transport.message_transport import MessageTransport

from ..helpers.inside import client_engine_of, requests_waiting, writers_waiting
from ..helpers.raw_peer import CLOSE_FRAME
from ..helpers.rpc.clients import session_of
from ..helpers.rpc.noted_calls import Witness
from ..helpers.rpc.procedures import WAIT, Gate, offered
from ..helpers.rpc.raw_river import ACK, CANCEL, CLOSED, OPEN, RawRiver, RawServer, cancel, ok
from ..helpers.timeouts import CONNECTS
from ..helpers.waiting import wait_for

# A port that nobody serves: the system never gives it away.
NOWHERE = "ws://127.0.0.1:9"

# What holds two messages that are not acknowledged, and never gives up.
FOUR = rpc.Options(send_buffer_messages=4, session_disconnect_grace=WAIT, heartbeat_interval=WAIT)
NARROW = rpc.Options(send_buffer_messages=2, session_disconnect_grace=WAIT, heartbeat_interval=WAIT)


class TestClient:
    @pytest.mark.parametrize("kind", ["rpc", "subscribe", "upload", "stream"])
    def test_a_call_that_cannot_be_sent_is_forgotten(self, kind: str) -> None:
        with rpc.connect(NOWHERE, options=NARROW) as client:
            with pytest.raises(rpc.EncodeError):
                getattr(client, kind)("test", "half of a pair: \ud800", None)
            assert session_of(client).calls == 0

    def test_a_call_that_cannot_be_sent_leaves_none_behind_to_fail(self) -> None:
        """The session that was made for it lives and dies like any other."""
        options = rpc.Options(session_disconnect_grace=CONNECTS)
        statuses: list[str] = []
        clock = testing.Clock()
        with testing.linked(
            [offered(Gate())],
            clock=clock,
            options=options,
            on_session_status=lambda *s: statuses.append(s[0]),
        ) as link:
            with pytest.raises(rpc.EncodeError):
                link.client.rpc("test", "\ud800", None)
            clock.advance(CONNECTS)
            wait_for(lambda: statuses == ["created", "closed"])
            assert link.client.rpc("test", "same", 1, WAIT) == 1

    @pytest.mark.parametrize(
        ("end", "error"),
        [
            (lambda stream: stream.cancel("enough"), "CANCEL: enough"),
            (lambda stream: stream.close_write(), "this side has closed"),
        ],
        ids=["cancel", "close_write"],
    )
    def test_a_writer_that_waits_for_room_hears_of_the_end(
        self, end: Callable[[rpc.StreamCall], None], error: str
    ) -> None:
        with (
            rpc.connect(NOWHERE, options=NARROW) as client,
            client.stream("test", "echo", None) as stream,
            ThreadPoolExecutor(1) as pool,
        ):
            stream.write(1)
            writing = pool.submit(stream.write, 2, 1.5 * WAIT)
            wait_for(lambda: requests_waiting(client))
            end(stream)
            with pytest.raises((rpc.RiverError, ValueError), match=error):
                writing.result(WAIT)

    def test_a_writer_that_waits_for_room_hears_of_a_cancel_of_the_server(self) -> None:
        with (
            RawServer("msgpack", websocket=True) as server,
            rpc.connect(server.url, options=NARROW) as client,
            ThreadPoolExecutor(1) as pool,
        ):
            stream = client.stream("test", "echo", None)
            with server.attached() as peer:
                stream_id = peer.recv()["streamId"]
                stream.write(1)
                writing = pool.submit(stream.write, 2, 1.5 * WAIT)
                wait_for(lambda: requests_waiting(client))
                peer.send(
                    {"streamId": stream_id, "controlFlags": CANCEL, "payload": cancel(), "ack": 0}
                )
                with pytest.raises(rpc.RiverError, match="CANCEL: by hand"):
                    writing.result(WAIT)

    def test_a_fault_in_the_io_thread_ends_the_calls_and_is_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def dial(deadline: Deadline) -> MessageTransport:
            raise LookupError("no carrier ever raises this")

        told: list[tuple[str, str]] = []
        client = rpc.connect(NOWHERE, on_session_status=lambda *status: told.append(status))
        client_engine_of(client).dial = dial
        with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
            client.rpc("test", "same", 1, WAIT)
        assert "no carrier ever raises this" in caplog.text
        wait_for(lambda: [status for status, _ in told] == ["created", "closed"])
        client.close()

    def test_events_of_several_threads_are_told_by_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A second one would tell them out of order, and never end."""
        made: list[threading.Thread] = []
        told: list[int] = []
        callbacks = EventCallbacks({"kind": told.append}, "test")
        second = threading.Thread(target=callbacks.add, args=("kind", 2))

        class Slow(threading.Thread):
            def __init__(self, **how: Any) -> None:
                super().__init__(**how)
                made.append(self)
                if len(made) == 1:
                    second.start()
                    second.join(0.05)  # it may have to wait for this one

        monkeypatch.setattr("wsmux.rpc.engine.event_callbacks.threading.Thread", Slow)
        callbacks.add("kind", 1)
        monkeypatch.undo()
        second.join(WAIT)
        callbacks.close()
        made[0].join(WAIT)
        assert len(made) == 1
        assert told == [1, 2]


class TestServer:
    @pytest.mark.parametrize("what", ["ended", "deferred"])
    def test_handlers_that_wait_for_their_end_hear_of_it_when_all_workers_wait(
        self, what: str
    ) -> None:
        service = rpc.Service("test")
        entered, left = threading.Barrier(3), threading.Barrier(3)

        @service.rpc()
        def waits(ctx: rpc.Context, init: str) -> None:
            event = ctx.ended
            if init == "deferred":
                event = threading.Event()
                ctx.defer(event.set)
            entered.wait(WAIT)
            if event.wait(WAIT):
                left.wait(WAIT)

        with rpc.serve([service], workers=2) as server, rpc.connect(server.url) as client:
            calls = [client.subscribe("test", "waits", what) for _ in range(2)]
            entered.wait(WAIT)
            for call in calls:
                call.cancel()
            left.wait(WAIT)

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    @pytest.mark.parametrize("kind", ["rpc", "upload", "subscription", "stream"])
    def test_a_handler_that_leaves_its_thread_fails_and_takes_no_worker_along(
        self, kind: str
    ) -> None:
        service = rpc.Service("test")
        service.rpc(name="same")(lambda ctx, init: init)

        def leaves(*arguments: object) -> None:
            raise SystemExit(3)

        getattr(service, kind)(name="leaves")(leaves)
        with rpc.serve([service], workers=1) as server, rpc.connect(server.url) as client:
            for _ in range(2):
                with pytest.raises(rpc.RiverError, match="UNCAUGHT_ERROR: the handler failed"):
                    client.rpc("test", "leaves", None, WAIT)
            assert client.rpc("test", "same", 1, WAIT) == 1

    @pytest.fixture
    def peer(self, witness: Witness) -> Iterator[RawRiver]:
        """Return a client that acknowledges nothing, with a handler that waits for room."""
        with (
            rpc.serve([witness.service], options=FOUR) as server,
            RawRiver.dial(server.port, "msgpack", websocket=True) as peer,
        ):
            peer.attach("session")
            peer.open("s", "pours", "label")
            for _ in range(3):  # beside an ACK, which asks for others
                peer.recv()
            wait_for(lambda: writers_waiting(server.handler))
            yield peer

    @pytest.fixture
    def witness(self) -> Witness:
        return Witness()

    def test_a_handler_that_waits_for_room_hears_of_a_cancel(
        self, witness: Witness, peer: RawRiver
    ) -> None:
        peer.send({"streamId": "s", "controlFlags": CANCEL, "payload": cancel(), "ack": 0})
        witness.notes["label"].check_lost("CANCEL")

    def test_a_handshake_makes_room(self, witness: Witness, peer: RawRiver) -> None:
        """It tells what has arrived, which no message needs to repeat."""
        port = peer.sock.getpeername()[1]
        with RawRiver.dial(port, "msgpack", websocket=True) as again:
            again.seq, again.ack = peer.seq, peer.ack
            again.attach("session")
            assert [again.recv()["payload"] for _ in range(2)] == [ok(3), ok(4)]
            assert peer.recv_end() == 1000


MIB = 2**20


class TestLargeAnswers:
    """Calls wait while their session has large answers unacknowledged, and none is lost."""

    # No heartbeat asks for an acknowledgement: what is asked for is because of the bytes alone.
    OPTIONS = rpc.Options(
        send_buffer_bytes=4 * MIB, heartbeat_interval=10 * WAIT, session_disconnect_grace=10 * WAIT
    )
    WORKERS = 8

    @pytest.fixture
    def ran(self) -> list[rpc.Context]:
        return []

    @pytest.fixture
    def server(self, ran: list[rpc.Context]) -> Iterator[rpc.RpcServer]:
        service = rpc.Service("test")

        @service.rpc()
        def large(ctx: rpc.Context, init: None) -> str:
            ran.append(ctx)
            return "x" * MIB

        with rpc.serve(
            [service], codec="msgpack", workers=self.WORKERS, options=self.OPTIONS
        ) as server:
            yield server

    @pytest.fixture
    def peer(self, server: rpc.RpcServer) -> Iterator[RawRiver]:
        with RawRiver.dial(server.port, "msgpack", websocket=True) as peer:
            peer.attach("session")
            yield peer

    def check_held(self, server: rpc.RpcServer, ran: Sized, calls: int) -> SessionInfo:
        def held() -> bool:
            (info,) = server.handler.list_sessions()
            full = info.handlers == 0 and info.unacknowledged_bytes >= 4 * MIB
            return full and info.calls == info.waiting_calls == calls - len(ran)

        wait_for(held)
        (info,) = server.handler.list_sessions()
        # What runs when the buffer is full is answered all the same.
        assert info.unacknowledged_bytes < (4 + self.WORKERS + 1) * MIB
        assert info.waiting_calls < calls
        return info

    def test_they_are_not_piled_up_for_whoever_acknowledges_nothing(
        self,
        server: rpc.RpcServer,
        ran: list[rpc.Context],
        peer: RawRiver,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        with caplog.at_level("INFO", "wsmux.rpc"), ThreadPoolExecutor(1) as pool:
            for number in range(100):
                peer.open(f"s{number}", "large", None, CLOSED)
            reading = pool.submit(read_to_the_end, peer)
            self.check_held(server, ran, 100)
            assert server.handler.end_session("raw")
            assert reading.result(WAIT) < 4 + self.WORKERS + 2  # with an ACK
        assert caplog.text.count("its next calls wait until it does") == 1

    def test_whoever_reads_slowly_and_acknowledges_what_it_is_asked_for_gets_all(
        self, server: rpc.RpcServer, ran: list[rpc.Context], peer: RawRiver
    ) -> None:
        """Clients of other implementations acknowledge in answer to an ACK, and with calls."""
        for number in range(100):
            peer.open(f"s{number}", "large", None, CLOSED)
        self.check_held(server, ran, 100)
        answers = []
        while len(answers) < 100:
            fields = peer.recv_any()
            peer.ack += 1
            if fields["controlFlags"] & ACK:
                heartbeat = {"streamId": "heartbeat", "payload": {"type": "ACK"}}
                peer.send({"controlFlags": ACK, **heartbeat})
            else:
                assert len(fields["payload"]["payload"]) == MIB
                answers.append(fields["streamId"])
        assert sorted(answers) == sorted(f"s{number}" for number in range(100))
        wait_for(lambda: server.handler.list_sessions()[0].calls == 0)

    def test_a_handshake_lets_them_go_on(
        self, server: rpc.RpcServer, ran: list[rpc.Context], peer: RawRiver
    ) -> None:
        for number in range(20):
            peer.open(f"s{number}", "large", None, CLOSED)
        before = self.check_held(server, ran, 20)
        for _ in range(20 - before.waiting_calls):
            peer.recv()
        with RawRiver.dial(server.port, "msgpack", websocket=True) as again:
            again.seq, again.ack = peer.seq, peer.ack
            again.attach("session")
            assert again.recv()["controlFlags"] == CLOSED
            (after,) = server.handler.list_sessions()
            assert after.waiting_calls < before.waiting_calls

    def test_they_end_with_their_time_and_their_session(
        self, server: rpc.RpcServer, ran: list[rpc.Context], peer: RawRiver
    ) -> None:
        for number in range(20):
            peer.open(f"s{number}", "large", None, CLOSED)
        self.check_held(server, ran, 20)
        peer.send({"streamId": "s19", "controlFlags": CANCEL, "payload": cancel(), "ack": 0})
        wait_for(lambda: server.handler.list_sessions()[0].calls < 20)
        assert server.handler.end_session("raw")
        with RawRiver.dial(server.port, "msgpack", websocket=True) as again:
            again.attach("another session")
            again.open("s", "large", None, CLOSED)
            assert again.recv()["streamId"] == "s"

    def test_those_that_wait_for_a_worker_are_held_in_their_order(self) -> None:
        """They were let in while there was room, and there is none when their turn comes."""
        service = rpc.Service("test")
        go = threading.Event()
        ran: list[int] = []

        @service.rpc()
        def large(ctx: rpc.Context, init: int) -> str:
            ran.append(init)
            go.wait(WAIT)
            return "x" * 5 * MIB

        with (
            rpc.serve([service], codec="msgpack", workers=1, options=self.OPTIONS) as server,
            RawRiver.dial(server.port, "msgpack", websocket=True) as peer,
        ):
            peer.attach("session")
            for number in range(5):
                peer.open(f"s{number}", "large", number, CLOSED)
            wait_for(lambda: server.handler.list_sessions()[0].waiting_calls == 4)
            go.set()
            assert peer.recv()["streamId"] == "s0"
            self.check_held(server, ran, 5)
            names = {"serviceName": "test", "procedureName": "large"}
            late = {"streamId": "s5", "controlFlags": OPEN | CLOSED, "payload": 5, **names}
            peer.send(late | {"ack": 0})
            for number in range(1, 6):
                if number > 1:
                    assert peer.recv()["streamId"] == f"s{number - 1}"
                peer.send({"controlFlags": ACK, "streamId": "heartbeat"})
            assert peer.recv()["streamId"] == "s5"
        assert ran == list(range(6))


def read_to_the_end(peer: RawRiver) -> int:
    """Return how many answers come, without a word, until the connection ends."""
    count = 0
    while True:
        opcode, _ = peer.recv_frame()
        if opcode == CLOSE_FRAME:
            return count
        count += 1


class TestAnswersThatCannotBeSent:
    """Each ends its call with an error that can."""

    SIZE = 16 * 1024

    @pytest.fixture
    def client(self) -> Iterator[rpc.Client]:
        service = rpc.Service("test")
        service.rpc(name="long")(lambda ctx, size: "x" * size)
        service.rpc(name="odd")(lambda ctx, init: object())

        @service.rpc(errors=[rpc.ErrorSchema("BAD")])
        def raises(ctx: rpc.Context, size: int) -> None:
            raise rpc.RiverError("BAD", "x" * size, None if size else object())

        @service.stream(errors=[rpc.ErrorSchema("BAD")])
        def streams(ctx: rpc.Context, size: int, requests: object, responses: object) -> None:
            raise rpc.RiverError("BAD", "x" * size, None if size else object())

        @service.rpc()
        def fails(ctx: rpc.Context, size: int) -> None:
            if not size:
                raise rpc.RiverError("UNDECLARED", "half of a pair: \ud800")
            raise LookupError("x" * size)

        options = rpc.Options(max_size=self.SIZE)
        with (
            rpc.serve([service], options=options, expose_errors=True) as server,
            rpc.connect(server.url) as client,
        ):
            yield client

    # Above the limit together with its own head, and far above it.
    @pytest.mark.parametrize("size", [SIZE, 10 * SIZE])
    @pytest.mark.parametrize("procedure", ["long", "raises", "streams", "fails"])
    def test_too_long(self, procedure: str, size: int, client: rpc.Client) -> None:
        with pytest.raises(rpc.RiverError, match="UNCAUGHT_ERROR: the handler failed"):
            client.rpc("test", procedure, size, WAIT)
        assert session_of(client).calls == 0

    @pytest.mark.parametrize("procedure", ["odd", "raises", "streams", "fails"])
    def test_of_no_form(self, procedure: str, client: rpc.Client) -> None:
        with pytest.raises(rpc.RiverError, match="UNCAUGHT_ERROR: the handler failed"):
            client.rpc("test", procedure, 0, WAIT)
