"""Messages of the protobuf codec, byte for byte, and what it does not carry."""

from __future__ import annotations

import importlib
import subprocess
import sys
from array import array
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from wsmux.rpc.wire.codec import MOST_DEPTH, EncodeError
from wsmux.rpc.wire.envelope import MAX_COUNTER, Envelope, EnvelopeError
from wsmux.rpc.wire.json_codec import codec_of
from wsmux.rpc.wire.protobuf_codec import ProtobufCodec
from wsmux.rpc.wire.values import BigInt

from ...helpers.rpc.codec_messages import ENVELOPE, SMALLEST, nested, sent, there_and_back
from ...helpers.rpc.protobuf_messages import EMPTY, number, packed, text
from ...helpers.tables import each_case

CODEC = ProtobufCodec()

# As upstream's own tests have them.
REQUEST = Envelope(
    "message-1",
    "client",
    "server",
    1,
    2,
    "stream-1",
    3,
    b"\x01\x02\x03\x04",
    "river.test.TestService",
    "Echo",
    ("00-abc-def-01", ""),
)
ERROR = {
    "ok": False,
    "payload": {
        "code": "INVALID_ARGUMENT",
        "message": "bad request",
        "metadata": {"source": "test"},
        "details": [{"typeName": "river.test.Detail", "value": b"\x09\x08\x07"}],
    },
}


def test_bytes_go_as_they_are() -> None:
    data = CODEC.encode(REQUEST, CODEC.pack(REQUEST.payload))
    assert data.endswith(text("bytes", b"\x01\x02\x03\x04"))
    assert CODEC.decode(data) == REQUEST


def test_everything_else_goes_as_msgpack() -> None:
    envelope = Envelope("message-2", "client", "server", 0, 0, "stream-2", 4, ERROR)
    data = CODEC.encode(envelope, CODEC.pack(ERROR))
    assert data.endswith(packed(ERROR))
    assert CODEC.decode(data) == envelope


def test_a_message_has_the_fields_of_the_shipped_one() -> None:
    data = EMPTY + packed({"n": 3})
    assert CODEC.encode(ENVELOPE, CODEC.pack({"n": 3})) == data
    assert CODEC.decode(data) == ENVELOPE


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 3_000_000])
def test_bytes_of_every_length_arrive(size: int) -> None:
    data = bytes(size)
    assert sent(CODEC, data).endswith(text("bytes", data))
    assert there_and_back(CODEC, data) == data


@each_case
@pytest.mark.parametrize(
    "payload",
    [
        None,
        True,
        5,
        -1.5,
        "text",
        [],
        {},
        [b"inside", {"a": b""}],
        2**60,
        [BigInt(5)],
        datetime(2026, 1, 1, tzinfo=UTC),
    ],
)
def test_arrives_as_it_was(payload: Any) -> None:
    assert there_and_back(CODEC, payload) == payload


@pytest.mark.parametrize("kind", [bytearray, memoryview, lambda data: memoryview(data)[::1]])
def test_every_kind_of_buffer_is_bytes(kind: Callable[[bytes], Any]) -> None:
    assert there_and_back(CODEC, kind(b"abc")) == b"abc"
    assert CODEC.decode(kind(EMPTY + packed({"n": 3}))) == ENVELOPE
    assert there_and_back(CODEC, memoryview(array("H", [1, 2]))) == bytes(array("H", [1, 2]))
    assert there_and_back(CODEC, memoryview(b"abcd")[::2]) == b"ac"


def test_absent_fields_are_left_out_and_read_as_empty() -> None:
    assert sent(CODEC, b"") == b"".join(
        (text("id", "i1"), text("from", "SERVER"), text("to", "client"), text("streamId", "s1"))
    ) + text("bytes", b"")
    assert CODEC.decode(text("bytes", b"")) == Envelope("", "", "", 0, 0, "", 0, b"")


def test_no_tracing_and_an_empty_one_differ() -> None:
    for tracing in (None, ("", ""), ("p", ""), ("", "s")):
        envelope = SMALLEST._replace(tracing=tracing)
        assert CODEC.decode(CODEC.encode(envelope, CODEC.pack(None))) == envelope


def test_fields_may_come_in_any_order_and_unknown_ones_are_ignored() -> None:
    more = text(13, "later") + number(1000, 1) + text(2**29 - 1, b"\xff")
    backwards = b"".join(
        (
            packed({"n": 3}),
            more,
            text("tracing", text(2, "s") + more + text(1, "p")),
            number("timeoutMs", 1500),
            text("procedureName", "add"),
            text("serviceName", "test"),
            number("controlFlags", 10),
            text("streamId", "s1"),
            number("ack", 2),
            number("seq", 3),
            text("to", "SERVER"),
            text("from", "client"),
            text("id", "i1"),
        )
    )
    assert CODEC.decode(backwards) == ENVELOPE


