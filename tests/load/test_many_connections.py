"""Hold many connections that are idle, and echo once on each."""

from __future__ import annotations

import pytest

from ..helpers.fixtures import Tell
from ..helpers.load.measuring import run
from ..helpers.wires import NAMES

# Descriptors that a process keeps for waits to come, by design.
KEPT = 64


def test_idle_connections_need_two_threads_on_the_server_and_leave_none() -> None:
    figures = run("many_connections", "wsmux", 40)
    assert figures["far_threads_each"] == 2
    assert figures["near_threads_each"] == 1
    assert max(figures["descriptors_left"]) <= KEPT


@pytest.mark.long
@pytest.mark.parametrize("protocol", NAMES)
def test_a_thousand_idle_connections(protocol: str, tell: Tell) -> None:
    figures = run("many_connections", protocol, 1000, limit=300)
    tell(
        f"{protocol}: connected in {figures['connect_s']:.1f} s; each "
        f"{figures['far_kb_each']:.0f} KB and {figures['far_threads_each']:.0f} threads on the "
        f"server, {figures['near_kb_each']:.0f} KB and {figures['near_threads_each']:.0f} on the "
        f"client; echo p50 {figures['p50_ms']:.2f} ms, p99 {figures['p99_ms']:.2f} ms; "
        f"back to base in {figures['back_s']:.1f} s"
    )
    assert max(figures["far_kb_each"], figures["near_kb_each"]) <= 100
    assert figures["far_threads_each"] <= 2
    assert max(figures["descriptors_left"]) <= KEPT
