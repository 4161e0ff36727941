"""A window is doubled when its reader takes half of it within a round trip: native and Bymux."""

from __future__ import annotations

import pytest

from wsmux.config import Config
from wsmux.protocols.base import Role
from wsmux.protocols.bymux import BymuxProtocol
from wsmux.protocols.bymux_packets import CLOSE, CREDIT, STOP_READ
from wsmux.protocols.flow_control import MAX_STREAM_WINDOW, GrowingWindow, WindowAutotuner
from wsmux.protocols.native import JS_WS, NativeProtocol
from wsmux.protocols.yamux import YamuxProtocol

from ..helpers import bymux_wire
from ..helpers.machine_pairs import ACK, BOTH_ROLES, DATA, message, native, opened, outbox, uint32

# Bytes of a window, of which half is returned at a time.
WINDOW = 8192
HALF = WINDOW // 2

# The same of Bymux, as numbers of one byte.
BYMUX_WINDOW = 100
BYMUX_HALF = BYMUX_WINDOW // 2

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
        half = (machine.peer_credit(stream_id) or 0) // 2
        take(machine, stream_id, half)
        assert machine.grow(1.0, RTT) == wanted


def test_a_stream_that_is_over_gives_its_growth_back() -> None:
    machine, stream_id = reading(Role.SERVER, max_connection_buffer=2 * WINDOW)
    other_id = stream_id + 2
    machine.receive_data(message(other_id, ACK, uint32(WINDOW)))
    machine.accept(other_id, WINDOW)
    for each, wanted in ((stream_id, 2 * WINDOW), (other_id, 0)):  # it has all there is
        take(machine, each)
        machine.grow(1.0, RTT)
        take(machine, each)
        assert machine.grow(1.0, RTT) == wanted
    machine.reset_read(stream_id, 100)
    machine.reset_write(stream_id, 100)
    take(machine, other_id)
    assert machine.grow(1.0, RTT) == 2 * WINDOW


def test_a_window_may_be_widened_while_bytes_are_in_it() -> None:
    window = GrowingWindow(10)
    window.receive(7)
    window.consume(2)
    window.widen(6)
    assert (window.size, window.available, window.unread()) == (16, 9, 5)


def test_growth_adds_up_and_is_taken_back_whole() -> None:
    window, growth = GrowingWindow(10), WindowAutotuner(1000)
    assert [growth.grow(window, now, 0.5) for now in (0.0, 0.25, 0.5)] == [0, 10, 20]
    assert (window.grown, growth.total) == (30, 30)
    growth.ended(window)
    assert growth.total == 0


@pytest.mark.parametrize(("later", "grows"), [(0.25, True), (0.5, False), (0.75, False)])
def test_a_window_that_took_just_so_long_does_not_grow(later: float, grows: bool) -> None:
    window, growth = GrowingWindow(10), WindowAutotuner(1000)
    growth.grow(window, 1.0, 0.5)
    assert bool(growth.grow(window, 1.0 + later, 0.5)) is grows


@BOTH_ROLES
def test_nothing_grows_before_anything_was_read(role: Role) -> None:
    machine, _ = reading(role)
    assert (machine.grow(1.0, RTT), outbox(machine)) == (0, [])


def test_windows_of_the_native_wire_grow() -> None:
    assert native(Role.CLIENT).grows


def test_windows_of_js_ws_do_not_grow() -> None:
    assert not native(Role.CLIENT, JS_WS).grows


def test_what_grows_its_windows_by_itself_says_so() -> None:
    machine = YamuxProtocol(Role.CLIENT, Config())
    assert not machine.grows
    assert machine.grow(1.0, RTT) == 0


# Bymux


def granted(role: Role) -> tuple[BymuxProtocol, int]:
    """Return a machine with a stream that it has opened, and nothing to send."""
    return bymux_wire.opened(role, local=True, window=BYMUX_WINDOW)


