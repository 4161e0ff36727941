"""Frames and messages that no honest client's carrier would bring to a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from wsmux import rpc
from wsmux.rpc.wire.codec import Codec, EncodeError
from wsmux.rpc.wire.envelope import Envelope
from wsmux.rpc.wire.json_codec import JsonCodec
from wsmux.rpc.wire.msgpack_codec import MsgpackCodec
from wsmux.transport.message_transport import MessageTransport

from ..helpers.inside import engine_of, on_poll
from ..helpers.raw_peer import BINARY, CLOSE_FRAME, CONTINUATION, PING, PONG, TEXT
from ..helpers.rpc.raw_river import RawRiver
from ..helpers.rpc.standing_server import CALM, Stand, no_exceptions, stand
from ..helpers.timeouts import CONNECTS
from ..helpers.waiting import threads_of, wait_for

SMALL = 16 * 1024

# Bytes of the longest message that is taken, and of the longest that is read.
TAKEN, READ = SMALL + 64 * 1024, 4 * SMALL + 64 * 1024


@pytest.fixture(
    scope="module",
    params=[(JsonCodec, True), (MsgpackCodec, False)],
    ids=["json-websocket", "msgpack-tcp"],
)
def standing(request: pytest.FixtureRequest) -> Iterator[Stand]:
    codec: type[Codec]
    codec, websocket = request.param
    with stand(codec(), websocket=websocket, options=replace(CALM, max_size=SMALL)) as made:
        yield made


@pytest.fixture
def attached(standing: Stand, caplog: pytest.LogCaptureFixture) -> Iterator[tuple[RawRiver, str]]:
    with no_exceptions(caplog), standing.attached() as attached:
        yield attached


WEBSOCKET = pytest.mark.parametrize(
    "standing", [(JsonCodec, True)], indirect=True, scope="module", ids=["json-websocket"]
)


@WEBSOCKET
@pytest.mark.parametrize("data", [b"", b"text", "ü".encode()], ids=["empty", "text", "utf_8"])
def test_a_text_frame_ends_the_session(
    data: bytes, standing: Stand, attached: tuple[RawRiver, str]
) -> None:
    peer, name = attached
    peer.send_bytes(data, TEXT)
    standing.check_destroyed(peer, name)


@WEBSOCKET
def test_a_good_message_in_a_text_frame_ends_it_too(
    standing: Stand, attached: tuple[RawRiver, str]
) -> None:
    peer, name = attached
    peer.send_bytes(peer.pack(peer.fields({"streamId": "other"})), TEXT)
    standing.check_destroyed(peer, name)


@WEBSOCKET
@pytest.mark.parametrize(
    "frame",
    [
        b"\x82\x01x",
        b"\xc2\x80\0\0\0\0",
        b"\x83\x80\0\0\0\0",
        b"\x80\x80\0\0\0\0",
        b"\x89\xfe\x00\x7e\0\0\0\0",
        b"\x88\x81\0\0\0\0x",
    ],
    ids=["unmasked", "reserved_bit", "unknown", "continuation", "long_ping", "short_close"],
)
def test_a_broken_frame_ends_the_connection_only(
    frame: bytes, standing: Stand, attached: tuple[RawRiver, str]
) -> None:
    peer, name = attached
    peer.sock.sendall(frame)
    standing.check_cut(peer, name, code=1002)


@pytest.mark.parametrize("size", [READ + 1, 2**32 - 1])
def test_a_message_above_the_limit_ends_the_connection_only(
    size: int, standing: Stand, attached: tuple[RawRiver, str]
) -> None:
    peer, name = attached
    peer.announce(size)
    standing.check_cut(peer, name, code=1009 if standing.websocket else None)


@pytest.mark.parametrize("size", [TAKEN, READ])
def test_a_message_of_the_limit_is_taken(
    size: int, standing: Stand, attached: tuple[RawRiver, str]
) -> None:
    peer, _ = attached
    fields = peer.fields({"streamId": "other", "controlFlags": 1, "payload": ""})
    fill = "x" * (size - len(peer.pack(fields | {"payload": "x" * 2**16})) + 2**16)
    assert len(peer.pack(fields | {"payload": fill})) == size
    peer.send(fields | {"payload": fill})
    standing.check_lives(peer)


@WEBSOCKET
def test_fragments_are_one_message(standing: Stand, attached: tuple[RawRiver, str]) -> None:
    peer, _ = attached
    data = peer.pack(peer.fields({"streamId": "other", "payload": 1}))
    pieces = [data[:5], data[5:9], data[9:]]
    opcodes = [BINARY, CONTINUATION, CONTINUATION]
    for last, (piece, opcode) in enumerate(zip(pieces, opcodes, strict=True)):
        frame = bytearray(peer.frame(piece, opcode))
        frame[0] &= 0xFF if last == 2 else 0x7F
        peer.sock.sendall(frame)
        if last < 2:
            peer.send_bytes(b"between", PING)
            assert peer.recv_frame() == (PONG, b"between")
    peer.seq += 1
    standing.check_answered(peer, "other", 1, 0)
    standing.check_lives(peer)


@pytest.mark.parametrize("how", ["half_a_frame", "end_of_file"])
def test_a_connection_that_breaks_off_leaves_the_session(
    how: str, standing: Stand, attached: tuple[RawRiver, str]
) -> None:
    peer, name = attached
    if how == "half_a_frame":
        fields = peer.fields({"streamId": "other", "payload": "half"})
        peer.sock.sendall(peer.frame(peer.pack(fields))[:-1])
    peer.sock.close()
    with standing.dial(name) as again:
        again.seq, again.ack = peer.seq, peer.ack
        again.attach(name)
        standing.check_lives(again)
    assert standing.witness.notes[name].requests == [0, "still there"]


def test_the_longest_id_of_a_stream_is_told_in_full(
    standing: Stand, attached: tuple[RawRiver, str]
) -> None:
    """The name of the stream is told in the answer a second time, in part."""
    peer, _ = attached
    long = "\N{GRINNING FACE}" * 1024
    peer.send({"streamId": long})
    standing.check_refused(peer, long, f"no call is open on stream {long[:100]}...")
    standing.check_lives(peer)


def test_an_answer_that_the_codec_cannot_carry_ends_the_session(
    standing: Stand, attached: tuple[RawRiver, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, name = attached
    codec = engine_of(standing.server.handler).codec
    encode = codec.encode

    def refuse_one(envelope: Envelope, packed: bytes) -> bytes:
        if envelope.stream_id == "unsayable":
            raise EncodeError("there is no word for it")
        return encode(envelope, packed)

    monkeypatch.setattr(codec, "encode", refuse_one)
    peer.send({"streamId": "unsayable"})
    standing.check_destroyed(peer, name)


@pytest.mark.parametrize("first", ["handshake", "nothing"])
@pytest.mark.parametrize("then", ["nonsense", "silence"])
def test_a_connection_that_waits_for_its_end_rests(
    first: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer does not answer the Close, so that the server waits for a while."""
    polls: list[MessageTransport] = []
    on_poll(monkeypatch, polls.append)
    monkeypatch.setattr("wsmux.rpc.engine.dial.CLOSE_TIMEOUT", 0.2)
    time = CONNECTS if first == "handshake" else 0.1
    hasty = rpc.Options(heartbeat_interval=0.05, handshake_timeout=time)
    options = hasty if then == "silence" else rpc.Options()
    with (
        rpc.serve([], codec="json", options=options) as server,
        RawRiver.dial(server.port, "json", websocket=True) as peer,
    ):
        if first == "handshake":
            peer.attach("session")
        if then == "nonsense":
            peer.send_bytes(b"nonsense")
        while peer.recv_frame()[0] != CLOSE_FRAME:
            pass  # heartbeats
        wait_for(lambda: threads_of(server) == 0)
    assert len(polls) < 20
