"""A window of the native wire is doubled when its reader takes half of it within a round trip."""

from __future__ import annotations

import pytest

from wsmux.config import Config
from wsmux.protocols.base import Role
from wsmux.protocols.bymux import BymuxProtocol
from wsmux.protocols.dialects import JS_WS
from wsmux.protocols.native import NativeProtocol
from wsmux.protocols.windows import MAX_STREAM_WINDOW

from .pairs import ACK, BOTH_ROLES, DATA, message, native, opened, outbox, uint32

# Bytes of a window, of which half is returned at a time.
WINDOW = 8192
HALF = WINDOW // 2

# Seconds of a round trip.
RTT = 0.1


def reading(role: Role, **limits: int) -> tuple[NativeProtocol, int]:
    """Return a machine with a stream of the peer's that it has taken, and nothing to send."""
    return opened(role, local=False, **{"receive_window": WINDOW} | limits)


def take(machine: NativeProtocol, stream_id: int, count: int = HALF) -> None:
    """Receive bytes, and read them."""
    machine.receive_data(message(stream_id, DATA, bytes(count)))
    machine.consumed(stream_id, count)


@BOTH_ROLES
def test_half_a_window_within_a_round_trip_doubles_it(role: Role) -> None:
    machine, stream_id = reading(role)
    take(machine, stream_id)
    assert machine.grow(1.0, RTT) == 0  # nobody knows since when
    take(machine, stream_id)
    assert machine.grow(1.05, RTT) == 2 * WINDOW
    assert outbox(machine) == [message(stream_id, ACK, uint32(n)) for n in (HALF, HALF, WINDOW)]
    machine.receive_data(message(stream_id, DATA, bytes(2 * WINDOW)))  # is within the credit


@pytest.mark.parametrize(("later", "rtt"), [(0.1, RTT), (60.0, RTT), (0.0, None)])
def test_a_slow_reader_or_an_unknown_path_changes_nothing(later: float, rtt: float | None) -> None:
    machine, stream_id = reading(Role.SERVER)
    take(machine, stream_id)
    machine.grow(1.0, rtt)
    take(machine, stream_id)
    assert machine.grow(1.0 + later, rtt) == 0
    assert outbox(machine) == [message(stream_id, ACK, uint32(HALF))] * 2


def test_only_a_window_that_was_returned_grows() -> None:
    machine, stream_id = reading(Role.SERVER)
    take(machine, stream_id)
    machine.grow(1.0, RTT)
    take(machine, stream_id, 1)
    assert machine.grow(1.0, RTT) == 0


def test_no_window_grows_beyond_the_largest() -> None:
    limits = {"receive_window": MAX_STREAM_WINDOW, "max_connection_buffer": 2**40}
    machine, stream_id = reading(Role.SERVER, **limits)
    for _ in range(2):
        take(machine, stream_id, MAX_STREAM_WINDOW // 2)
        assert machine.grow(1.0, RTT) == 0


def test_all_windows_together_grow_by_half_of_what_a_connection_may_hold() -> None:
    machine, stream_id = reading(Role.SERVER, max_connection_buffer=8 * WINDOW)
    for wanted in (0, 2 * WINDOW, 4 * WINDOW, 5 * WINDOW, 0):
        half = machine._streams[stream_id].window.size // 2
        take(machine, stream_id, half)
        assert machine.grow(1.0, RTT) == wanted


def test_a_stream_that_is_over_gives_its_growth_back() -> None:
    machine, stream_id = reading(Role.SERVER)
    for _ in range(2):
        take(machine, stream_id)
        machine.grow(1.0, RTT)
    assert machine._growth.total == WINDOW
    machine.reset_read(stream_id, 100)
    machine.reset_write(stream_id, 100)
    assert machine._growth.total == 0


def test_windows_of_js_ws_do_not_grow() -> None:
    assert not native(Role.CLIENT, JS_WS).grows


def test_what_has_no_windows_of_its_own_to_grow_says_so() -> None:
    machine = BymuxProtocol(Role.CLIENT, Config())
    assert not machine.grows
    assert machine.grow(1.0, RTT) == 0
