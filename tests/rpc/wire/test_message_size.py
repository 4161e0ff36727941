"""What is measured of a value, and what is read of a message whose payload is skipped."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from wsmux.rpc.errors import RiverError
from wsmux.rpc.wire.codec import Codec, EncodeError
from wsmux.rpc.wire.envelope import Envelope, EnvelopeError
from wsmux.rpc.wire.json_codec import JsonCodec
from wsmux.rpc.wire.message_size import ENVELOPE_ROOM, Head, Packer, most_read, most_taken
from wsmux.rpc.wire.msgpack_codec import MsgpackCodec

from ...helpers.rpc.codec_messages import (
    CODECS,
    ENVELOPE,
    FIELDS,
    Fields,
    json_of,
    msgpack_of,
    nested,
)
from ...helpers.rpc.tiny_codec import TinyCodec
from ...helpers.tables import each_case

SIZE = 100
LARGE: Any = {"n": ["x" * 1000] * 100, 'a "[\\': [[]] * 1000}

both = pytest.mark.parametrize("codec", [codec() for codec in CODECS], ids=lambda c: c.name)


def of_size(codec: Codec, size: int) -> str:
    """Return a text that takes so many bytes as it is packed."""
    text = "a" * size
    return text[: 2 * size - len(codec.pack(text))]


@both
def test_a_value_of_the_largest_size_is_packed_and_no_larger_one(codec: Codec) -> None:
    packer = Packer(codec, SIZE)
    assert len(packer.pack(of_size(codec, SIZE))) == SIZE
    refusal = f"a value of {SIZE + 1} bytes is above Options.max_size, {SIZE}: send it in parts"
    with pytest.raises(EncodeError, match=refusal):
        packer.pack(of_size(codec, SIZE + 1))


@both
def test_a_response_is_measured_without_the_result_that_carries_it(codec: Codec) -> None:
    packer = Packer(codec, SIZE)
    text = of_size(codec, SIZE)
    packed = packer.pack_result(text)
    assert codec.decode(codec.encode(ENVELOPE, packed)).payload == {"ok": True, "payload": text}
    with pytest.raises(EncodeError, match=f"a value of {SIZE + 1} bytes"):
        packer.pack_result(text + "a")


@both
def test_an_error_is_measured_without_it_too(codec: Codec) -> None:
    size = len(codec.pack({"code": "BAD", "message": "a" * 50}))
    packed = Packer(codec, size).pack_error(RiverError("BAD", "a" * 50))
    fields = codec.decode(codec.encode(ENVELOPE, packed)).payload
    assert fields == {"ok": False, "payload": {"code": "BAD", "message": "a" * 50}}
    with pytest.raises(EncodeError, match=f"a value of {size} bytes"):
        Packer(codec, size - 1).pack_error(RiverError("BAD", "a" * 50))


def test_what_is_sent_is_taken() -> None:
    assert most_taken(SIZE) == SIZE + ENVELOPE_ROOM
    assert most_read(SIZE) == 4 * SIZE + ENVELOPE_ROOM


def orders(fields: Fields) -> list[Fields]:
    """Return a message with its payload first, in the middle and last."""
    names = [name for name in fields if name != "payload"]
    placed = [[*names[:at], "payload", *names[at:]] for at in (0, 4, len(names))]
    return [{name: fields[name] for name in order} for order in placed]


@each_case
@pytest.mark.parametrize("payload", [LARGE, "x" * 100_000, 1, None, "payload", {"payload": 1}])
@pytest.mark.parametrize("fields", orders(FIELDS))
@pytest.mark.parametrize(
    ("codec", "make"),
    [
        (JsonCodec(), json_of),
        (JsonCodec(), lambda fields: json.dumps(fields, indent=1).encode()),
        (MsgpackCodec(), msgpack_of),
    ],
    ids=["json", "indented", "msgpack"],
)
def test_the_payload_is_skipped_wherever_it_stands(
    codec: Codec, make: Any, fields: Fields, payload: Any
) -> None:
    expected = ENVELOPE._replace(payload=None)
    data = make(fields | {"payload": payload})
    for carried in (data, bytearray(data), memoryview(data)):
        assert codec.decode_head(carried) == expected


def test_a_codec_that_cannot_skip_it_drops_it() -> None:
    codec = TinyCodec()
    assert codec.decode_head(json_of(FIELDS)) == ENVELOPE._replace(payload=None)


BESIDE = f"bytes has more than {ENVELOPE_ROOM} beside its payload"


@each_case
@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (json_of(FIELDS | {"id": "x" * ENVELOPE_ROOM}), BESIDE),
        (json_of(FIELDS | {"more": [1] * ENVELOPE_ROOM}), BESIDE),
        (b"{" * ENVELOPE_ROOM * 2, BESIDE),
        (b'{"payload":"' + b"x" * ENVELOPE_ROOM, BESIDE),
        (b'{"payload":' + b"[" * ENVELOPE_ROOM, BESIDE),
        (json_of({"payload": nested(101)}), "nests deeper than max_depth"),
        (json_of({"payload": nested(101, "x" * ENVELOPE_ROOM)}), BESIDE),
        (json_of({name: FIELDS[name] for name in FIELDS if name != "seq"}), "seq of a message"),
        (json_of([LARGE]), BESIDE),
        (b"", "must be JSON"),
    ],
)
def test_json_whose_payload_cannot_be_skipped_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(EnvelopeError, match=sentence):
        JsonCodec().decode_head(data)


def deep(levels: int) -> bytes:
    return b"\x81" + msgpack_of("payload") + b"\x91" * levels + b"\x01"


@each_case
@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (msgpack_of(FIELDS | {"id": "x" * ENVELOPE_ROOM}), BESIDE),
        (msgpack_of(FIELDS | {"more": [1] * ENVELOPE_ROOM}), BESIDE),
        (msgpack_of({bytes([n % 256]) * (n // 256 + 1): 1 for n in range(10_000)}), BESIDE),
        (b"\xdf\xff\xff\xff\xff" + b"\xc0" * 2 * ENVELOPE_ROOM, BESIDE),
        (b"\xdf\xff\xff\xff\xff" + b"\xc0" * 100, "must be msgpack: No more data"),
        (b"\x81" + msgpack_of("payload") + b"\xdd\xff\xff\xff\xff\xc0", "No more data"),
        (msgpack_of(FIELDS) + b"\xc0", "extra data"),
        (msgpack_of(FIELDS) + b"\xc0" * ENVELOPE_ROOM, BESIDE),
        (deep(5000), "nests deeper than max_depth"),
        (msgpack_of([LARGE]), "must be msgpack: Unexpected type header"),
        (msgpack_of({name: FIELDS[name] for name in FIELDS if name != "seq"}), "seq of a message"),
        (b"", "must be msgpack"),
    ],
)
def test_msgpack_whose_payload_cannot_be_skipped_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(EnvelopeError, match=sentence):
        MsgpackCodec().decode_head(data)


def test_the_payload_is_not_even_read() -> None:
    """Nothing of it is made, so it may hold what no payload may."""
    broken = msgpack.packb({**FIELDS, "payload": {1.5: msgpack.ExtType(77, b"x")}})
    expected: Envelope = ENVELOPE._replace(payload=None)
    with pytest.raises(EnvelopeError):
        MsgpackCodec().decode(broken)
    assert MsgpackCodec().decode_head(broken) == expected
    wrong = json_of(FIELDS | {"payload": 0}).replace(b'"payload":0', b'"payload":[NaN, {"$t": 1}]')
    with pytest.raises(EnvelopeError):
        JsonCodec().decode(wrong)
    assert JsonCodec().decode_head(wrong) == expected


def test_what_is_kept_is_kept_in_order() -> None:
    head = Head(10)
    head.add(b"a")
    head.add(memoryview(b"bc"))
    assert head.data() == b"abc"
