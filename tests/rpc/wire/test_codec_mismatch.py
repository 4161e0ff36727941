"""A server names the codec of a first message that it cannot decode."""

from __future__ import annotations

import pytest

from wsmux.rpc.wire.codec import Codec
from wsmux.rpc.wire.codec_mismatch import codec_mismatch
from wsmux.rpc.wire.envelope import Envelope, EnvelopeError
from wsmux.rpc.wire.handshake import ExpectedState, handshake_envelope, request_payload
from wsmux.rpc.wire.json_codec import JsonCodec
from wsmux.rpc.wire.msgpack_codec import MsgpackCodec
from wsmux.rpc.wire.protobuf_codec import ProtobufCodec

from ...helpers.tables import each_case

GREETING = request_payload("s", ExpectedState(0, 0), {"token": "x" * 100})


def greeting(codec: Codec, envelope: Envelope) -> bytes:
    return codec.encode(envelope, codec.pack(GREETING))


@each_case
@pytest.mark.parametrize(
    ("theirs", "ours", "sentence"),
    [
        (JsonCodec(), MsgpackCodec(), "the first message is JSON; this server's codec is msgpack"),
        (MsgpackCodec(), JsonCodec(), "the first message is msgpack; this server's codec is JSON"),
        (
            ProtobufCodec(),
            MsgpackCodec(),
            "the first message is protobuf; this server's codec is msgpack",
        ),
        (
            ProtobufCodec(),
            JsonCodec(),
            "the first message is protobuf; this server's codec is JSON",
        ),
        (
            JsonCodec(),
            ProtobufCodec(),
            "the first message is JSON; this server's codec is protobuf",
        ),
        (
            MsgpackCodec(),
            ProtobufCodec(),
            "the first message is msgpack; this server's codec is protobuf",
        ),
    ],
)
@pytest.mark.parametrize("tracing", [None, ("", "")])
def test_the_other_codec_is_named(
    theirs: Codec, ours: Codec, sentence: str, tracing: tuple[str, str] | None
) -> None:
    envelope = handshake_envelope("client", "SERVER", "1", "2")._replace(tracing=tracing)
    first = greeting(theirs, envelope)
    with pytest.raises(EnvelopeError):
        ours.decode(first)
    for form in (first, bytearray(first), memoryview(first)):
        assert codec_mismatch(form, ours.name) == sentence
    assert codec_mismatch(first, theirs.name) is None


@each_case
@pytest.mark.parametrize(
    "first", [b"", b"[1]", b"\x00\x00", b"GET / HTTP/1.1", b"\xff{", b"\n", b"\n\n", b"\n\x01a"]
)
@pytest.mark.parametrize("own", ["json", "msgpack", "protobuf"])
def test_what_is_neither_is_not_named(first: bytes, own: str) -> None:
    assert codec_mismatch(first, own) is None


def test_a_codec_of_the_application_may_begin_anyhow() -> None:
    assert codec_mismatch(b"{", "tiny") is None
