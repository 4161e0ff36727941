"""Subscriptions of River that wait take nothing from other clients."""

from __future__ import annotations

import pytest

from ..helpers.fixtures import Tell
from ..helpers.load.idle_subscriptions import CALLS, FEW
from ..helpers.load.measuring import run

TURNS = 3


@pytest.mark.long
@pytest.mark.parametrize("count", [1000])
def test_idle_subscriptions_take_neither_calls_nor_threads(count: int, tell: Tell) -> None:
    figures = run("idle_subscriptions", count, TURNS)
    for name in ("alone", "beside"):
        phase = figures[name]
        tell(
            f"{name}: {phase['rate']:.0f} rpc/s, p50 {phase['p50_ms']:.2f} ms, "
            f"p99 {phase['p99_ms']:.2f} ms, {phase['threads']} threads of the server"
        )
        assert phase["answered"] == [CALLS] * TURNS
    assert figures["heard"] == count * TURNS
    assert figures["beside"]["threads"] <= figures["alone"]["threads"] + FEW
