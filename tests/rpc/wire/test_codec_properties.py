"""What is encoded is decoded, and whatever comes in, nothing but our errors comes out."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.rpc.wire.codec import Codec, EncodeError
from wsmux.rpc.wire.envelope import MAX_COUNTER, Envelope, EnvelopeError
from wsmux.rpc.wire.json_codec import JsonCodec
from wsmux.rpc.wire.msgpack_codec import MsgpackCodec

from ...helpers.rpc.codec_messages import CODECS, SMALLEST, around, sent, there_and_back
from ...helpers.rpc.codec_values import (
    arrives,
    damaged,
    envelopes_of,
    exactly,
    payloads,
    taken_or_refused,
    texts,
)

codecs = st.sampled_from([codec() for codec in CODECS])
envelopes = envelopes_of(st.integers(0, MAX_COUNTER), st.none() | texts)


@given(codecs, envelopes)
def test_a_message_arrives_as_it_was_sent(codec: Codec, envelope: Envelope) -> None:
    found = codec.decode(codec.encode(envelope, codec.pack(envelope.payload)))
    assert found == envelope
    assert exactly(found.payload) == arrives(envelope.payload)


@given(codecs, envelopes, st.integers(0, 3))
def test_a_message_can_be_read_without_its_payload(
    codec: Codec, envelope: Envelope, times: int
) -> None:
    data = codec.encode(envelope, codec.pack([envelope.payload, "x" * times * 30_000]))
    assert codec.decode_head(data) == envelope._replace(payload=None)


@given(codecs, payloads)
def test_what_arrived_can_be_sent_again_byte_for_byte(codec: Codec, payload: Any) -> None:
    packed = codec.pack(payload)
    assert codec.pack(codec.decode(codec.encode(SMALLEST, packed)).payload) == packed


@given(
    st.datetimes(timezones=st.timezones(), allow_imaginary=False)
    | st.datetimes().map(lambda time: time.replace(tzinfo=UTC))
)
def test_msgpack_carries_datetimes(time: datetime) -> None:
    try:
        (found,) = there_and_back(MsgpackCodec(), [time])
    except EncodeError:
        assert not 1 < time.year < 9999  # another year in UTC, which datetime has not
    else:
        assert found == time.astimezone(UTC)  # across zones, a time that exists twice equals none
        assert found.tzinfo is UTC


@given(st.text(st.characters()) | st.text("\ud83d\ude00a"))
def test_json_carries_what_javascript_has_as_text(text: str) -> None:
    found = there_and_back(JsonCodec(), [text])[0]
    assert found.encode("utf-16", "surrogatepass") == text.encode("utf-16", "surrogatepass")


@given(codecs, st.binary())
def test_any_bytes_are_a_message_or_refused(codec: Codec, data: bytes) -> None:
    taken_or_refused(codec, data)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary())
def test_any_bytes_as_payload_are_taken_or_refused(codec: type[Codec], data: bytes) -> None:
    taken_or_refused(codec(), around(codec, data))


PIECES = ["{", "}", "[", "]", '"', ":", ",", "\\", "\\u0024", "\\ud800", "$t", "$b", "a", "0", "1",
          "-", ".", "e", "E+", "400", "NaN", "null", "true", " ", "\n", "\0", "=", "é", '{"$t":"',
          '{"$b":"', '"}', '"a":']  # fmt: skip


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_pieces_of_json_are_taken_or_refused(text: str) -> None:
    taken_or_refused(JsonCodec(max_depth=2), around(JsonCodec, text.encode()))


@given(codecs, st.data())
def test_a_damaged_message_is_taken_or_refused(codec: Codec, data: st.DataObject) -> None:
    taken_or_refused(codec, damaged(codec, data))


json_texts = st.text(st.sampled_from('[]{}"\\$a\n'), max_size=6)
json_values = st.recursive(
    st.integers(0, 9) | json_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_texts, inner, max_size=3),
    max_leaves=12,
)


def height(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(height, inner), default=0) if isinstance(value, (dict, list)) else 0


@given(json_values, st.integers(1, 3))
def test_json_counts_levels_and_not_what_strings_hold(value: Any, max_depth: int) -> None:
    data = around(JsonCodec, json.dumps(value).encode())
    codec = JsonCodec(max_depth=max_depth)
    if height(value) > max_depth:
        with pytest.raises(EnvelopeError, match="deeper"):
            codec.decode(data)
    else:
        assert codec.decode(data).payload == value


@pytest.mark.parametrize("codec", CODECS)
@given(value=json_values, max_depth=st.integers(1, 3))
def test_both_ways_have_one_limit_of_depth(codec: type[Codec], value: Any, max_depth: int) -> None:
    limited = codec(max_depth=max_depth)
    if height(value) > max_depth:
        with pytest.raises(EncodeError, match="deeper"):
            limited.pack(value)
        with pytest.raises(EnvelopeError, match="deeper"):
            limited.decode(sent(codec(), value))
    else:
        assert there_and_back(limited, value) == value
