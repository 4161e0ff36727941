"""Pings are due after silence, answers count for earlier pings, and a silent peer is given up."""

from __future__ import annotations

import pytest

from wsmux.runtime.parking import Parker
from wsmux.transport.keepalive import MEASURE_INTERVAL, KeepAlive, Pings


def keep_alive(interval: float | None = 20.0, timeout: float | None = 5.0) -> KeepAlive:
    return KeepAlive(interval, timeout, 100.0)


def answered(alive: KeepAlive, number: int, now: float) -> bool:
    wakes: list[Parker] = []
    return alive.pong(number.to_bytes(8, "big"), now, wakes)


# Silence


def test_a_ping_is_due_after_the_interval_of_silence() -> None:
    alive = keep_alive()
    assert alive.next_timer() == 120.0
    assert not alive.due(119.9)
    assert alive.due(120.0)
    assert alive.silence(103.0) == 3.0


def test_each_byte_begins_the_interval_again() -> None:
    alive = keep_alive()
    assert not alive.heard(110.0)
    assert alive.next_timer() == 130.0
    assert alive.silence(110.0) == 0.0


def test_a_ping_into_silence_has_its_timeout() -> None:
    alive = keep_alive()
    assert alive.ask(120.0) == ((1).to_bytes(8, "big"), b"")
    assert alive.next_timer() == 125.0
    assert alive.lost(124.9) is None
    assert alive.unanswered(123.0) == 3.0
    assert alive.lost(125.0) == 25.0


def test_whatever_comes_answers_it_and_brings_the_timer_nearer() -> None:
    alive = keep_alive()
    alive.ask(120.0)
    assert alive.heard(121.0)
    assert alive.unanswered(121.0) is None
    assert alive.next_timer() == 141.0
    assert alive.lost(1000.0) is None


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_without_an_interval_nothing_is_ever_due(timeout: float | None) -> None:
    alive = keep_alive(None, timeout)
    assert alive.next_timer() is None
    assert not alive.due(1e9)
    assert alive.lost(1e9) is None


def test_without_a_timeout_a_silent_peer_is_asked_once_and_kept() -> None:
    alive = keep_alive(timeout=None)
    alive.asked(120.0)
    assert alive.next_timer() is None
    assert not alive.due(1e9)
    assert alive.lost(1e9) is None


# Answers


def test_an_answer_counts_for_every_ping_before_it() -> None:
    alive = keep_alive()
    first, _ = alive.new_ping(100.0)
    second, _ = alive.new_ping(101.0)
    third, _ = alive.new_ping(102.0)
    assert answered(alive, 2, 103.0)
    assert (first.rtt, second.rtt, third.rtt) == (3.0, 2.0, None)
    assert (alive.rtt, alive.least) == (2.0, 2.0)
    assert answered(alive, 3, 110.0)
    assert (alive.rtt, alive.least) == (8.0, 2.0)


@pytest.mark.parametrize("payload", [b"", b"\0" * 8, b"\0" * 7 + b"\x02", b"\xff" * 125])
def test_a_pong_that_nobody_asked_for_changes_nothing(payload: bytes) -> None:
    alive = keep_alive()
    ping, _ = alive.new_ping(100.0)
    assert not alive.pong(payload, 101.0, [])
    assert ping.rtt is alive.rtt is None
    assert answered(alive, 1, 101.0)


def test_an_answer_comes_once() -> None:
    alive = keep_alive()
    alive.new_ping(100.0)
    assert answered(alive, 1, 101.0)
    assert not answered(alive, 1, 102.0)


def test_a_mute_peer_costs_one_measurement_and_no_more() -> None:
    alive = keep_alive()
    taken = [alive.measure(100.0 + seconds * MEASURE_INTERVAL) for seconds in range(50)]
    assert None not in taken
    assert len(alive.pings) == 1
    assert alive.measure(100.0 + 49.5 * MEASURE_INTERVAL) is None


# Pings of streams


def test_streams_and_the_connection_have_answers_of_their_own() -> None:
    pings = Pings()
    whole, one, other = pings.new(0.0), pings.new(0.0, 4), pings.new(0.0, 8)
    assert pings.came_back(4, one.number, 1.0, []) == [one]
    assert (whole.rtt, one.rtt, other.rtt) == (None, 1.0, None)
    pings.ended(8, [])
    assert other.over
    assert not whole.over
    assert len(pings) == 1


def test_what_is_forgotten_is_no_longer_waited_for() -> None:
    pings = Pings()
    ping = pings.new(0.0)
    pings.forget(ping)
    pings.forget(ping)
    pings.forget(None)
    assert not pings
    assert pings.came_back(None, ping.number, 1.0, []) == []
    assert ping.rtt is None


def test_a_path_is_measured_again_after_a_while_and_a_lost_ping_is_forgotten() -> None:
    alive = KeepAlive(None, None, 0.0)
    assert alive.measure(1.0) is not None
    assert alive.measure(1.0 + MEASURE_INTERVAL / 2) is None
    ping = alive.measure(1.0 + MEASURE_INTERVAL)
    assert ping is not None
    assert len(alive.pings) == 1
    alive.pong(ping[0], 2.5, [])
    assert alive.least == alive.rtt == 0.5
    again = alive.measure(4.0)
    assert again is not None
    alive.pong(again[0], 5.0, [])
    assert (alive.least, alive.rtt) == (0.5, 1.0)
