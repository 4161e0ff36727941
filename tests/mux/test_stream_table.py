"""The stream table keeps to its limits exactly, in every wire; what time it is the test says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

import wsmux
from wsmux.config import MAX_HEAD, SMALLEST_WINDOW
from wsmux.mux.error_codes import ErrorCodeMap
from wsmux.mux.ping import WirePings
from wsmux.mux.stream_record import StreamRecord, write_closed
from wsmux.mux.stream_table import PRESSURE, StreamTable
from wsmux.protocols.base import MuxProtocol, Role
from wsmux.protocols.events import DataReceived, Event, OpenPermitted
from wsmux.protocols.registry import wire
from wsmux.runtime.parking import Parker, Waiter, borrow
from wsmux.transport.message_transport import MessageTransport

from ..helpers.wires import NAMES, WIRES

START = 1000.0

# A wire where a stream too many is refused, rather than never opened.
REFUSING = [name for name in NAMES if not WIRES[name].opening_costs]


class Side:
    """One end: its machine and, at the server, the table that applies what it reports."""

    def __init__(self, name: str, role: Role, **limits: Any) -> None:
        limits = {"half_open_timeout": None, "message_timeout": None, **limits}
        config = wsmux.Config(**limits)
        self.machine: MuxProtocol = wire(name).over_bytes(role, config, None)[1]
        self.table = StreamTable(
            self.machine,
            config,
            ErrorCodeMap(64, 2**32 - 1, None, None),
            WirePings(self.machine, cast(MessageTransport, SimpleNamespace())),
            accept_streams=True,
            start_on_data=False,
            now=START,
        )

    def take(self, other: Side, now: float = START) -> None:
        """Take everything that the other end has to say, and do what is due."""
        for head, body in other.machine.control_to_send() + other.machine.data_to_send():
            self.machine.receive_data(head + bytes(body))
            self.apply(now)
        self.machine.handle_timer(now)

    def apply(self, now: float = START) -> None:
        wakes: list[Parker] = []
        self.table.apply(now, wakes)


class Ends:
    """A client that opens streams, and a server with limits."""

    def __init__(self, name: str, **limits: Any) -> None:
        self.client = Side(name, Role.CLIENT)
        self.server = Side(name, Role.SERVER, **limits)
        self.client.take(self.server)
        self.server.take(self.client)

    def open(self, count: int, now: float = START) -> list[int]:
        """Open streams at the client; return their ids, when both know what became of them."""
        opened = [self.client.table.open(START).id for _ in range(count)]
        self.server.take(self.client, now)
        self.client.take(self.server)
        return opened


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


# Ids that a peer uses again


@pytest.mark.parametrize("name", ["yamux", "bymux"])
def test_errors_name_the_id_that_users_see(name: str) -> None:
    ends = Ends(name)
    (stream_id,) = ends.open(1)
    record = ends.server.table.records[stream_id]
    record.id += 2**64
    assert record.number == stream_id
    wakes: list[Parker] = []
    ends.server.table.shed(record, "as the test asked", wakes)
    assert record.read_failure is not None
    error = record.read_failure()
    assert isinstance(error, wsmux.StreamError)
    assert error.stream_id == stream_id


# How many


@pytest.mark.parametrize("name", REFUSING)
def test_so_many_streams_of_the_peer_are_taken_and_no_more(name: str) -> None:
    ends = Ends(name, max_streams=3)
    kept = ends.open(3)
    assert list(ends.server.table.records) == kept
    assert ends.client.machine.open_streams() == 3
    ends.open(1)
    assert list(ends.server.table.records) == kept
    assert ends.server.machine.open_streams() == ends.client.machine.open_streams() == 3


@pytest.mark.parametrize("name", REFUSING)
def test_a_stream_that_has_ended_makes_room_for_one(name: str) -> None:
    ends = Ends(name, max_streams=3)
    ended = ends.server.table.records[ends.open(3)[0]]
    ends.server.table.reset(ended, 0)
    ends.server.apply()
    for _ in range(3):
        ends.client.take(ends.server)
        ends.server.take(ends.client)
    assert len(ends.server.table.records) == 2
    ends.open(2)
    assert len(ends.server.table.records) == 3


def test_where_opening_costs_so_many_may_be_opened_and_no_more() -> None:
    ends = Ends("bymux", max_streams=3)
    ends.open(3)
    assert len(ends.server.table.records) == 3
    assert not ends.client.machine.may_open()


def test_own_streams_do_not_count(name: str) -> None:
    ends = Ends(name, max_streams=3)
    for _ in range(4):
        ends.server.table.open(START)
    ends.client.take(ends.server)
    ends.server.take(ends.client)
    assert len(ends.open(3)) == 3
    assert len(ends.server.table.records) == 7


def test_so_many_unaccepted_streams_are_kept_and_no_more(name: str) -> None:
    ends = Ends(name, max_unaccepted=3)
    kept = ends.open(3)
    assert (ends.server.table.unaccepted, ends.server.table.refused) == (3, 0)
    ends.open(1)
    assert [record.id for record in ends.server.table.offered] == kept
    assert (ends.server.table.unaccepted, ends.server.table.refused) == (3, 1)


def test_each_accepted_stream_makes_room_for_one(name: str) -> None:
    ends = Ends(name, max_unaccepted=3)
    first = ends.open(3)[0]
    assert ends.server.table.take_offered().id == first
    ends.open(2)
    assert (ends.server.table.unaccepted, ends.server.table.refused) == (3, 1)


@pytest.mark.parametrize("name", REFUSING)
def test_so_many_opens_may_be_unanswered_and_no_more(name: str) -> None:
    client = Side(name, Role.CLIENT, max_pending_opens=3)
    for _ in range(3):
        assert client.machine.may_open()
        client.table.open(START)
    assert not client.machine.may_open()


@pytest.mark.parametrize("name", REFUSING)
def test_the_answer_that_makes_room_permits_an_open(name: str) -> None:
    """And the next one does not say it again: an opener may already."""
    client, server = Side(name, Role.CLIENT, max_pending_opens=2), Side(name, Role.SERVER)
    for _ in range(2):
        client.table.open(START)
    server.take(client)
    permitted = []
    for head, body in server.machine.control_to_send() + server.machine.data_to_send():
        client.machine.receive_data(head + bytes(body))
        permitted += [OpenPermitted() in client.machine.events()]
    assert permitted[:2] == [True, False]
    assert client.machine.may_open()


# How long


@pytest.mark.parametrize(("seconds", "refused"), [(9.999, 0), (10.0, 1)])
def test_a_stream_waits_to_be_accepted_for_its_time(
    name: str, seconds: float, refused: int
) -> None:
    ends = Ends(name, open_timeout=10.0)
    ends.open(1, START + 5)
    assert ends.server.table.next_timer() == START + 15
    ends.server.table.refuse_late(START + 5 + seconds)
    assert (ends.server.table.refused, ends.server.table.unaccepted) == (refused, 1 - refused)


def test_each_stream_waits_for_its_own_time(name: str) -> None:
    ends = Ends(name, open_timeout=10.0)
    ends.open(1, START)
    late = ends.open(1, START + 4)
    ends.server.table.refuse_late(START + 10)
    assert [record.id for record in ends.server.table.offered] == late
    assert ends.server.table.next_timer() == START + 14


def test_without_a_time_a_stream_waits_for_ever(name: str) -> None:
    ends = Ends(name, open_timeout=None)
    ends.open(1)
    ends.server.table.refuse_late(START + 1e9)
    assert ends.server.table.unaccepted == 1


def test_the_idle_time_begins_with_the_connection(name: str) -> None:
    assert Side(name, Role.SERVER, idle_timeout=50.0).table.next_timer() == START + 50


def test_the_idle_time_begins_anew_when_the_last_stream_ends(name: str) -> None:
    ends = Ends(name, idle_timeout=50.0, open_timeout=None)
    first, second = ends.open(2)
    table = ends.server.table
    assert table.idle_since is None
    for stream_id, now in ((first, START + 7), (second, START + 8)):
        assert table.idle_since is None
        table.reset(table.records[stream_id], 0)
        ends.server.apply(now)
        for _ in range(3):
            ends.client.take(ends.server, now)
            ends.server.take(ends.client, now)
    assert table.idle_since == START + 8
    assert table.next_timer() == START + 58


# What the peer does


class Ringing(Waiter):
    """Wait without a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._parker = borrow()


