"""Say in one place what differs between the wires, as their documentation has it.

Every test about streams runs over all of them. Where an outcome is not the same everywhere, the
test asks here what its wire promises, and asserts that.
"""

from __future__ import annotations

from typing import NamedTuple

import wsmux
from wsmux.config import SMALLEST_WINDOW

__all__ = ["NAMES", "WIRES", "Refusal", "Wire", "wire_of"]

# The close codes of a clean end.
CLEAN = (1000, 1001)


class Refusal(NamedTuple):
    """Say what the opener of a stream sees that nobody takes."""

    error: type[wsmux.StreamError]
    code: int


class Wire(NamedTuple):
    """Say what a wire promises.

    Attributes:
        name: what ``connect(protocol=)`` calls it.
        client_id, server_id: the first stream that each side opens; ids go up by two.
        resets: a reset is told, with its code, and voids what was not read. Else it looks like a
            clean end to who reads, and like a peer that reads no further to who writes; what was
            written stays valid.
        reserved_codes: some that no application may reset with.
        first_code, last_code: those that it may use, beside 0.
        refusal: how a stream ends that is refused as soon as it is seen; ``None`` as a reset that
            is not told.
        late_refusal: the same for one that waited in the accept queue first.
        unseen: the same for one that comes when its peer is going away already.
        stopped: what a writer gets when the peer reads no further; ``None`` where the wire has no
            word for it: what is written is dropped over there.
        end_waits: the end of a half goes out when all that it ends was read, so a reset behind it
            makes that void. Else what was ended stays whole.
        smallest_window: what a stream gets when memory is short.
        min_window: unread bytes that each stream may hold, whatever the connection's limit.
        opening_costs: opening a stream takes credit, which comes back when one ends: at
            ``Config.max_streams`` the opener waits. Else the stream is refused.
        tells_going_away: the peer's ``open_stream`` raises at once. Else each further stream is
            refused when it comes.
        opens_when_going_away: the side that is going away may open streams itself.
        pings_streams: the wire has a ping of single streams.
    """

    name: str
    client_id: int
    server_id: int
    resets: bool = True
    reserved_codes: tuple[int, ...] = (-1, 2**62)
    first_code: int = 1
    last_code: int = 2**62 - 1
    refusal: Refusal | None = None
    late_refusal: Refusal | None = None
    unseen: Refusal | None = None
    stopped: type[wsmux.StreamError] | None = wsmux.StreamWriteClosed
    end_waits: bool = False
    smallest_window: int = SMALLEST_WINDOW
    min_window: int = 0
    opening_costs: bool = False
    tells_going_away: bool = True
    opens_when_going_away: bool = True
    pings_streams: bool = False

    def ids(self, count: int) -> list[int]:
        """Return the ids of the first streams that a client opens."""
        return [self.client_id + 2 * n for n in range(count)]

    def seen_close(self, websocket: bool, code: int, reason: str) -> tuple[int, str | None]:
        """Return code and reason that ``close(code=, reason=)`` shows the peer.

        A reason of ``None`` may be any text. ``yamux`` ends what is no clean close with GO_AWAY 2,
        which comes before the Close of a WebSocket. On a plain socket ``yamux`` and ``bymux`` have
        nothing but their own words, and ``bymux`` has one for clean ends only: any other looks
        like a lost connection.
        """
        if self.name == "yamux" and code not in CLEAN:
            return 1011, None
        if websocket or self.name in ("wsmux", "js-ws"):
            return code, reason
        return (1000, "") if code in CLEAN else (1006, None)


WIRES = {
    wire.name: wire
    for wire in (
        Wire(
            name="wsmux",
            client_id=0,
            server_id=1,
            reserved_codes=(1, 63, -1, 2**62),
            first_code=64,
            refusal=Refusal(wsmux.StreamRefused, 3),
            late_refusal=Refusal(wsmux.StreamRefused, 3),
            unseen=Refusal(wsmux.StreamRefused, 0),
        ),
        Wire(
            name="js-ws",
            client_id=0,
            server_id=1,
            refusal=Refusal(wsmux.StreamReset, 0),  # all other codes are the application's
            late_refusal=Refusal(wsmux.StreamReset, 0),
            unseen=Refusal(wsmux.StreamReset, 0),
            stopped=wsmux.StreamReset,  # with code 0: an unasked stop is an error over there
            end_waits=True,
            tells_going_away=False,
        ),
        Wire(
            name="yamux",
            client_id=1,
            server_id=2,
            reserved_codes=(-1, 2**32),
            last_code=2**32 - 1,
            refusal=Refusal(wsmux.StreamRefused, 0),
            late_refusal=Refusal(wsmux.StreamReset, 0),  # its arrival was acknowledged
            unseen=Refusal(wsmux.StreamRefused, 0),
            stopped=None,
            smallest_window=256 * 1024,  # what both sides begin with
            min_window=256 * 1024,
        ),
        Wire(
            name="bymux",
            client_id=0,
            server_id=1,
            resets=False,
            opening_costs=True,
            opens_when_going_away=False,
            pings_streams=True,
        ),
    )
}
NAMES = tuple(WIRES)


def wire_of(end: wsmux.Connection | wsmux.Stream) -> Wire:
    """Return what the wire of a connection or stream promises."""
    connection = end.connection if isinstance(end, wsmux.Stream) else end
    return WIRES[connection.protocol]
