"""Write on native streams that nobody has accepted, and accept them late or never."""

from __future__ import annotations

from typing import Any

import pytest

import wsmux
from wsmux.config import SMALLEST_WINDOW

from ..helpers.carriers import IN_PROCESS
from ..helpers.connections import Join
from ..helpers.inside import early_credit_of
from ..helpers.joined_streams import open_pair
from ..helpers.scripted import WAIT
from ..helpers.stream_outcomes import check_read_of_reset
from ..helpers.waiting import wait_for

pytestmark = pytest.mark.parametrize(
    "carrier", [c for c in IN_PROCESS if c.protocol == "wsmux"], ids=str
)

# Which end opens, and which accepts.
EITHER_OPENER = pytest.mark.parametrize(
    "sides", [("client", "server"), ("server", "client")], ids=["client opens", "server opens"]
)
Sides = tuple[str, str]
Acquainted = tuple[wsmux.Connection, wsmux.Connection]


def acquainted(join_ends: Join, sides: Sides, **limits: Any) -> Acquainted:
    """Return the opener and the accepter, in this order; the opener has heard of a window."""
    opener, accepter = sides
    ends = join_ends(**{accepter: {"config": wsmux.Config(**limits)}})
    near, far = getattr(ends, opener), getattr(ends, accepter)
    streams = open_pair(near, far)
    wait_for(lambda: early_credit_of(near) == SMALLEST_WINDOW)
    for stream in streams:
        stream.close()
    wait_for(lambda: not near.stats().streams)
    return near, far


@EITHER_OPENER
def test_what_came_before_a_stream_was_accepted_is_read_late(join_ends: Join, sides: Sides) -> None:
    opener, accepter = acquainted(join_ends, sides)
    words = [b"one", b"two", b"three"]
    for word in words:
        with opener.open_stream(WAIT) as stream:
            stream.write(word)
    wait_for(lambda: accepter.stats().unread_bytes == 11)
    wait_for(lambda: not opener.stats().streams)
    assert [accepter.accept_stream(WAIT).readall() for _ in words] == words


@EITHER_OPENER
def test_what_is_early_on_a_stream_that_nobody_accepts_harms_no_other(
    join_ends: Join, sides: Sides
) -> None:
    opener, accepter = acquainted(join_ends, sides, open_timeout=0.5)
    for _ in range(3):
        stream = opener.open_stream(WAIT)
        stream.write(bytes(SMALLEST_WINDOW))
        with pytest.raises(wsmux.StreamRefused):
            stream.read()
    wait_for(lambda: accepter.stats().unread_bytes == 0)
    assert accepter.stats().unaccepted == 0
    near, far = open_pair(accepter, opener)
    near.write(b"x")
    assert far.read(1) == b"x"


@EITHER_OPENER
def test_early_bytes_of_streams_not_accepted_count_for_the_connection(
    join_ends: Join, sides: Sides
) -> None:
    limit = 3 * SMALLEST_WINDOW
    opener, accepter = acquainted(join_ends, sides, max_connection_buffer=limit)
    streams = [opener.open_stream(WAIT) for _ in range(4)]
    for stream in streams[:3]:
        stream.write(bytes(SMALLEST_WINDOW))
    wait_for(lambda: accepter.stats().unread_bytes == limit)
    streams[3].write(b"x" * SMALLEST_WINDOW)
    check_read_of_reset(streams[0], code=2)
    wait_for(lambda: accepter.stats().unread_bytes == limit)
    with pytest.raises(wsmux.StreamReset, match="max_connection_buffer"):
        accepter.accept_stream(WAIT).read()
    for stream in streams[1:]:
        stream.close_write()
        assert len(accepter.accept_stream(WAIT).readall()) == SMALLEST_WINDOW
