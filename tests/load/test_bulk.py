"""Carry much, over one stream and over many, and beside readers that have stalled."""

from __future__ import annotations

import pytest

from ..helpers.fixtures import Tell
from ..helpers.load.measuring import run
from ..helpers.wires import NAMES

GIB = 2**30


def test_what_many_streams_carry_at_once_is_whole() -> None:
    assert run("bulk", "transfer", "wsmux", 5_000_000, 20)["unequal"] == 0


@pytest.mark.long
@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize("streams", [1, 100])
def test_8_gib_over_one_connection(streams: int, protocol: str, tell: Tell) -> None:
    figures = run("bulk", "transfer", protocol, 8 * GIB, streams, limit=900)
    tell(
        f"{protocol}: 8 GiB over {streams} in {figures['seconds']:.0f} s, "
        f"{figures['mb_per_s']:.0f} MB/s; memory near +{figures['near_more_mb']:.1f} MB, "
        f"far +{figures['far_more_mb']:.1f} MB"
    )
    assert figures["unequal"] == 0
    assert max(figures["near_more_mb"], figures["far_more_mb"]) <= 16


@pytest.mark.long
@pytest.mark.parametrize("protocol", NAMES)
def test_streams_beside_stalled_readers_keep_their_rate(protocol: str, tell: Tell) -> None:
    figures = run("bulk", "stalled", protocol, 30, 0.6, limit=300)
    tell(f"{protocol}: median ratio {figures['median']:.3f} of {len(figures['ratios'])} rounds")
    assert figures["median"] >= 0.9