def watched(ends: Ends) -> tuple[StreamRecord, list[Parker], int]:
    """Open a stream that the server accepts; return its entry, its two bells, and its id."""
    (stream_id,) = ends.open(1)
    record = ends.server.table.take_offered()
    record.reader, record.writer = Ringing(), Ringing()
    return record, [cast(Parker, w._parker) for w in (record.reader, record.writer)], stream_id


def told(ends: Ends) -> list[Parker]:
    """Pass on what the client has to say; return whom the server wakes."""
    wakes: list[Parker] = []
    machine = ends.client.machine
    for head, body in machine.control_to_send() + machine.data_to_send():
        ends.server.machine.receive_data(head + bytes(body))
        ends.server.table.apply(START, wakes)
    return wakes


def test_accepted_streams_are_counted(name: str) -> None:
    ends = Ends(name)
    opened = ends.open(3)
    accepted = [ends.server.table.take_offered() for _ in opened]
    assert [record.id for record in accepted] == opened
    assert all(record.accepted is True for record in accepted)
    assert (ends.server.table.accepted, ends.server.table.unaccepted) == (3, 0)


def test_the_end_of_the_peers_half_wakes_the_reader_alone(name: str) -> None:
    ends = Ends(name)
    record, (reader, _), stream_id = watched(ends)
    ends.client.machine.close_write(stream_id, START)
    assert told(ends) == [reader]
    assert record.ended is True
    assert record.read_failure is None


