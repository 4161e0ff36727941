"""A sweep ends streams that the peer leaves half open, and nothing that waits for this side."""

from __future__ import annotations

import pytest

from wsmux.config import Config
from wsmux.exceptions import FrameError, StreamReset
from wsmux.mux.stream_record import StreamRecord, read_closed, write_closed
from wsmux.mux.stream_table import HalfOpenReaper
from wsmux.protocols.base import MuxProtocol, Role
from wsmux.protocols.native import NativeProtocol
from wsmux.protocols.yamux import YamuxProtocol
from wsmux.runtime.parking import Parker, Waiter, borrow

from ..helpers.bymux_wire import opened, write
from ..helpers.machine_pairs import opened as native_pair

# With it a stream is looked at each second, and reset in the ninth.
CONFIG = Config(half_open_timeout=8.0, message_timeout=None)


def half_open() -> StreamRecord:
    """Return a stream whose writing half this side has closed."""
    record = StreamRecord(0, peer_opened=False)
    record.write_failure = write_closed
    return record


def sweeping(*records: StreamRecord, config: Config = CONFIG) -> HalfOpenReaper:
    sweep = HalfOpenReaper(config, NativeProtocol(Role.CLIENT, config), dict(enumerate(records)))
    sweep.begin(0.0)
    return sweep


def swept(sweep: HalfOpenReaper, *times: float) -> list[float]:
    """Return the times at which a stream was to be reset."""
    wakes: list[Parker] = []
    return [now for now in times for _ in sweep.run(now, wakes)]


def test_a_half_open_stream_that_stands_still_is_reset_once() -> None:
    record = half_open()
    assert swept(sweeping(record), *map(float, range(1, 15))) == [9.0]
    assert record.read_failure is not None
    with pytest.raises(StreamReset, match=r"Config.half_open_timeout = 8.0 s") as caught:
        raise record.read_failure()
    assert caught.value.side == "local"


def test_bytes_that_come_or_go_start_the_time_anew() -> None:
    record = half_open()
    sweep = sweeping(record)
    assert swept(sweep, *map(float, range(1, 9))) == []
    record.quiet = 0
    assert swept(sweep, *map(float, range(9, 20))) == [17.0]


def test_bytes_that_wait_for_this_side_keep_a_stream() -> None:
    record = half_open()
    record.buffer.append(b"unread")
    assert swept(sweeping(record), *map(float, range(1, 40))) == []


def test_a_stream_that_is_open_on_both_sides_is_kept() -> None:
    assert swept(sweeping(StreamRecord(0, peer_opened=True)), *map(float, range(1, 40))) == []


@pytest.mark.parametrize("how", ["ended", "closed"])
def test_an_answer_that_this_side_has_yet_to_write_keeps_a_stream(how: str) -> None:
    record = StreamRecord(0, peer_opened=True)
    record.ended = how == "ended"
    record.read_failure = None if how == "ended" else read_closed
    assert swept(sweeping(record), *map(float, range(1, 40))) == []


def test_an_answer_that_the_peer_takes_nothing_of_does_not() -> None:
    record = StreamRecord(0, peer_opened=True)
    record.ended = record.writing = True
    assert swept(sweeping(record), *map(float, range(1, 17))) == [9.0]


def test_a_peer_that_does_not_end_a_reset_stream_loses_the_connection() -> None:
    sweep = sweeping(half_open())
    swept(sweep, *map(float, range(1, 18)))
    with pytest.raises(FrameError, match="was reset, and the peer does not end its half") as caught:
        swept(sweep, 18.0)
    assert caught.value.code == 1008


def test_without_a_time_nothing_is_swept() -> None:
    config = Config(half_open_timeout=None, message_timeout=None)
    sweep = sweeping(half_open(), config=config)
    assert sweep.due is None
    assert swept(sweep, 1e9) == []


def test_it_rests_while_there_are_no_streams() -> None:
    sweep = sweeping()
    assert sweep.due == 1.0
    assert (swept(sweep, 1.0), sweep.due) == ([], None)
    sweep.begin(5.0)
    assert sweep.due == 6.0
    sweep.begin(5.5)
    assert sweep.due == 6.0


def test_a_frame_time_alone_resets_no_stream() -> None:
    config = Config(half_open_timeout=None, message_timeout=8.0)
    sweep = HalfOpenReaper(config, YamuxProtocol(Role.CLIENT, config), {0: half_open()})
    sweep.begin(0.0)
    assert swept(sweep, *map(float, range(1, 40))) == []


def test_it_is_due_again_one_look_later() -> None:
    sweep = sweeping(half_open())
    assert [(swept(sweep, now), sweep.due)[1] for now in (0.5, 1.0, 1.5, 2.25)] == [1, 2, 2, 3.25]


def test_at_rest_it_does_nothing() -> None:
    sweep = HalfOpenReaper(CONFIG, NativeProtocol(Role.CLIENT, CONFIG), {0: half_open()})
    assert swept(sweep, 1e9) == []
    assert sweep.due is None


