"""Every broken rule of Yamux queues GO_AWAY 1, raises one sentence, and touches nothing else.

"Nothing else" is checked on everything the machine remembers: no stream is registered, no byte
stored and no credit moved by the frame that breaks a rule. A head is enough: the body it announces
is not waited for.
"""

from __future__ import annotations

import pytest

from wsmux.exceptions import FlowControlError, FrameError, RemoteProtocolError, StreamIdError
from wsmux.protocols.base import Role
from wsmux.protocols.events import StreamOpened
from wsmux.protocols.yamux import YamuxProtocol

from .pairs import BOTH_ROLES, EITHER_OPENER, other, outbox
from .yamux_wire import (
    ACK,
    BROKEN,
    DATA,
    FIN,
    GO_AWAY,
    INITIAL,
    MIB,
    PING,
    RST,
    SYN,
    WINDOW,
    data_frame,
    head,
    opened,
    snapshot,
    window,
    yamux,
    yid,
)

LONGEST_REASON = 123  # bytes of a close frame's reason: the sentence is sent in it
LARGEST = 2**32 - 1


def assert_ends_connection(
    machine: YamuxProtocol, wire: bytes, error: type[RemoteProtocolError], sentence: str
) -> None:
    """Check the class, the code, the sentence and the answer, and that nothing else happened."""
    before = snapshot(machine)
    with pytest.raises(error) as caught:
        machine.receive_data(wire)
    assert type(caught.value) is error
    assert str(caught.value) == sentence
    assert caught.value.code == 1002
    assert len(sentence.encode()) <= LONGEST_REASON
    assert outbox(machine) == [BROKEN]
    assert snapshot(machine) == before


# The head


@BOTH_ROLES
@pytest.mark.parametrize("version", [1, 255])
def test_other_version(role: Role, version: int) -> None:
    wire = head(PING, SYN, 0, 0, version=version)
    assert_ends_connection(yamux(role), wire, FrameError, f"frame of version {version}, not 0")


@BOTH_ROLES
@pytest.mark.parametrize("kind", [4, 9, 255])
def test_unknown_type(role: Role, kind: int) -> None:
    wire = head(kind, 0, 0, 0)
    assert_ends_connection(yamux(role), wire, FrameError, f"frame of the unknown type {kind}")


@BOTH_ROLES
@pytest.mark.parametrize("flags", [0, SYN, ACK, FIN, RST])
@pytest.mark.parametrize(("kind", "name"), [(DATA, "DATA"), (WINDOW, "WINDOW")])
def test_stream_frame_on_the_session(role: Role, kind: int, name: str, flags: int) -> None:
    wire = head(kind, flags, 0, 1)
    assert_ends_connection(yamux(role), wire, StreamIdError, f"{name} frame on stream 0")


@BOTH_ROLES
@pytest.mark.parametrize(("kind", "name"), [(PING, "PING"), (GO_AWAY, "GO_AWAY")])
def test_session_frame_on_a_stream(role: Role, kind: int, name: str) -> None:
    wire = head(kind, SYN, 9, 0)
    assert_ends_connection(yamux(role), wire, StreamIdError, f"{name} frame on stream 9")


@BOTH_ROLES
def test_head_that_breaks_a_rule_in_pieces(role: Role) -> None:
    machine = yamux(role)
    wire = head(9, 0, 0, 0)
    machine.receive_data(wire[:-1])
    with pytest.raises(FrameError, match="unknown type 9"):
        machine.receive_data(wire[-1:])
    assert outbox(machine) == [BROKEN]


# Opening


@BOTH_ROLES
@pytest.mark.parametrize("kind", [DATA, WINDOW])
def test_syn_of_the_wrong_parity(role: Role, kind: int) -> None:
    stream_id = yid(role, 3)
    sentence = f"the peer opened stream {stream_id}, of the parity of this side"
    assert_ends_connection(yamux(role), head(kind, SYN, stream_id, 0), StreamIdError, sentence)