@pytest.mark.parametrize("name", [name for name in NAMES if WIRES[name].resets])
def test_a_reset_by_the_peer_wakes_both_and_tells_its_code(name: str) -> None:
    ends = Ends(name)
    record, parkers, stream_id = watched(ends)
    ends.client.machine.reset_write(stream_id, 77)
    ends.client.machine.reset_read(stream_id, 77)
    assert set(told(ends)) == set(parkers)
    for failure in (record.read_failure, record.write_failure):
        assert failure is not None
        error = failure()
        assert isinstance(error, wsmux.StreamReset)
        assert (error.stream_id, error.code, error.side) == (stream_id, 77, "remote")


@pytest.mark.parametrize("name", ["wsmux", "bymux"])  # the wires that say it without an error
def test_a_peer_that_reads_no_further_wakes_the_writer_alone(name: str) -> None:
    ends = Ends(name)
    record, (_, writer), stream_id = watched(ends)
    ends.client.machine.close_read(stream_id)
    assert told(ends) == [writer]
    assert record.write_failure is not None
    error = record.write_failure()
    assert isinstance(error, wsmux.StreamWriteClosed)
    assert error.stream_id == stream_id
    assert record.read_failure is None


# What is unread


def written(ends: Ends, stream_id: int, data: bytes) -> list[Parker]:
    """Send bytes from the client; return whom the server wakes."""
    assert ends.client.machine.send_data(stream_id, data) == len(data)
    return told(ends)


def test_bytes_are_unread_until_they_are_read_or_dropped(name: str) -> None:
    ends = Ends(name)
    record, _, stream_id = watched(ends)
    ends.client.take(ends.server)
    written(ends, stream_id, b"12345")
    counts = [ends.server.table.unread]
    ends.server.table.consumed(record, len(record.buffer.take(2)))
    counts.append(ends.server.table.unread)
    ends.server.table.drop_unread(record)
    counts.append(ends.server.table.unread)
    assert counts == [5, 3, 0]


def test_a_reader_is_woken_for_as_much_as_it_waits_for(name: str) -> None:
    ends = Ends(name)
    record, (reader, _), stream_id = watched(ends)
    ends.client.take(ends.server)
    assert written(ends, stream_id, b"1") == []  # nobody reads
    record.reading, record.enough = True, 3
    assert written(ends, stream_id, b"2") == []
    assert written(ends, stream_id, b"3") == [reader]


def test_a_stream_that_ended_counts_until_it_is_read(name: str) -> None:
    ends = Ends(name)
    table = ends.server.table
    small, _, first = watched(ends)
    large, _, second = watched(ends)
    ends.client.take(ends.server)
    written(ends, first, b"123")
    written(ends, second, b"12345")
    for machine in (ends.client.machine, ends.server.machine):
        machine.close_write(second, START)
    for _ in range(3):
        ends.client.take(ends.server, START + 60)
        ends.server.take(ends.client, START + 60)
        ends.server.apply()
    assert table.largest() is large
    table.consumed(large, len(large.buffer.take(1)))
    assert table.largest() is large
    table.consumed(large, len(large.buffer.take(4)))
    assert table.largest() is small


@pytest.mark.parametrize(
    ("short", "receive_window", "window"),
    [
        (1, 2**18, 2**18),
        (0, 2**18, SMALLEST_WINDOW),
        (0, SMALLEST_WINDOW - 1, SMALLEST_WINDOW - 1),
    ],
)
def test_a_new_stream_gets_the_smallest_window_from_so_much_unread_on(
    short: int, receive_window: int, window: int
) -> None:
    side = Side("wsmux", Role.CLIENT, receive_window=receive_window)
    side.table.unread = int(wsmux.Config().max_connection_buffer * PRESSURE) - short
    assert side.table.open(START).window == window


