"""Hold many connections that are idle, and echo once on each."""

from __future__ import annotations

import pytest

from wsmux.transport.shared_io import OWN

from ..helpers.fixtures import Tell
from ..helpers.load.measuring import run
from ..helpers.wires import NAMES

# Descriptors that a process keeps for waits to come, by design.
KEPT = 64


def test_idle_connections_share_a_thread_but_for_the_first_and_leave_none() -> None:
    figures = run("many_connections", "wsmux", 40)
    assert figures["far_threads"] == 40 + OWN + 1
    assert figures["near_threads"] == OWN + 1
    assert max(figures["descriptors_left"]) <= KEPT


@pytest.mark.long
@pytest.mark.parametrize("protocol", NAMES)
def test_a_thousand_idle_connections(protocol: str, tell: Tell) -> None:
    figures = run("many_connections", protocol, 1000, limit=300)
    tell(
        f"{protocol}: connected in {figures['connect_s']:.1f} s; each "
        f"{figures['far_kb_each']:.0f} KB on the server, {figures['near_kb_each']:.0f} KB on the "
        f"client; {figures['far_threads']} and {figures['near_threads']} threads; "
        f"echo p50 {figures['p50_ms']:.2f} ms, p99 {figures['p99_ms']:.2f} ms; "
        f"back to base in {figures['back_s']:.1f} s"
    )
    assert max(figures["far_kb_each"], figures["near_kb_each"]) <= 100
    assert figures["far_threads"] == 1000 + OWN + 1
    assert figures["near_threads"] == OWN + 1
    assert max(figures["descriptors_left"]) <= KEPT
