"""What a server and a client tell of their sessions, and how a session is ended from outside."""

from __future__ import annotations

import logging
import queue
from typing import Any

import pytest

from wsmux import rpc

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
        idle, busy = server.handler.list_sessions()
        assert (idle.client_id, idle.calls, idle.handlers, idle.waiting_calls) == ("first", 0, 0, 0)
        assert (busy.client_id, busy.calls, busy.handlers) == ("second", 2, 1)
        assert idle.connected
        assert idle.connections == 1
        assert first.session is not None
        assert first.session.session_id == idle.session_id
        waits.cancel()
        held.go.set()


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
