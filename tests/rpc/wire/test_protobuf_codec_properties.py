"""What protobuf carries arrives, and whatever comes in, nothing but our errors comes out."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wsmux.rpc.wire.envelope import Envelope
from wsmux.rpc.wire.protobuf_codec import ProtobufCodec

from ...helpers.rpc.codec_messages import ENVELOPE
from ...helpers.rpc.codec_values import (
    arrives,
    damaged,
    envelopes_of,
    exactly,
    taken_or_refused,
    texts,
)
from ...helpers.rpc.protobuf_messages import EMPTY, number, text

CODEC = ProtobufCodec()

envelopes = envelopes_of(st.integers(0, 2**32 - 1), st.none() | texts.filter(bool))


@given(envelopes)
def test_a_message_arrives_as_it_was_sent(envelope: Envelope) -> None:
    found = CODEC.decode(CODEC.encode(envelope, CODEC.pack(envelope.payload)))
    assert found == envelope
    assert exactly(found.payload) == arrives(envelope.payload)


@given(envelopes)
def test_what_arrived_can_be_sent_again_byte_for_byte(envelope: Envelope) -> None:
    data = CODEC.encode(envelope, CODEC.pack(envelope.payload))
    found = CODEC.decode(data)
    assert CODEC.encode(found, CODEC.pack(found.payload)) == data


@given(st.binary())
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    taken_or_refused(CODEC, data)


@given(st.binary())
def test_any_bytes_as_payload_are_taken_or_refused(data: bytes) -> None:
    taken_or_refused(CODEC, EMPTY + text("msgpack", data))
    assert CODEC.decode(EMPTY + text("bytes", data)) == ENVELOPE._replace(payload=data)


@given(st.data())
def test_a_damaged_message_is_taken_or_refused(data: st.DataObject) -> None:
    taken_or_refused(CODEC, damaged(CODEC, data))


fields: st.SearchStrategy[Any] = st.one_of(
    st.builds(number, st.integers(1, 16), st.integers(0, 2**64 - 1)),
    st.builds(text, st.integers(1, 16), st.binary(max_size=8)),
)


@given(st.lists(fields).map(b"".join))
def test_any_fields_are_a_message_or_refused(data: bytes) -> None:
    taken_or_refused(CODEC, data)
    taken_or_refused(CODEC, EMPTY + data)
