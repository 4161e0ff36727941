"""What a server and a client tell of their sessions, and how a session is ended from outside."""

from __future__ import annotations

import logging
import queue
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc.engine.call_dispatcher import CallDispatcher
from wsmux.rpc.testing import linked

from ..helpers.rpc.four_kinds import Held, begun
from ..helpers.rpc.procedures import WAIT
from ..helpers.waiting import wait_for


@pytest.fixture
def held() -> Any:
    held = Held()
    held.service.rpc(name="same")(lambda ctx, init: init)
    yield held
    held.go.set()


def test_a_server_lists_its_sessions(held: Held) -> None:
    with (
        rpc.serve([held.service], workers=1) as server,
        rpc.connect(server.url, client_id="first") as first,
        rpc.connect(server.url, client_id="second") as second,
    ):
        assert first.rpc("test", "same", 1, WAIT) == 1
        assert second.rpc("test", "same", 2, WAIT) == 2
        begun(second, rpc.Kind.STREAM)
        assert held.part is not None
        waits = second.submit("test", "same", 3, WAIT)
        wait_for(lambda: server.handler.list_sessions()[1].waiting_calls == 1)
        # A worker is let go after the answer.
        wait_for(lambda: server.handler.list_sessions()[0].handlers == 0)
        idle, busy = server.handler.list_sessions()
        assert (idle.client_id, idle.calls, idle.handlers, idle.waiting_calls) == ("first", 0, 0, 0)
        assert (busy.client_id, busy.calls, busy.handlers) == ("second", 2, 1)
        assert idle.connected
        assert idle.connections == 1
        assert first.session is not None
        assert first.session.session_id == idle.session_id
        assert repr(idle) == f"<SessionInfo {idle.number} server first connected>"
        waits.cancel()
        held.go.set()


def test_both_sides_say_whose_session_it_is_and_for_how_long(held: Held) -> None:
    with (
        rpc.serve([held.service], server_id="there") as server,
        rpc.connect(server.url, client_id="c", server_id="there") as client,
    ):
        assert (server.list_sessions(), client.list_sessions()) == ([], [])
        assert client.rpc("test", "same", 1, WAIT) == 1
        (here,), (there,) = client.list_sessions(), server.list_sessions()
        assert (here.role, there.role) == ("client", "server")
        assert here.client_id == there.client_id == "c"
        assert here.server_id == there.server_id == "there"
        assert here.state == there.state == "connected"
        assert here.ends_in is there.ends_in is None
        assert here.number != there.number
        assert here.age >= here.state_age > 0
        later = server.list_sessions()[0]
        assert later.number == there.number
        assert later.age > there.age


def test_a_session_without_a_connection_says_for_how_long_it_waits(held: Held) -> None:
    options = rpc.Options(session_disconnect_grace=WAIT)
    with linked([held.service], {"options": options}, options=options) as link:
        client, handler = link.client, link.handler
        assert client.rpc("test", "same", 1, WAIT) == 1
        link.hold()
        wait_for(lambda: not handler.list_sessions()[0].connected)
        wait_for(lambda: not client.list_sessions()[0].connected)
        (here,), (there,) = client.list_sessions(), handler.list_sessions()
        assert there.state == "waiting_for_reconnect"
        assert here.state in ("no_connection", "backing_off", "connecting", "handshaking")
        for session in (here, there):
            assert session.connections == 1
            assert session.state_age < session.age
            assert session.ends_in is not None
            assert 0 <= session.ends_in <= WAIT
        pending = client.submit("test", "same", 2, WAIT)
        assert client.list_sessions()[0].unacknowledged_messages >= 1
        link.release()
        assert pending.result() == 2
        assert [each.state for each in handler.list_sessions()] == ["connected"]
        assert [each.connections for each in handler.list_sessions()] == [2]


def test_a_session_that_never_had_a_connection_is_listed(held: Held) -> None:
    with linked([held.service]) as link:
        link.hold()
        pending = link.client.submit("test", "same", 1, WAIT)
        (session,) = link.client.list_sessions()
        assert (session.connections, session.calls) == (0, 1)
        assert session.state_age == session.age
        link.release()
        assert pending.result() == 1