@pytest.mark.parametrize(
    ("name", "receive_window", "window"),
    [
        ("js-ws", 4 * 2**20, 2**20 - MAX_HEAD),
        ("yamux", 2**27, 2**24),
        ("yamux", 1, 2**18),
        ("wsmux", 2**27, 2**27),
        ("bymux", 2**27, 2**27),
    ],
)
def test_the_window_of_a_stream_is_the_one_that_the_peer_gets(
    name: str, receive_window: int, window: int
) -> None:
    ends = Ends(name, receive_window=receive_window)
    (stream_id,) = ends.open(1)
    record = ends.server.table.records[stream_id]
    assert (record.window, record.low_water) == (window, window // 4)
    assert ends.server.machine.peer_credit(stream_id) == ends.server.table.windows == window


def test_a_new_stream_gets_the_smallest_window_from_so_many_bytes_of_windows_on() -> None:
    side = Side("wsmux", Role.CLIENT, max_window_bytes=3 * 2**18)
    records = [side.table.open(START) for _ in range(4)]
    assert [each.window for each in records] == [2**18] * 3 + [SMALLEST_WINDOW]
    assert side.table.windows == 3 * 2**18 + SMALLEST_WINDOW
    assert not side.table.may_widen(1)


@pytest.mark.parametrize(("limits", "refused"), [({}, 0), ({"max_window_bytes": 2**20}, 1)])
def test_where_windows_are_counted_a_stream_keeps_its_place_until_it_is_read(
    limits: dict[str, int], refused: int
) -> None:
    ends = Ends("wsmux", max_streams=1, **limits)
    table = ends.server.table
    record, _, stream_id = watched(ends)
    ends.client.take(ends.server)
    written(ends, stream_id, b"12345")
    for machine in (ends.client.machine, ends.server.machine):
        machine.close_write(stream_id, START)
    for _ in range(3):
        ends.client.take(ends.server)
        ends.server.take(ends.client)
        ends.server.apply()
    assert (record.finished, table.windows) == (True, 5)
    ends.open(1)
    assert table.refused == refused
    table.consumed(record, len(record.buffer.take(2)))
    assert table.windows == 3 + 2**18 * (1 - refused)
    table.drop_unread(record)
    ends.open(refused)
    assert (table.refused, table.windows) == (refused, 2**18)


def test_a_stream_that_holds_too_much_ends_with_code_2_and_the_reason(name: str) -> None:
    ends = Ends(name)
    record, parkers, _ = watched(ends)
    wakes: list[Parker] = []
    ends.server.table.shed(record, "too much", wakes)
    assert wakes == parkers
    for failure in (record.read_failure, record.write_failure):
        assert failure is not None
        error = failure()
        assert isinstance(error, wsmux.StreamReset)
        assert error.code == 2
        assert "too much" in str(error)


def test_streams_opened_here_are_counted(name: str) -> None:
    ends = Ends(name)
    ends.open(3)
    assert (ends.client.table.opened, ends.server.table.opened) == (3, 0)


# What was dropped


@pytest.mark.parametrize("ended", [False, True])
def test_abandoning_a_stream_twice_is_as_once(name: str, ended: bool) -> None:
    """An interrupt may end the first in the middle, wherever that is."""
    ends = Ends(name)
    record, parkers, stream_id = watched(ends)
    server = ends.server
    if ended:
        record.fail_write(write_closed, [])
        server.machine.close_write(stream_id, START)
    wakes: list[Parker] = []
    server.table.abandon(record, wakes)
    assert wakes == (parkers[:1] if ended else parkers)
    first = server.machine.control_to_send(), server.machine.data_to_send()
    assert any(first)
    server.table.abandon(record, wakes)
    assert not server.machine.has_output()
    assert record.closed
    assert record.read_failure is not None
    with pytest.raises(wsmux.StreamReset, match="dropped, or interrupted in a read") as caught:
        raise record.read_failure()
    assert (caught.value.stream_id, caught.value.code, caught.value.side) == (stream_id, 0, "local")


def test_every_event_of_a_machine_has_a_reaction() -> None:
    assert StreamTable._REACTIONS.keys() | {DataReceived} == {*get_args(Event)}