@BOTH_ROLES
def test_syn_on_an_own_open_stream(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    sentence = f"the peer opened stream {stream_id}, of the parity of this side"
    assert_ends_connection(machine, window(stream_id, 0, SYN | ACK), StreamIdError, sentence)


@BOTH_ROLES
def test_syn_twice(role: Role) -> None:
    machine, stream_id = opened(role, local=False)
    sentence = f"the peer opened stream {stream_id}, which is open"
    assert_ends_connection(machine, window(stream_id, 0, SYN), StreamIdError, sentence)


@BOTH_ROLES
def test_syn_on_a_reset_stream_nobody_has_answered(role: Role) -> None:
    machine, stream_id = yamux(role), yid(other(role))
    machine.receive_data(window(stream_id, 0, SYN) + window(stream_id, 0, RST))
    sentence = f"the peer opened stream {stream_id}, which is open"
    assert_ends_connection(machine, window(stream_id, 0, SYN), StreamIdError, sentence)


@BOTH_ROLES
@pytest.mark.parametrize("flags", [SYN, SYN | FIN, SYN | RST])
def test_cve_2026_32314_syn_with_more_than_256_kib_of_data(role: Role, flags: int) -> None:
    """rust-yamux registered the stream before it looked at the length."""
    machine, stream_id = yamux(role), yid(other(role))
    sentence = f"300000 bytes with 262144 bytes of credit on stream {stream_id}"
    wire = head(DATA, flags, stream_id, 300_000)
    assert_ends_connection(machine, wire, FlowControlError, sentence)
    assert (machine.open_streams(), machine.events()) == (0, [])


@BOTH_ROLES
def test_syn_with_exactly_256_kib_of_data_is_taken(role: Role) -> None:
    machine, stream_id = yamux(role), yid(other(role))
    machine.receive_data(data_frame(stream_id, bytes(INITIAL), SYN))
    assert machine.events() == [StreamOpened(stream_id)]


# Credit


@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize("flags", [0, ACK, FIN])
def test_cve_2026_31814_window_update_above_32_bits(role: Role, local: bool, flags: int) -> None:
    """rust-yamux added without looking."""
    machine, stream_id = opened(role, local=local)
    delta = LARGEST - INITIAL + 1
    sentence = f"window update of {delta} bytes lifts the credit of 262144 above 2^32-1"
    assert_ends_connection(machine, window(stream_id, delta, flags), FlowControlError, sentence)


@BOTH_ROLES
def test_cve_2026_31814_window_of_syn_above_32_bits(role: Role) -> None:
    sentence = "window update of 4294967295 bytes lifts the credit of 262144 above 2^32-1"
    wire = window(yid(other(role)), LARGEST, SYN)
    assert_ends_connection(yamux(role), wire, FlowControlError, sentence)


@BOTH_ROLES
@EITHER_OPENER
def test_credit_of_exactly_32_bits_is_taken(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.receive_data(window(stream_id, LARGEST - INITIAL))
    assert machine.credit(stream_id) == LARGEST


@BOTH_ROLES
@EITHER_OPENER
def test_one_byte_beyond_the_credit(role: Role, local: bool) -> None:
    machine, stream_id = opened(role, local=local)
    machine.receive_data(data_frame(stream_id, bytes(INITIAL - 1)))
    sentence = f"2 bytes with 1 bytes of credit on stream {stream_id}"
    machine.events()
    assert_ends_connection(machine, head(DATA, 0, stream_id, 2), FlowControlError, sentence)


@BOTH_ROLES
def test_data_beyond_the_credit_of_a_stream_nobody_reads(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.close_read(stream_id)
    sentence = f"262145 bytes with 262144 bytes of credit on stream {stream_id}"
    wire = head(DATA, 0, stream_id, INITIAL + 1)
    assert_ends_connection(machine, wire, FlowControlError, sentence)


@BOTH_ROLES
@pytest.mark.parametrize("length", [16 * MIB + 1, LARGEST])
@pytest.mark.parametrize("stream_id", [1, 2, 77])
def test_frame_longer_than_any(role: Role, length: int, stream_id: int) -> None:
    machine, _ = opened(role, local=True)
    sentence = f"data frame of {length} bytes, above 16777216"
    assert_ends_connection(machine, head(DATA, 0, stream_id, length), FrameError, sentence)


@BOTH_ROLES
@EITHER_OPENER
@pytest.mark.parametrize("stopped", [False, True])
def test_data_after_fin(role: Role, local: bool, stopped: bool) -> None:
    machine, stream_id = opened(role, local=local)
    if stopped:
        machine.close_read(stream_id)
    machine.receive_data(window(stream_id, 0, FIN))
    machine.events()
    sentence = f"data on stream {stream_id} after its FIN"
    assert_ends_connection(machine, data_frame(stream_id, b"x"), StreamIdError, sentence)


# Streams that are not there


@BOTH_ROLES
def test_more_data_than_a_window_for_streams_that_never_were(role: Role) -> None:
    machine = yamux(role)
    machine.receive_data(data_frame(7, bytes(INITIAL - 1)))
    sentence = "2 bytes with 1 bytes of credit on stream 8, which is not open"
    assert_ends_connection(machine, head(DATA, 0, 8, 2), FlowControlError, sentence)


@BOTH_ROLES
@pytest.mark.parametrize("how", ["reset here", "reset there"])
def test_a_reset_stream_allows_what_was_under_way_and_no_more(role: Role, how: str) -> None:
    machine, stream_id = opened(role, local=True)
    machine.receive_data(data_frame(stream_id, bytes(100)))
    if how == "reset here":
        machine.reset_write(stream_id, 0)
    else:
        machine.receive_data(window(stream_id, 0, RST))
    machine.events()
    outbox(machine)
    machine.receive_data(data_frame(stream_id, bytes(INITIAL)))  # what is always allowed
    machine.receive_data(data_frame(stream_id, bytes(INITIAL - 100)))
    sentence = f"1 bytes with 0 bytes of credit on stream {stream_id}, which is not open"
    assert_ends_connection(machine, head(DATA, 0, stream_id, 1), FlowControlError, sentence)


@BOTH_ROLES
def test_a_stream_over_the_limit_allows_what_was_under_way_and_no_more(role: Role) -> None:
    machine = yamux(role)
    machine.go_away(0)
    stream_id = yid(other(role))
    machine.receive_data(data_frame(stream_id, bytes(100), SYN))
    outbox(machine)
    machine.receive_data(data_frame(stream_id, bytes(INITIAL)))
    machine.receive_data(data_frame(stream_id, bytes(INITIAL - 100)))
    sentence = f"1 bytes with 0 bytes of credit on stream {stream_id}, which is not open"
    assert_ends_connection(machine, head(DATA, 0, stream_id, 1), FlowControlError, sentence)


@BOTH_ROLES
def test_a_stream_that_ended_cleanly_allows_nothing_more(role: Role) -> None:
    machine, stream_id = opened(role, local=True)
    machine.close_write(stream_id, 0.0)
    machine.receive_data(window(stream_id, 0, FIN))
    machine.events()
    outbox(machine)
    sentence = f"262145 bytes with 262144 bytes of credit on stream {stream_id}, which is not open"
    wire = head(DATA, 0, stream_id, INITIAL + 1)
    assert_ends_connection(machine, wire, FlowControlError, sentence)


# What came before


@BOTH_ROLES
def test_events_before_the_broken_rule_are_reported(role: Role) -> None:
    machine, stream_id = yamux(role), yid(other(role))
    with pytest.raises(FrameError):
        machine.receive_data(window(stream_id, 0, SYN) + head(9, 0, 0, 0))
    assert machine.events() == [StreamOpened(stream_id)]
