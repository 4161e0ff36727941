"""What protobuf carries arrives, and whatever comes in, nothing but our errors comes out."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wsmux.rpc.wire.envelope import Envelope, EnvelopeError
from wsmux.rpc.wire.protobuf_codec import ProtobufCodec

from ...helpers.rpc.codec_messages import ENVELOPE
from ...helpers.rpc.protobuf_messages import EMPTY, number, text
from .test_codec_properties import arrives, exactly, payloads, texts

CODEC = ProtobufCodec()

counts = st.integers(0, 2**32 - 1)
names = st.none() | texts.filter(bool)
envelopes = st.builds(
    Envelope,
    texts,
    texts,
    texts,
    counts,
    counts,
    texts,
    counts,
    payloads,
    names,
    names,
    st.none() | st.tuples(texts, texts),
)


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


def taken_or_refused(data: bytes) -> None:
    whole: Envelope | None = None
    with suppress(EnvelopeError):
        whole = CODEC.decode(data)
        assert isinstance(whole, Envelope)
    try:
        head = CODEC.decode_head(data)
    except EnvelopeError:
        assert whole is None
    else:
        assert head.payload is None
        assert whole is None or head == whole._replace(payload=None)


@given(st.binary())
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    taken_or_refused(data)


@given(st.binary())
def test_any_bytes_as_payload_are_taken_or_refused(data: bytes) -> None:
    taken_or_refused(EMPTY + text("msgpack", data))
    assert CODEC.decode(EMPTY + text("bytes", data)) == ENVELOPE._replace(payload=data)


@given(st.data())
def test_a_damaged_message_is_taken_or_refused(data: st.DataObject) -> None:
    good = CODEC.encode(ENVELOPE, CODEC.pack(data.draw(payloads)))
    start = data.draw(st.integers(0, len(good)))
    stop = data.draw(st.integers(start, min(len(good), start + 4)))
    taken_or_refused(good[:start] + data.draw(st.binary(max_size=4)) + good[stop:])


fields: st.SearchStrategy[Any] = st.one_of(
    st.builds(number, st.integers(1, 16), st.integers(0, 2**64 - 1)),
    st.builds(text, st.integers(1, 16), st.binary(max_size=8)),
)


@given(st.lists(fields).map(b"".join))
def test_any_fields_are_a_message_or_refused(data: bytes) -> None:
    taken_or_refused(data)
    taken_or_refused(EMPTY + data)
