"""Each message of the table is refused, with the sentence that stands beside it."""

from __future__ import annotations

import pytest

from wsmux.rpc.wire.envelope import EnvelopeError
from wsmux.rpc.wire.protobuf_codec import ProtobufCodec

from ...helpers.rpc.bad_protobuf import GOOD, MSGPACK, TABLE
from ...helpers.rpc.codec_messages import Bad, msgpack_of
from ...helpers.rpc.protobuf_messages import EMPTY, number, text
from ...helpers.tables import each_case, each_row


@each_case
@each_row(TABLE, name=lambda bad: bad.name)
def test_is_refused(bad: Bad) -> None:
    with pytest.raises(EnvelopeError) as caught:
        ProtobufCodec().decode(bad.data)
    assert bad.sentence in str(caught.value)


def test_a_payload_of_msgpack_is_all_of_its_field() -> None:
    """What is around it in the decoder cannot be reached from within it."""
    inside = msgpack_of({"payload": 1, "seq": 7})
    found = ProtobufCodec().decode(EMPTY + text("msgpack", inside))
    assert (found.payload, found.seq) == ({"payload": 1, "seq": 7}, 3)
    with pytest.raises(EnvelopeError, match=MSGPACK):
        ProtobufCodec().decode(EMPTY + text("msgpack", b"\x01" + msgpack_of("seq") + b"\x07"))


@pytest.mark.parametrize("name", ["seq", "ack", "controlFlags"])
def test_a_number_keeps_its_lowest_bits(name: str) -> None:
    fields = {"seq": "seq", "ack": "ack", "controlFlags": "flags"}
    found = ProtobufCodec().decode(GOOD + number(name, 2**32 + 5))
    assert getattr(found, fields[name]) == 5
