"""A recording of a resumable connection has its own messages too, in order and without secrets."""

from __future__ import annotations

import io
from functools import partial

import pytest

import wsmux
from wsmux.diagnostics.replay import replay
from wsmux.exceptions import ResumeLost
from wsmux.protocols.base import Role
from wsmux.recording.file_format import Entry, Header, read_recording
from wsmux.recording.frame_parser import read_carried
from wsmux.transport.resumable_transport import ResumableTransport

from ..helpers.inside import multiplexer_of
from ..helpers.resumed import Pair, joined, pair
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

ALL_WIRES = pytest.mark.parametrize("protocol", ["wsmux", "js-ws", "yamux", "bymux"])


def entries_of(connection: wsmux.Connection) -> tuple[Header, list[Entry]]:
    header, entries = read_recording(io.BytesIO(connection.dump_recording().encode()))
    return header, list(entries)


def carried(connection: wsmux.Connection) -> list[tuple[bool, str, int | None]]:
    """Return direction, type and position of the messages of the resumable connection."""
    return [
        (entry.sent, entry.head.type, entry.head.position)
        for entry in entries_of(connection)[1]
        if entry.head.type.startswith("RESUME_") and entry.head.type != "RESUME_ACK"
    ]


def acknowledgements(connection: wsmux.Connection) -> list[Entry]:
    """Return those of one direction: of what the client has sent."""
    sent = connection.role is Role.SERVER
    return [
        entry
        for entry in entries_of(connection)[1]
        if entry.head.type == "RESUME_ACK" and entry.sent is sent
    ]


def recorded(payload: int | None = None) -> wsmux.Config:
    return wsmux.Config(recording=wsmux.Recording(payload=payload))


def cut(ends: Pair) -> None:
    ends.outage()
    ends.over()
    for end in (ends.client, ends.server):
        wait_for(lambda end=end: end.stats().reconnects == 1)


@ALL_WIRES
def test_each_carrier_begins_with_its_greetings_and_the_last_one_ends_with_end(
    protocol: str,
) -> None:
    with pair(protocol=protocol, config=recorded()) as ends:
        ours, theirs = joined(ends)
        cut(ends)
        ours.write(b"x" * 1000)
        assert theirs.read(1000)
        ends.client.close(code=4000, reason="done")
        assert ends.server.wait_closed(WAIT)
        for end, client in ((ends.client, True), (ends.server, False)):
            told = carried(end)
            kinds = [(sent, kind) for sent, kind, _ in told]
            assert (
                kinds[:4]
                == [
                    (client, "RESUME_HELLO"),
                    (not client, "RESUME_WELCOME"),
                ]
                * 2
            )
            assert (client, "RESUME_END") in kinds[4:]
            assert told[0][2] == told[1][2] == 0
            assert (told[3][2] or 0) > 0  # what the server has read of the stream
            header, entries = entries_of(end)
            assert header.frames == len(entries)
            assert [entry.time for entry in entries] == sorted(entry.time for entry in entries)


@ALL_WIRES
def test_the_server_and_the_client_record_the_same_positions(protocol: str) -> None:
    with pair(protocol=protocol, config=recorded()) as ends:
        joined(ends)
        cut(ends)
        one, other = (
            [(kind, place) for _, kind, place in carried(end)] for end in (ends.client, ends.server)
        )
        assert one == other


def test_nothing_that_is_secret_is_recorded() -> None:
    with pair(config=recorded(payload=1 << 20)) as ends:
        joined(ends)
        cut(ends)
        transport = multiplexer_of(ends.client).transport
        assert isinstance(transport, ResumableTransport)
        session = transport.session
        for end in (ends.client, ends.server):
            text = end.dump_recording()
            assert session.key.hex() not in text
            assert session.id.hex() not in text
            assert session.id[:4].hex() in text
            assert all(
                entry.raw is None
                for entry in entries_of(end)[1]
                if entry.head.type.startswith("RESUME_")
            )


def test_what_an_acknowledgement_says_is_recorded_at_both_ends() -> None:
    with pair(config=recorded()) as ends:
        joined(ends)
        acknowledged = partial(acknowledgements, ends.client)
        wait_for(acknowledged)
        told = acknowledgements(ends.server)
        heard = acknowledged()[: len(told)]
        told = told[: len(heard)]
        assert [entry.head.position for entry in heard] == [entry.head.position for entry in told]
        assert {entry.sent for entry in told} == {True}
        assert {entry.sent for entry in heard} == {False}


def test_a_lost_session_is_recorded_with_the_reason_of_the_server() -> None:
    with pair(config=recorded()) as ends:
        ours, _ = joined(ends)
        ends.outage()
        ends.server.abort()
        ends.over()
        assert ends.client.wait_closed(WAIT)
        with pytest.raises(ResumeLost):
            ours.read(1)
        last = entries_of(ends.client)[1][-1]
        assert (last.sent, last.head.type) == (False, "RESUME_LOST")
        assert last.head.detail == "this server does not have the session"


@ALL_WIRES
def test_a_recording_of_it_is_replayed_like_one_of_a_single_carrier(protocol: str) -> None:
    def echo(stream: wsmux.Stream) -> None:
        stream.write(stream.read())
        stream.close()

    config = recorded(payload=1 << 20)
    with pair(protocol=protocol, config=config) as ends:
        ours = ends.client.open_stream(timeout=WAIT)
        ours.write(b"before")
        theirs = ends.server.accept_stream(WAIT)
        cut(ends)
        ours.write(b"behind")
        ours.close_write()
        ours.timeout = theirs.timeout = WAIT
        echo(theirs)
        assert ours.read() == b"beforebehind"
        ours.close()
        ends.client.close()
        assert ends.server.wait_closed(WAIT)
        header, entries = entries_of(ends.server)
        outcome = replay(header, entries, stream_handler=echo)
        assert outcome.differences == []


@pytest.mark.parametrize("message", [b"", b"\x05abc", b"\x06", b"\x01" + bytes(20), b"\x09"])
def test_what_is_no_message_is_malformed_and_says_why(message: bytes) -> None:
    head = read_carried(message)
    assert (head.type, head.length) == ("MALFORMED", len(message))
    assert head.detail


def test_a_refusal_is_told_apart_from_a_loss() -> None:
    assert read_carried(b"\x04no").type == "RESUME_REFUSED"
    assert read_carried(b"\x03gone") == read_carried(b"\x03gone")._replace(detail="gone")
