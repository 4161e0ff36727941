"""Connections that are cut lose nothing, double nothing, and no call hears of it.

The cuts are made by frames, not by time, and the conversation goes on until all of it has arrived.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.rpc.engine.dial import socket_over

from ..helpers.rpc.cutting_relay import BEFORE, BEHIND, WITHIN, Cut, Relay, Side
from ..helpers.rpc.noted_calls import Witness
from ..helpers.rpc.procedures import WAIT
from ..helpers.waiting import wait_for

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
PATIENT = replace(QUICK, heartbeat_interval=WAIT)

CARRIERS = [(c, w) for w in (True, False) for c in ("json", "msgpack")]
TWO_CARRIERS = [("msgpack", True), ("json", False)]


def name(carrier: tuple[str, bool]) -> str:
    return f"{carrier[0]}-{'websocket' if carrier[1] else 'tcp'}"


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


def ten(how: str, sides: tuple[Side, ...]) -> list[Cut]:
    """Return ten cuts, at frames of both directions, before, within and behind them."""
    return [
        Cut(("client", "server")[number % 2], 3 + 4 * number, how, sides, number % 3 / 2)
        for number in range(10)
    ]


CLIENT: tuple[Side, ...] = ("client",)
SERVER: tuple[Side, ...] = ("server",)
BOTH: tuple[Side, ...] = ("client", "server")

TOLD = [(how, sides) for how in ("reset", "close") for sides in (CLIENT, BOTH)]
# The client hears nothing, until it has heard nothing for too long.
UNTOLD = [("reset", SERVER), ("close", SERVER), ("swallow", BOTH)]


def options_for(*cuts: Cut) -> rpc.Options:
    told = all(cut.how != "swallow" and "client" in cut.sides for cut in cuts)
    return PATIENT if told else QUICK


def way(how: Any) -> str:
    return f"{how[0]}-{'_and_'.join(how[1])}"


def survive(carrier: tuple[str, bool], cuts: list[Cut]) -> None:
    with talk(carrier, *cuts, options=options_for(*cuts)) as talking:
        talking.all_at_once(1000)
        talking.check_unseen(1000)
        assert talking.relay.made == cuts


@pytest.mark.parametrize("how", TOLD, ids=way)
@pytest.mark.parametrize("carrier", TWO_CARRIERS, ids=name)
def test_ten_cuts_that_are_told(carrier: tuple[str, bool], how: Any) -> None:
    survive(carrier, ten(*how))


@pytest.mark.parametrize("carrier", TWO_CARRIERS, ids=name)
def test_ten_cuts_of_any_kind(carrier: tuple[str, bool]) -> None:
    kinds = [*TOLD, *UNTOLD]
    survive(carrier, [ten(*kinds[number % len(kinds)])[number] for number in range(10)])


@pytest.mark.long
@pytest.mark.parametrize("how", [*TOLD, *UNTOLD], ids=way)
@pytest.mark.parametrize("carrier", CARRIERS, ids=name)
def test_ten_cuts(carrier: tuple[str, bool], how: Any) -> None:
    survive(carrier, ten(*how))


# Cuts in quick succession, with the waits that everybody has.


def test_connections_that_are_cut_as_soon_as_they_are_made() -> None:
    with talk(("msgpack", True), options=rpc.Options()) as talking:
        assert talking.client.rpc("test", "same", 0, WAIT) == 0
        for made in range(1, 13):  # waits that are doubled each time would outgrow the grace
            wait_for(lambda made=made: len(talking.relay.counted) == made)  # type: ignore[misc]
            talking.client.wait_connected(WAIT)
            talking.relay.cut_all()
        talking.one_by_one()
        assert talking.statuses == ["created", "created"]


@pytest.mark.long
def test_a_client_that_is_cut_every_half_second_for_a_minute_keeps_its_session() -> None:
    with (
        talk(("msgpack", True), options=rpc.Options()) as talking,
        ThreadPoolExecutor(8) as pool,
    ):
        over = threading.Event()

        def call(first: int) -> int:
            number = first
            while not over.is_set():
                assert talking.client.rpc("test", "same", number, WAIT) == number
                number += 8
            return number - first

        calls = [pool.submit(call, first) for first in range(8)]
        for _ in range(120):
            over.wait(0.5)
            talking.relay.cut_all()
        over.set()
        assert min(each.result(WAIT) for each in calls) >= 8 * 100
        assert talking.statuses == ["created", "created"]


# Every frame. Over a WebSocket the first of each direction is the upgrade, the next the handshake.

FRAMES: dict[bool, dict[Side, int]] = {
    True: {"server": 14, "client": 12},
    False: {"server": 13, "client": 11},
}

EVERY = [
    pytest.param(carrier, toward, index, id=f"{name(carrier)}-to_{toward}-{index}")
    for carrier in TWO_CARRIERS
    for toward, count in FRAMES[carrier[1]].items()
    for index in range(count)
]


@pytest.mark.parametrize("carrier", TWO_CARRIERS, ids=name)
def test_so_many_frames_are_there_to_cut(carrier: tuple[str, bool]) -> None:
    with talk(carrier, options=PATIENT) as talking:
        talking.one_by_one()
        assert talking.relay.counted == [FRAMES[carrier[1]]]


def survive_one(carrier: tuple[str, bool], cut: Cut) -> None:
    with talk(carrier, cut, options=options_for(cut)) as talking:
        talking.one_by_one()
        talking.check_unseen(3)
        wait_for(lambda: talking.relay.made == [cut])  # behind the last frame


@pytest.mark.parametrize(("carrier", "toward", "index"), EVERY)
def test_a_reset_before_any_frame(carrier: tuple[str, bool], toward: Side, index: int) -> None:
    survive_one(carrier, Cut(toward, index, "reset", BOTH, BEFORE))


@pytest.mark.parametrize("passed", [WITHIN, BEHIND], ids=["within", "behind"])
@pytest.mark.parametrize(("carrier", "toward", "index"), EVERY[::2])
def test_a_close_within_or_behind_a_frame(
    carrier: tuple[str, bool], toward: Side, index: int, passed: float
) -> None:
    survive_one(carrier, Cut(toward, index, "close", BOTH, passed))


@pytest.mark.parametrize(("carrier", "toward", "index"), EVERY[::3])
def test_a_frame_that_vanishes_with_all_behind_it(
    carrier: tuple[str, bool], toward: Side, index: int
) -> None:
    survive_one(carrier, Cut(toward, index, "swallow", BOTH))


@pytest.mark.long
@pytest.mark.parametrize("passed", [BEFORE, WITHIN, BEHIND], ids=["before", "within", "behind"])
@pytest.mark.parametrize("how", [*TOLD, *UNTOLD], ids=way)
@pytest.mark.parametrize(("carrier", "toward", "index"), EVERY)
def test_a_cut_at_any_frame(
    carrier: tuple[str, bool], toward: Side, index: int, how: Any, passed: float
) -> None:
    survive_one(carrier, Cut(toward, index, *how, passed))


# Other carriers


@pytest.mark.parametrize("how", [("reset", BOTH), ("swallow", BOTH)], ids=way)
def test_unix_sockets(how: Any, tmp_path: Path) -> None:
    cuts = ten(*how)[: 10 if how[0] == "reset" else 3]
    with talk(
        ("msgpack", False), *cuts, options=options_for(*cuts), path=str(tmp_path / "river")
    ) as talking:
        talking.all_at_once(1000)
        talking.check_unseen(1000)
        assert talking.relay.made == cuts


@pytest.mark.parametrize("how", [("reset", BOTH), ("swallow", BOTH)], ids=way)
def test_streams_of_a_connection(how: Any) -> None:
    """Each connection of the session is a stream; what is cut is what the server's end carries."""
    near, far = wsmux.pair()
    threads: list[threading.Thread] = []

    def connect(relay: Relay) -> wsmux.Connection:
        def accept() -> None:
            for stream in far:
                relay.join(socket_over(stream))

        threads.append(threading.Thread(target=accept))
        threads[0].start()
        return near

    cuts = ten(*how)[: 10 if how[0] == "reset" else 3]
    try:
        with talk(("json", False), *cuts, options=options_for(*cuts), connect=connect) as talking:
            talking.all_at_once(1000)
            talking.check_unseen(1000)
            assert talking.relay.made == cuts
    finally:
        near.close()
        far.close()
        threads[0].join(WAIT)
