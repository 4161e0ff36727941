"""Variable-length integers are those of RFC 9000 section 16."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.protocols.varint import MAX_VARINT, decode_varint, encode_varint

from ..helpers.tables import each_case

# RFC 9000 appendix A.1, and the ends of every width.
SHORTEST = [
    (0, "00"),
    (37, "25"),
    (63, "3f"),
    (64, "4040"),
    (77, "404d"),
    (15293, "7bbd"),
    (16383, "7fff"),
    (16384, "80004000"),
    (494878333, "9d7f3e7d"),
    (2**30 - 1, "bfffffff"),
    (2**30, "c000000040000000"),
    (151288809941952652, "c2197c5eff14e88c"),
    (2**62 - 1, "ffffffffffffffff"),
]
LONGER = [
    (37, "4025"),
    (0, "4000"),
    (0, "80000000"),
    (0, "c000000000000000"),
    (63, "8000003f"),
    (16383, "c000000000003fff"),
]
values = st.one_of(
    st.integers(0, MAX_VARINT),
    st.integers(0, 2**30),
    st.integers(0, 2**14),
    st.integers(0, 2**6),
)


@each_case
@pytest.mark.parametrize(("value", "wire"), SHORTEST)
def test_encoding_is_the_shortest(value: int, wire: str) -> None:
    assert encode_varint(value).hex() == wire


@each_case
@pytest.mark.parametrize(("value", "wire"), SHORTEST + LONGER)
def test_every_form_is_decoded(value: int, wire: str) -> None:
    data = bytes.fromhex(wire)
    assert decode_varint(data) == (value, len(data))


@pytest.mark.parametrize("value", [-1, 2**62, 2**64])
def test_value_outside_62_bits_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="does not fit a 62-bit variable-length integer"):
        encode_varint(value)


@each_case
@pytest.mark.parametrize(
    "wire", [wire[:size] for _, wire in SHORTEST for size in range(0, len(wire), 2)]
)
def test_cut_encoding_is_none(wire: str) -> None:
    assert decode_varint(bytes.fromhex(wire)) is None


@pytest.mark.parametrize("offset", [2, 3, 100])
def test_offset_at_or_behind_the_end_is_none(offset: int) -> None:
    assert decode_varint(b"\x01\x02", offset) is None


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_decoded_at_an_offset(kind: type) -> None:
    assert decode_varint(kind(b"\xff\x7b\xbd\x00"), 1) == (15293, 3)


@given(values, st.binary(max_size=9), st.binary(max_size=9))
def test_decoding_undoes_encoding(value: int, before: bytes, after: bytes) -> None:
    wire = encode_varint(value)
    end = len(before) + len(wire)
    assert decode_varint(before + wire + after, len(before)) == (value, end)


@given(values)
def test_width_is_told_by_the_two_top_bits(value: int) -> None:
    wire = encode_varint(value)
    assert len(wire) == 1 << (wire[0] >> 6)


@given(st.binary(min_size=8, max_size=8))
def test_eight_bytes_always_hold_a_whole_number(data: bytes) -> None:
    parsed = decode_varint(data)
    assert parsed is not None
    assert 0 <= parsed[0] <= MAX_VARINT
