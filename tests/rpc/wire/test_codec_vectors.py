"""Messages captured from the published implementations mean to us what they meant to them."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.rpc.wire.envelope import EnvelopeError

from ...helpers.rpc.codec_vectors import Captured, captured
from ...helpers.tables import each_case, each_row


def types(value: Any) -> Any:
    """Return the shape of a value: bigints equal integers, but are not the same."""
    if isinstance(value, dict):
        return {key: types(item) for key, item in value.items()}
    return [types(item) for item in value] if isinstance(value, list) else type(value)


@each_case
@each_row(captured(valid=True), name=lambda frame: frame.name)
def test_theirs_is_read(frame: Captured) -> None:
    found = frame.codec.decode(frame.data)
    assert found == frame.envelope
    assert types(found.payload) == types(frame.envelope.payload)


@each_case
@each_row(captured(valid=True), name=lambda frame: frame.name)
def test_ours_is_read_the_same(frame: Captured) -> None:
    codec, envelope = frame.codec, frame.envelope
    found = codec.decode(codec.encode(envelope, codec.pack(envelope.payload)))
    assert found == envelope
    assert types(found.payload) == types(envelope.payload)


@each_case
@each_row(captured(valid=True), name=lambda frame: frame.name)
def test_our_payload_has_the_same_bytes(frame: Captured) -> None:
    packed = frame.codec.pack(frame.envelope.payload)
    assert packed in frame.data


@each_case
@each_row(captured(valid=True), name=lambda frame: frame.name)
def test_our_message_has_the_same_bytes_or_fields(frame: Captured) -> None:
    message = frame.codec.encode(frame.envelope, frame.codec.pack(frame.envelope.payload))
    assert len(message) == len(frame.data)
    assert message == frame.data or not frame.of_a_handshake


@each_row(captured(valid=False), name=lambda frame: frame.name)
def test_what_they_refuse_is_refused(frame: Captured) -> None:
    with pytest.raises(EnvelopeError):
        frame.codec.decode(frame.data)
