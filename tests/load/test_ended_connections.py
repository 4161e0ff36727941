"""What has ended is freed at once, by counting references, and not when a collector comes."""

from __future__ import annotations

import pytest

from ..helpers.fixtures import Tell
from ..helpers.load.ended_connections import STANDS
from ..helpers.load.measuring import run
from ..helpers.marking import wide


@pytest.mark.parametrize("how", STANDS)
@pytest.mark.parametrize("protocol", ["wsmux", *wide("js-ws", "yamux", "bymux")])
def test_nothing_of_an_ended_connection_is_alive(protocol: str, how: str) -> None:
    figures = run("ended_connections", protocol, 10, how)
    assert figures["alive"] == {}


@pytest.mark.tools
def test_a_thousand_connections_come_and_go_in_the_same_memory(tell: Tell) -> None:
    figures = run("ended_connections", "wsmux", 1000, "close", limit=300)
    tell(f"{figures['grown_mb']:.1f} MB in 800 connections, {figures['seconds']:.1f} s")
    assert figures["alive"] == {}
    # 5 KB each: less than any one buffer of a connection. Allocators keep some at any count.
    assert figures["grown_mb"] <= 4.0
