"""Snapshots say what stands still."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.mux.stats import Cause, Finding, HalfStatus, StreamStats, Wait


def stats(**changed: Any) -> StreamStats:
    """Return the stats of a stream on which bytes lie unread, and the peer may send no more."""
    full: dict[str, Any] = {
        "id": 1,
        "opened_here": True,
        "accepted": True,
        "reading": HalfStatus.OPEN,
        "writing": HalfStatus.OPEN,
        "window": 64,
        "unread_bytes": 64,
        "credit": 0,
        "peer_credit": 0,
        "bytes_received": 64,
        "bytes_sent": 0,
        "reader": None,
        "writer": None,
        "writer_has_credit": False,
        "bridged": False,
        "offered": None,
        "silent": 0.0,
    }
    return StreamStats(**(full | changed))


def test_a_stream_is_full_that_nobody_reads_and_that_holds_all_it_may() -> None:
    assert stats().full


@pytest.mark.parametrize(
    "changed",
    [
        {"unread_bytes": 0},
        {"peer_credit": 1},
        {"peer_credit": None},
        {"reader": Wait("reader", 1.0)},
        {"reading": HalfStatus.ENDED},
        {"reading": HalfStatus.CLOSED},
        {"reading": HalfStatus.FAILED},
    ],
    ids=str,
)
def test_a_stream_is_not_full_that_is_read_has_room_or_has_ended(changed: dict[str, Any]) -> None:
    assert not stats(**changed).full


def test_waiting_for_what_may_come_is_no_stall() -> None:
    still = {cause for cause in Cause if not cause.stalls}
    assert still == {Cause.ENDED, Cause.NOTHING_TO_READ, Cause.NO_STREAM}


def test_a_finding_is_its_sentence() -> None:
    finding = Finding(Cause.UNREAD, 3, "", 1.5, 10, "10 bytes lie unread on stream 3")
    assert str(finding) == f"{finding}" == "10 bytes lie unread on stream 3"
