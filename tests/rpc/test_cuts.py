"""Connections that are cut lose nothing, double nothing, and no call hears of it.

The cuts are made by frames, not by time, and the conversation goes on until all of it has arrived.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.rpc.engine.dial import socket_over

from ..helpers.marking import wide
from ..helpers.rpc.cutting_relay import BEFORE, BEHIND, WITHIN, Cut, Relay, Side
from ..helpers.rpc.procedures import WAIT, carrier_name
from ..helpers.rpc.talk import BOTH, PATIENT, QUICK, TWO_CARRIERS, talk
from ..helpers.tables import each_case
from ..helpers.waiting import wait_for

CARRIERS = [(c, w) for w in (True, False) for c in ("json", "msgpack")]


def ten(how: str, sides: tuple[Side, ...]) -> list[Cut]:
    """Return ten cuts, at frames of both directions, before, within and behind them."""
    return [
        Cut(("client", "server")[number % 2], 3 + 4 * number, how, sides, number % 3 / 2)
        for number in range(10)
    ]


CLIENT: tuple[Side, ...] = ("client",)
SERVER: tuple[Side, ...] = ("server",)
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
@pytest.mark.parametrize("carrier", [TWO_CARRIERS[0], *wide(TWO_CARRIERS[1])], ids=carrier_name)
def test_ten_cuts_that_are_told(carrier: tuple[str, bool], how: Any) -> None:
    survive(carrier, ten(*how))


@pytest.mark.parametrize("carrier", TWO_CARRIERS, ids=carrier_name)
def test_ten_cuts_of_any_kind(carrier: tuple[str, bool]) -> None:
    kinds = [*TOLD, *UNTOLD]
    survive(carrier, [ten(*kinds[number % len(kinds)])[number] for number in range(10)])


@pytest.mark.long
@pytest.mark.parametrize("how", [*TOLD, *UNTOLD], ids=way)
@pytest.mark.parametrize("carrier", CARRIERS, ids=carrier_name)
def test_ten_cuts(carrier: tuple[str, bool], how: Any) -> None:
    survive(carrier, ten(*how))


# Cuts in quick succession, with the waits that everybody has.


def test_connections_that_are_cut_as_soon_as_they_are_made() -> None:
    with talk(("msgpack", True), options=rpc.Options()) as talking:
        assert talking.client.rpc("test", "same", 0, WAIT) == 0
        for _ in range(12):  # waits that are doubled each time would outgrow the grace
            talking.client.wait_connected(WAIT)
            made = len(talking.relay.counted)
            talking.relay.cut_all()
            wait_for(lambda made=made: len(talking.relay.counted) > made)  # type: ignore[misc]
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
    pytest.param(carrier, toward, index, id=f"{carrier_name(carrier)}-to_{toward}-{index}")
    for carrier in TWO_CARRIERS
    for toward, count in FRAMES[carrier[1]].items()
    for index in range(count)
]


@pytest.mark.parametrize("carrier", TWO_CARRIERS, ids=carrier_name)
def test_so_many_frames_are_there_to_cut(carrier: tuple[str, bool]) -> None:
    with talk(carrier, options=PATIENT) as talking:
        talking.one_by_one()
        assert talking.relay.counted == [FRAMES[carrier[1]]]


def survive_one(carrier: tuple[str, bool], cut: Cut) -> None:
    with talk(carrier, cut, options=options_for(cut)) as talking:
        talking.one_by_one()
        talking.check_unseen(3)
        wait_for(lambda: talking.relay.made == [cut])  # behind the last frame


@each_case
@pytest.mark.parametrize(("carrier", "toward", "index"), EVERY)
def test_a_reset_before_any_frame(carrier: tuple[str, bool], toward: Side, index: int) -> None:
    survive_one(carrier, Cut(toward, index, "reset", BOTH, BEFORE))


@each_case
@pytest.mark.parametrize("passed", [WITHIN, BEHIND], ids=["within", "behind"])
@pytest.mark.parametrize(("carrier", "toward", "index"), EVERY[::2])
def test_a_close_within_or_behind_a_frame(
    carrier: tuple[str, bool], toward: Side, index: int, passed: float
) -> None:
    survive_one(carrier, Cut(toward, index, "close", BOTH, passed))


@each_case
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