def test_the_last_of_a_field_that_comes_twice_stands() -> None:
    twice = text("id", "i0") + number("seq", 9) + EMPTY + packed({"n": 3})
    assert CODEC.decode(twice) == ENVELOPE
    both = text("bytes", b"first"), packed({"n": 3})
    assert CODEC.decode(EMPTY + both[0] + both[1]) == ENVELOPE
    assert CODEC.decode(EMPTY + both[1] + both[0]).payload == b"first"


@pytest.mark.parametrize("depth", [1, 100, MOST_DEPTH])
def test_the_deepest_payload_arrives_and_no_deeper_one(depth: int) -> None:
    codec = ProtobufCodec(max_depth=depth)
    assert there_and_back(codec, nested(depth)) == nested(depth)
    with pytest.raises(EncodeError, match="deeper"):
        codec.pack(nested(depth + 1))
    with pytest.raises(EnvelopeError, match="deeper"):
        codec.decode(EMPTY + packed(nested(depth + 1)))


@pytest.mark.parametrize("payload", [b"", b"a" * 100_000, None, ["a" * 100_000], [[[]]]])
def test_a_message_can_be_read_without_its_payload(payload: Any) -> None:
    data = CODEC.encode(ENVELOPE, CODEC.pack(payload))
    assert CODEC.decode_head(data) == ENVELOPE._replace(payload=None)


def test_the_payload_is_not_even_read() -> None:
    broken = EMPTY + text("msgpack", b"\xc1")
    assert CODEC.decode_head(broken) == ENVELOPE._replace(payload=None)
    for none in (EMPTY, EMPTY + text(13, b"abc"), broken[:-1]):
        with pytest.raises(EnvelopeError):
            CODEC.decode_head(none)


@pytest.mark.parametrize("beside", [text("id", b"x" * 65536), text(13, b"x" * 65536)])
def test_what_is_beside_a_payload_is_bounded_where_that_is_not_read(beside: bytes) -> None:
    data = text("bytes", b"x" * 100_000) + beside
    CODEC.decode_head(text("bytes", b"x" * 100_000) + EMPTY)
    with pytest.raises(EnvelopeError, match="has more than 65536 beside its payload"):
        CODEC.decode_head(data)
    with pytest.raises(EnvelopeError, match="has more than 65536 beside its payload"):
        CODEC.decode_head(data[: len(data) - len(beside)] + text("bytes", b"x"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"seq": 2**32},
        {"ack": 2**32},
        {"flags": 2**32},
        {"seq": -1},
        {"id": "\ud800"},
        {"procedure": "\ud800"},
        {"tracing": ("\ud800", "")},
        {"timeout": -1},
        {"timeout": 2**64},
    ],
)
def test_what_has_no_protobuf_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(EncodeError, match="a message has no protobuf"):
        CODEC.encode(ENVELOPE._replace(**wrong), CODEC.pack(None))


@pytest.mark.parametrize("timeout", [None, 0, 1, MAX_COUNTER])
def test_a_timeout_arrives_and_none_and_zero_differ(timeout: int | None) -> None:
    envelope = SMALLEST._replace(timeout=timeout)
    assert CODEC.decode(CODEC.encode(envelope, CODEC.pack(None))).timeout == timeout


@pytest.mark.parametrize("timeout", [MAX_COUNTER + 1, 2**64 - 1])
def test_a_timeout_beyond_those_of_the_other_codecs_is_refused(timeout: int) -> None:
    data = CODEC.encode(ENVELOPE._replace(timeout=timeout), CODEC.pack(None))
    with pytest.raises(EnvelopeError, match="timeout_ms of a message must be at most 2\\^53-1"):
        CODEC.decode(data)


def test_the_largest_counters_arrive() -> None:
    envelope = Envelope("", "", "", 2**32 - 1, 2**32 - 1, "", 2**32 - 1, None)
    assert CODEC.decode(CODEC.encode(envelope, CODEC.pack(None))) == envelope


def test_it_is_found_by_its_name() -> None:
    assert type(codec_of("protobuf")) is ProtobufCodec


def test_protobuf_is_loaded_when_it_is_asked_for() -> None:
    code = "import sys; from wsmux.rpc.wire.json_codec import codec_of; codec_of('msgpack'); "
    check = "assert not any(name.startswith('google') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code + check], check=True)


def test_a_missing_protobuf_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    monkeypatch.delitem(sys.modules, "wsmux.rpc.wire.protobuf_codec")
    with pytest.raises(ImportError, match=r"pip install 'wsmux-streams\[rpc\]'"):
        importlib.import_module("wsmux.rpc.wire.protobuf_codec")
    with pytest.raises(ImportError, match="needs protobuf"):
        codec_of("protobuf")
