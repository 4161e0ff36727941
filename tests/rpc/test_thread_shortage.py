"""A thread that cannot be started costs an attempt or an error; no call waits for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import wsmux
from wsmux import rpc
from wsmux.rpc import testing

from ..helpers.inside import channel_of
from ..helpers.rpc.clients import session_of
from ..helpers.rpc.procedures import WAIT, Gate, offered
from ..helpers.rpc.raw_river import RawRiver
from ..helpers.thread_shortage import Refuse, refusing
from ..helpers.waiting import wait_for

SOON = rpc.Options(backoff_base=0.01, backoff_jitter=0.01, handshake_timeout=WAIT)
BRIEF = rpc.Options(session_disconnect_grace=0.05)

refuse = pytest.fixture(refusing)


@pytest.fixture
def server() -> Iterator[rpc.RpcServer]:
    with rpc.serve([offered(Gate())], options=BRIEF) as server:
        yield server


CALLS: dict[str, Callable[[rpc.Client], object]] = {
    "rpc": lambda client: client.rpc("test", "same", 1, WAIT),
    "submit_many": lambda client: client.submit_many("test", "same", [1, 2], WAIT),
    "subscribe": lambda client: client.subscribe("test", "count", 1, WAIT),
    "wait_connected": lambda client: client.wait_connected(WAIT),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_without_an_io_thread_a_call_fails_and_the_next_one_works(
    call: Callable[[rpc.Client], object], server: rpc.RpcServer, refuse: Refuse
) -> None:
    refuse("wsmux-rpc-c")
    with rpc.connect(server.url, client_id="c", options=SOON) as client:
        with pytest.raises(wsmux.NoThreadError, match="wsmux-rpc-c cannot be started"):
            call(client)
        assert client.session is None
        assert client.rpc("test", "same", 2, WAIT) == 2


def test_a_client_that_never_got_a_thread_is_closed(server: rpc.RpcServer, refuse: Refuse) -> None:
    refuse("wsmux-rpc-c")
    client = rpc.connect(server.url, client_id="c")
    with pytest.raises(wsmux.NoThreadError):
        client.rpc("test", "same", 1, WAIT)
    client.close()
    with pytest.raises(rpc.RiverError, match="the client is closed"):
        client.rpc("test", "same", 1, WAIT)


@pytest.mark.parametrize("thread", ["wsmux-rpc-c-connecting", "wsmux-rpc-metadata"])
def test_an_attempt_without_a_thread_is_followed_by_another(
    thread: str, server: rpc.RpcServer, refuse: Refuse
) -> None:
    refuse(thread)
    with rpc.connect(server.url, client_id="c", options=SOON, metadata=lambda: 1) as client:
        assert client.rpc("test", "same", 1, WAIT) == 1


@pytest.mark.parametrize("pool", ["", "-cleanup"])
def test_a_handler_and_what_it_defers_get_another_thread(pool: str, refuse: Refuse) -> None:
    """At once: no other call comes that would ask for one."""
    gate = Gate()
    gate.opened.set()
    refuse(f"wsmux-rpc-SERVER{pool}-worker-*")
    with rpc.serve([offered(gate)]) as server, rpc.connect(server.url) as client:
        client.rpc("test", "hangs", None, WAIT)
        assert gate.over.wait(WAIT)


def metadata_server() -> rpc.RpcServer:
    service = rpc.Service("me")

    @service.rpc()
    def name(ctx: rpc.Context, init: object) -> object:
        return ctx.metadata

    return rpc.serve([service], options=rpc.Options(handshake_timeout=WAIT))


@pytest.mark.parametrize("thread", ["wsmux-rpc-metadata", "wsmux-server-*-metadata"])
def test_new_metadata_arrive_though_one_thread_is_missing(thread: str, refuse: Refuse) -> None:
    """Twice: the second are not taken for others that come before the first were validated."""
    made = iter(range(100))
    with (
        metadata_server() as server,
        rpc.connect(server.url, client_id="c", options=SOON, metadata=lambda: next(made)) as client,
    ):
        known = client.rpc("me", "name", None, WAIT)
        session = session_of(client).session_id
        refuse(thread)
        for _ in range(2):
            assert server.handler.request_handshake("c")
            while client.rpc("me", "name", None, WAIT) == known:
                assert session_of(client).session_id == session
            known = client.rpc("me", "name", None, WAIT)
        assert session_of(client).session_id == session


def test_a_connection_is_left_without_a_thread_to_wait_for_its_end(
    server: rpc.RpcServer, refuse: Refuse
) -> None:
    with rpc.connect(server.url, client_id="c", options=SOON) as client:
        assert client.rpc("test", "same", 1, WAIT) == 1
        channel = channel_of(client)
        assert channel is not None
        refuse("*-closing")
        client.end_session()
        assert channel.wait_finished(WAIT)
        assert client.rpc("test", "same", 2, WAIT) == 2


def test_callbacks_of_a_client_wait_for_a_thread(refuse: Refuse) -> None:
    told: list[str] = []
    refuse("wsmux-rpc-c-callbacks", 2)
    gate = Gate()
    with rpc.serve([offered(gate)]) as server:
        client = rpc.connect(
            server.url, client_id="c", on_session_status=lambda status, _: told.append(status)
        )
        call = client.submit("test", "hangs", None, WAIT)
        assert gate.entered.wait(WAIT)
        client.end_session("enough")
        with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT: enough"):
            call.result(WAIT)
        assert told == []
        client.close()
        wait_for(lambda: told == ["created", "closed"])
        gate.opened.set()


def test_a_server_serves_though_its_callbacks_wait_for_a_thread(refuse: Refuse) -> None:
    told: list[str] = []
    refuse("wsmux-rpc-SERVER-callbacks")
    serving = {"on_session_transition": lambda status, _: told.append(status), "options": BRIEF}
    with rpc.serve([offered(Gate())], transport="tcp", **serving) as server:  # type: ignore[arg-type]
        with RawRiver.dial(server.port, "msgpack", websocket=False) as peer:
            peer.attach("session")
            assert server.handler.sessions == 1
        wait_for(lambda: server.handler.sessions == 0)
        wait_for(lambda: told == ["connected", "disconnected"])


@pytest.mark.parametrize("thread", ["*-upwards", "*-downwards"])
def test_a_stream_that_gets_no_thread_is_closed_and_the_next_one_is_used(
    thread: str, refuse: Refuse
) -> None:
    """At the client; the stream that is left over would count against the limits of both."""
    refuse(thread)
    with (
        rpc.handler([offered(Gate())]) as handler,
        wsmux.serve(stream_handler=handler) as server,
        wsmux.connect(server.url) as connection,
        rpc.connect(connection, options=SOON) as client,
    ):
        assert client.rpc("test", "same", 1, WAIT) == 1
        wait_for(lambda: connection.stats().streams == 1)
        client.close()
        wait_for(lambda: connection.stats().streams == 0)


def test_a_link_of_a_test_is_made_with_the_next_attempt(refuse: Refuse) -> None:
    refuse("wsmux-rpc-link")
    with testing.linked([offered(Gate())], options=SOON) as link:
        assert link.client.rpc("test", "same", 1, WAIT) == 1
