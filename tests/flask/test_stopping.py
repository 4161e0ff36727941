"""A WSGI server that stops ends River's sessions first, and gives up what its services hold.

What becomes of connections of ``Mux`` then, ``tests/faults/test_kills.py`` shows.
"""

from __future__ import annotations

import signal
import subprocess

import pytest

from wsmux import rpc
from wsmux.rpc.errors import UNEXPECTED_DISCONNECT

from ..helpers.commands import PATIENCE
from ..helpers.drained_server import drained
from ..helpers.raw_peer import WAIT

OTHER_SERVERS = [pytest.param(kind, marks=pytest.mark.long) for kind in ("gevent", "werkzeug")]
SERVERS = pytest.mark.parametrize("kind", ["gthread", *OTHER_SERVERS])

TOLD = ["the call has ended", "disposed of the state"]


def hanging(client: rpc.Client) -> tuple[rpc.Subscription[int], int]:
    """Begin a call that does not end by itself; return it with the process that serves it."""
    client.wait_connected(PATIENCE)
    call = client.subscribe("drained", "hang", None)
    return call, call.read(WAIT)


def lost(call: rpc.Subscription[int]) -> bool:
    with pytest.raises(rpc.RiverError) as caught:
        call.read(WAIT)
    return caught.value.code == UNEXPECTED_DISCONNECT


def told(process: subprocess.Popen[str]) -> list[str]:
    """Return what the application has told of calls and states."""
    assert process.stderr is not None
    return [line.strip() for line in process.stderr if line.strip() in TOLD]


@SERVERS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_sessions_and_disposes_of_states(kind: str, number: signal.Signals) -> None:
    with (
        drained(kind) as (process, url),
        rpc.connect(f"{url}river", options=rpc.Options(session_disconnect_grace=0.1)) as client,
    ):
        call, _ = hanging(client)
        process.send_signal(number)
        process.wait(PATIENCE)
        assert lost(call)
        assert told(process) == TOLD


def test_a_state_is_disposed_of_though_nobody_is_connected() -> None:
    with drained("gthread") as (process, url):
        with rpc.connect(f"{url}river") as client:
            client.wait_connected(PATIENCE)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        assert told(process) == ["disposed of the state"]


def test_a_reload_moves_a_client_to_the_new_worker() -> None:
    with drained("gthread") as (process, url), rpc.connect(f"{url}river") as client:
        call, before = hanging(client)
        process.send_signal(signal.SIGHUP)
        assert lost(call)
        assert client.rpc("drained", "pid", None, WAIT) != before
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        assert told(process) == [*TOLD, "disposed of the state"]