@pytest.mark.parametrize(
    ("machine", "message_timeout", "due"),
    [
        (NativeProtocol, 4.0, 1.0),  # the carrier keeps the time of its messages
        (NativeProtocol, None, 1.0),
        (YamuxProtocol, 4.0, 0.5),
        (YamuxProtocol, None, 1.0),
    ],
)
def test_frames_are_looked_at_where_the_wire_cuts_them_itself(
    machine: type[MuxProtocol], message_timeout: float | None, due: float
) -> None:
    config = Config(half_open_timeout=8.0, message_timeout=message_timeout)
    sweep = HalfOpenReaper(config, machine(Role.CLIENT, config), {})
    sweep.begin(0.0)
    assert sweep.due == due


def test_streams_are_looked_at_no_more_often_where_frames_are() -> None:
    config = Config(half_open_timeout=8.0, message_timeout=4.0)
    record = half_open()
    sweep = HalfOpenReaper(config, YamuxProtocol(Role.CLIENT, config), {0: record})
    sweep.begin(0.0)
    looks = [(swept(sweep, now), record.quiet)[1] for now in (0.5, 1.0, 1.5, 2.0, 2.5)]
    assert looks == [0, 1, 1, 2, 2]


def test_a_writer_without_credit_keeps_a_stream_that_is_open_on_both_sides() -> None:
    record = StreamRecord(0, peer_opened=True)
    record.writing = True
    assert swept(sweeping(record), *map(float, range(1, 40))) == []


def test_a_writer_with_credit_keeps_a_stream_since_this_side_is_to_move() -> None:
    machine, stream_id = native_pair(Role.SERVER, local=False, credit=1)
    record = StreamRecord(stream_id, peer_opened=True)
    record.ended = record.writing = True
    sweep = HalfOpenReaper(CONFIG, machine, {stream_id: record})
    sweep.begin(0.0)
    assert swept(sweep, *map(float, range(1, 40))) == []
    machine.send_data(stream_id, b"x")
    assert swept(sweep, *map(float, range(40, 49))) == [48.0]


def test_the_time_begins_when_the_peer_is_to_move() -> None:
    record = half_open()
    record.buffer.append(b"unread")
    sweep = sweeping(record)
    assert swept(sweep, 1.0, 2.0, 3.0) == []
    record.buffer.clear()
    assert swept(sweep, *map(float, range(4, 15))) == [12.0]


def test_each_stream_is_looked_at() -> None:
    records = [StreamRecord(0, peer_opened=True), half_open(), half_open()]
    assert swept(sweeping(*records), *map(float, range(1, 12))) == [9.0, 9.0]


class Ringing(Waiter):
    """Wait without a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.parker = self._parker = borrow()


def test_both_callers_of_a_stream_that_is_reset_are_told() -> None:
    record = StreamRecord(7, peer_opened=True)
    record.ended = record.writing = True
    reader, writer = Ringing(), Ringing()
    record.reader, record.writer = reader, writer
    sweep, wakes = sweeping(record), list[Parker]()
    for now in range(1, 10):
        list(sweep.run(float(now), wakes))
    assert wakes == [reader.parker, writer.parker]
    for failure in (record.read_failure, record.write_failure):
        assert failure is not None
        error = failure()
        assert isinstance(error, StreamReset)
        assert (error.stream_id, error.code, error.side) == (7, 3, "local")


FRAMES = Config(message_timeout=8.0)
OPENING = bytes.fromhex("0001 0001 00000001 00000000")
DATA_HEAD = bytes.fromhex("0000 0000 00000001 00000100")


def check_dribble(machine: MuxProtocol, wire: bytes, seconds: int) -> None:
    """Feed a byte each second, of a frame that began a second after the start."""
    sweep = HalfOpenReaper(machine.config, machine, {0: StreamRecord(0, peer_opened=True)})
    sweep.begin(0.0)

    def feed() -> None:
        for now in range(1, seconds + 1):
            machine.receive_data(wire[now - 1 : now] or b"\0")
            swept(sweep, float(now))

    text = r"stayed incomplete for Config.message_timeout = 8.0 s"
    with pytest.raises(FrameError, match=text) as caught:
        feed()
    assert caught.value.code == 1008


def test_a_yamux_frame_that_is_dribbled_ends_the_connection() -> None:
    machine = YamuxProtocol(Role.SERVER, FRAMES)
    machine.receive_data(OPENING)
    check_dribble(machine, DATA_HEAD, len(DATA_HEAD) + 9)


def test_a_yamux_head_that_stays_incomplete_ends_the_connection() -> None:
    machine = YamuxProtocol(Role.SERVER, FRAMES)
    machine.receive_data(OPENING)
    check_dribble(machine, DATA_HEAD, 9)


@pytest.mark.parametrize("role", list(Role))
def test_a_bymux_packet_that_is_dribbled_ends_the_connection(role: Role) -> None:
    machine, stream_id = opened(role, local=False, message_timeout=8.0)
    check_dribble(machine, write(stream_id, bytes(100)), 20)


def test_frames_that_come_in_pieces_are_told_from_one_that_stands_still() -> None:
    machine = YamuxProtocol(Role.SERVER, FRAMES)
    machine.receive_data(OPENING)
    sweep = HalfOpenReaper(FRAMES, machine, {0: StreamRecord(0, peer_opened=True)})
    sweep.begin(0.0)
    frame = bytes.fromhex("0000 0000 00000001 00000010") + bytes(16)
    machine.receive_data(frame[:20])
    for now in range(40):
        assert swept(sweep, float(now)) == []
        machine.receive_data(frame[20:] + frame[:20])