def test_messages_that_nobody_has_read_are_counted(held: Held) -> None:
    held.service.subscription(name="told")(lambda ctx, init, responses: responses.write("x" * 1000))
    with rpc.serve([held.service]) as server, rpc.connect(server.url) as client:
        upload = begun(client, rpc.Kind.UPLOAD)
        assert held.part is not None  # its handler runs, and reads nothing
        for _ in range(3):
            upload.write("x" * 1000)  # type: ignore[union-attr]
        wait_for(lambda: server.list_sessions()[0].unread_messages == 3)
        assert 3000 < server.list_sessions()[0].unread_bytes < 4000
        stream = client.stream("test", "stream", None, WAIT)
        held.part.ctx.defer(held.go.set)
        upload.cancel()
        wait_for(lambda: server.list_sessions()[0].unread_messages == 0)
        stream.cancel()


def test_a_client_counts_what_it_has_not_read(held: Held) -> None:
    @held.service.subscription()
    def tells(ctx: rpc.Context, init: int) -> Any:
        for number in range(init):
            yield "x" * number
        yield from ctx.wait()

    with rpc.serve([held.service]) as server, rpc.connect(server.url) as client:
        told = client.subscribe("test", "tells", 5, WAIT)
        wait_for(lambda: client.list_sessions()[0].unread_messages == 5)
        assert client.list_sessions()[0].unread_bytes > 10
        for _ in range(5):
            told.read(WAIT)
        (session,) = client.list_sessions()
        assert (session.unread_messages, session.unread_bytes, session.calls) == (0, 0, 1)
        told.close()


def test_a_session_that_ends_while_the_others_are_described_is_left_out(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = CallDispatcher.describe
    with (
        rpc.serve([held.service]) as server,
        rpc.connect(server.url, client_id="first") as first,
        rpc.connect(server.url, client_id="second") as second,
    ):

        def ending(dispatcher: CallDispatcher, record: Any) -> rpc.SessionInfo | None:
            server.handler.end_session("second")  # which needs the mutex of the server
            return describe(dispatcher, record)

        assert first.rpc("test", "same", 1, WAIT) == 1
        assert second.rpc("test", "same", 1, WAIT) == 1
        monkeypatch.setattr(CallDispatcher, "describe", ending)
        assert [each.client_id for each in server.list_sessions()] == ["first"]


def test_a_server_ends_a_session(held: Held) -> None:
    with rpc.serve([held.service]) as server, rpc.connect(server.url, client_id="c") as client:
        stream = begun(client, rpc.Kind.STREAM)
        assert held.part is not None  # its handler runs
        assert not server.handler.end_session("nobody")
        assert server.handler.end_session("c", "for maintenance")
        with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
            stream.read(WAIT)  # type: ignore[union-attr]
        assert client.rpc("test", "same", 1, WAIT) == 1
        held.go.set()


def test_a_client_ends_its_session(held: Held) -> None:
    with rpc.serve([held.service]) as server, rpc.connect(server.url) as client:
        assert client.session is None
        stream = begun(client, rpc.Kind.STREAM)
        assert held.part is not None  # its handler runs
        before = client.session
        assert before is not None
        assert (before.connected, before.calls) == (True, 1)
        client.end_session("no more")
        with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT: no more"):
            stream.read(WAIT)  # type: ignore[union-attr]
        assert client.session is None
        assert client.rpc("test", "same", 1, WAIT) == 1
        held.go.set()
        after = client.session
        assert after is not None
        assert after.session_id != before.session_id


def test_a_server_tells_of_each_connection_of_a_session(held: Held) -> None:
    told: queue.Queue[tuple[str, str]] = queue.Queue()
    with rpc.serve([held.service], on_session_transition=lambda *what: told.put(what)) as server:
        with rpc.connect(server.url) as client:
            assert client.rpc("test", "same", 1, WAIT) == 1
            assert client.session is not None
            session = client.session.session_id
            assert told.get(timeout=WAIT) == ("connected", session)
        assert told.get(timeout=WAIT) == ("disconnected", session)


def test_a_handler_has_a_logger_that_tells_of_its_call(caplog: pytest.LogCaptureFixture) -> None:
    service = rpc.Service("test")

    @service.rpc()
    def notes(ctx: rpc.Context, init: str) -> None:
        for _ in range(3):  # each of them comes through
            ctx.logger.warning("said %s", init)

    with rpc.serve([service]) as server, rpc.connect(server.url, client_id="c\n") as client:
        client.rpc("test", "notes", "so", WAIT)
    records: list[Any] = [record for record in caplog.records if record.name == "wsmux.rpc.calls"]
    assert [record.getMessage() for record in records] == ["said so"] * 3
    assert {(each.client_id, each.service, each.procedure) for each in records} == {
        ("c\\n", "test", "notes")
    }
    assert all(logging.makeLogRecord(vars(each)).stream_id for each in records)