def take_packet(machine: BymuxProtocol, stream_id: int, count: int = BYMUX_HALF) -> None:
    """Receive bytes, and read them."""
    machine.receive_data(bymux_wire.write(stream_id, bytes(count)))
    machine.consumed(stream_id, count)


@BOTH_ROLES
def test_half_the_credit_of_bymux_within_a_round_trip_doubles_it(role: Role) -> None:
    machine, stream_id = granted(role)
    take_packet(machine, stream_id)
    assert machine.grow(1.0, RTT) == 0
    take_packet(machine, stream_id)
    assert machine.grow(1.05, RTT) == 2 * BYMUX_WINDOW
    amounts = (BYMUX_HALF, BYMUX_HALF, BYMUX_WINDOW)
    credit = [bymux_wire.packet(CREDIT, stream_id, amount) for amount in amounts]
    assert b"".join(outbox(machine)) == b"".join(credit)
    machine.receive_data(bymux_wire.write(stream_id, bytes(2 * BYMUX_WINDOW)))
    assert machine.peer_credit(stream_id) == 0


def test_bymux_grows_by_half_the_memory_of_the_connection_at_most() -> None:
    machine, stream_id = bymux_wire.opened(
        Role.SERVER, local=True, window=BYMUX_WINDOW, max_connection_buffer=101
    )
    for _ in range(2):
        take_packet(machine, stream_id)
        size = machine.grow(1.0, RTT)
    assert size == BYMUX_WINDOW + 50
    assert outbox(machine)[-1] == bymux_wire.packet(CREDIT, stream_id, 50)


def test_bymux_grows_only_what_was_granted_anew() -> None:
    machine, stream_id = granted(Role.SERVER)
    assert machine.grow(1.0, RTT) == 0
    take_packet(machine, stream_id)
    machine.grow(1.0, RTT)
    take_packet(machine, stream_id, 1)
    assert machine.grow(1.0, RTT) == 0


def test_bymux_does_not_grow_by_small_grants_to_a_peer_without_credit() -> None:
    machine, stream_id = granted(Role.SERVER)
    machine.receive_data(bymux_wire.write(stream_id, bytes(BYMUX_WINDOW)))
    for _ in range(BYMUX_HALF - 1):
        machine.consumed(stream_id, 1)
        assert machine.grow(1.0, RTT) == 0
    machine.consumed(stream_id, BYMUX_HALF)
    assert machine.grow(1.0, RTT) == 0  # nobody knows since when


def test_a_bymux_stream_that_is_over_gives_its_growth_back() -> None:
    machine, stream_id = bymux_wire.opened(
        Role.CLIENT, local=True, window=BYMUX_WINDOW, max_connection_buffer=2 * BYMUX_WINDOW
    )
    other_id = machine.open_stream(BYMUX_WINDOW)
    for each, wanted in ((stream_id, 2 * BYMUX_WINDOW), (other_id, 0)):  # it has all there is
        take_packet(machine, each)
        machine.grow(1.0, RTT)
        take_packet(machine, each)
        assert machine.grow(1.0, RTT) == wanted
    for kind in (CLOSE, STOP_READ):
        machine.receive_data(bymux_wire.packet(kind, stream_id))
    assert machine.open_streams() == 1
    take_packet(machine, other_id)
    assert machine.grow(1.0, RTT) == 2 * BYMUX_WINDOW


def test_bymux_grants_nothing_where_nothing_further_is_read() -> None:
    machine, stream_id = granted(Role.CLIENT)
    machine.receive_data(bymux_wire.write(stream_id, bytes(BYMUX_HALF)))
    machine.close_read(stream_id)
    outbox(machine)
    machine.consumed(stream_id, BYMUX_HALF)
    machine.accept(stream_id, 2 * BYMUX_WINDOW)
    assert (machine.grow(1.0, RTT), outbox(machine)) == (0, [])
