"""Open many streams at once, one after the other, over a life, and up to the peer's limit.

The plain tests look at what happens; how long it takes and what it holds is for the long ones.
"""

from __future__ import annotations

from typing import Any

import pytest

from ..helpers.fixtures import Tell
from ..helpers.load.measuring import run
from ..helpers.wires import NAMES, WIRES

IN_WIRES = pytest.mark.parametrize("protocol", NAMES)

# Growth of the resident set that counts as none.
FLAT_MB = 2.0


def measured(name: str, protocol: str, *numbers: int, limit: float = 300.0) -> dict[str, Any]:
    return run("many_streams", name, protocol, *numbers, limit=limit)


def test_many_open_streams_need_no_thread_each() -> None:
    figures = measured("at_once", "wsmux", 300)
    assert figures["wrong"] == 0
    assert figures["near_threads"] + figures["far_threads"] == 4
    assert figures["more_threads"] == 0


def test_streams_that_have_ended_leave_the_tables() -> None:
    figures = measured("life", "wsmux", 1000)
    assert (figures["left_near"], figures["left_far"]) == (0, 0)


def test_more_files_than_streams_come_over_one_connection() -> None:
    figures = measured("files", "bymux", 199, 100, 100)
    assert (figures["right"], figures["refused"]) == (199, 0)


@pytest.mark.long
@IN_WIRES
def test_1999_files_come_over_one_connection_with_a_limit_of_1000(
    protocol: str, tell: Tell
) -> None:
    figures = measured("files", protocol, 1999, 1000, 1000)
    tell(f"{protocol}: {figures}")
    assert figures["right"] == 1999
    assert figures["most"] >= 1000
    if WIRES[protocol].opening_costs:  # on the others, an opening may overtake an end
        assert figures["refused"] == 0


@pytest.mark.long
@pytest.mark.parametrize("protocol", [name for name in NAMES if not WIRES[name].opening_costs])
def test_files_beyond_the_limit_are_refused_and_come_when_asked_again(protocol: str) -> None:
    figures = measured("files", protocol, 1999, 1000, 1999)
    assert figures["right"] == 1999
    assert figures["refused"] >= 999


@pytest.mark.long
@IN_WIRES
def test_10_000_streams_at_once(protocol: str, tell: Tell) -> None:
    figures = measured("at_once", protocol, 10_000)
    tell(
        f"{protocol}: 10,000 opened in {figures['open_s']:.2f} s, echoed in "
        f"{figures['echo_s']:.2f} s; idle near {figures['near_mb']:.1f} MB, "
        f"far {figures['far_mb']:.1f} MB; threads {figures['near_threads']} + "
        f"{figures['far_threads']}"
    )
    assert figures["wrong"] == 0
    assert max(figures["near_mb"], figures["far_mb"]) <= 40
    assert figures["near_threads"] + figures["far_threads"] <= 4


@pytest.mark.long
@IN_WIRES
def test_10_000_rounds_of_open_echo_and_close_leave_nothing(protocol: str, tell: Tell) -> None:
    figures = measured("sequence", protocol, 10_000)
    tell(f"{protocol}: median {figures['median_us']:.0f} us, mean {figures['mean_us']:.0f} us")
    assert (figures["left_near"], figures["left_far"]) == (0, 0)


@pytest.mark.long
@IN_WIRES
def test_a_million_streams_over_a_life_hold_no_memory(protocol: str, tell: Tell) -> None:
    figures = measured("life", protocol, 1_000_000, limit=1500)
    ends = {end: figures[f"{end}_mb"] for end in ("near", "far")}
    tell(
        f"{protocol}: {figures['opened']} streams in {figures['seconds']:.0f} s; "
        + "; ".join(f"{end} {', '.join(f'{mb:.1f}' for mb in ends[end])} MB" for end in ends)
    )
    assert (figures["left_near"], figures["left_far"]) == (0, 0)
    for samples in ends.values():
        assert max(samples) - samples[0] <= FLAT_MB
